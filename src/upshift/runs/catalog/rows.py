"""The rows of the catalog: :class:`RunRow`, :class:`TaskRow`, :class:`AttemptRow`, :class:`VersionRow`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from upshift.model.spec.task import Failure, TaskId, TaskResult

UNFINISHED = ("pending", "running")
"""Status of a run, task or attempt that is not over."""


@attrs.frozen(kw_only=True)
class RunRow:
    """A run. Its JSON form is the run's record ``run.json`` in the store.

    Parameters
    ----------
    id
        Unique among all runs.
    pipeline, target, user
        Names.
    status
        ``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``.
    store
        Address of the store with its artifacts.
    tags
        In the order that the user gave them.
    started, ended
        Seconds since the epoch; ``ended`` is None while the run is not over.
    source
        What ``resume`` needs to load the pipeline again and to go on in the same way: file, pipeline
        attribute, working folder, and under ``run`` the options of the run. And under ``engine`` where
        the engine ran that was the last to work on it.
    params
        The pipeline's parameters: name to the JSON form of an artifact.
    """

    id: str
    pipeline: str
    status: str
    target: str
    store: str
    started: float
    ended: float | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    source: Mapping[str, Any] = attrs.field(factory=dict)
    params: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class TaskRow:
    """A task, as it stands.

    Parameters
    ----------
    task
        The task.
    status
        ``pending``, ``running``, ``completed``, ``failed``, ``cancelled`` or ``skipped``.
    cached
        Whether its result is that of another task.
    cache_reason
        Why a result was reused or not, or why the task was skipped, for people.
    key
        What its result may be found under again.
    origin
        Whose result it is: run, step, index, attempt. None: its own attempts'.
    """

    task: TaskId
    status: str
    cached: bool = False
    cache_reason: str | None = None
    key: str | None = None
    origin: tuple[str, str, int | None, int] | None = None


@attrs.frozen(kw_only=True)
class AttemptRow:
    """One try of a task.

    Parameters
    ----------
    task
        The task.
    number
        From 1.
    status
        ``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``.
    reason
        Why it did not complete: one of :data:`upshift.model.settings.retry.REASONS`.
    target, backend, handle
        Where it runs, and the backend's name for the job. The target is None in older records.
    node
        Name of the host.
    started, ended
        Seconds since the epoch.
    result
        What the attempt recorded, once it is over.
    failure
        Why there is no result.
    waits
        What it waits for before it can start, in words; None: for nothing.
    """

    task: TaskId
    number: int
    status: str
    backend: str
    target: str | None = None
    reason: str | None = None
    handle: str | None = None
    node: str | None = None
    started: float | None = None
    ended: float | None = None
    result: TaskResult | None = None
    failure: Failure | None = None
    waits: str | None = None


@attrs.frozen(kw_only=True)
class VersionRow:
    """A result of a step that has a number.

    Parameters
    ----------
    pipeline, step
        Whose.
    number
        From 1.
    run, made_step, item, attempt
        The attempt that made it; of a result that was reused one of an earlier run.
    holder, holder_item
        The first run of the pipeline that has it, and the index of the task in it.
    store
        Address of the store that has it.
    made
        When it was made, in seconds since the epoch.
    tags
        In the order in which they were given.
    """

    pipeline: str
    step: str
    number: int
    run: str
    made_step: str
    item: int | None
    attempt: int
    holder: str
    holder_item: int | None
    store: str
    made: float | None = None
    tags: tuple[str, ...] = ()


def attempt_of(result: TaskResult) -> AttemptRow:
    """The attempt that made a result, as far as the result knows it."""
    return AttemptRow(
        task=result.task,
        number=result.attempt,
        status=result.status,
        reason=result.failure.reason if result.failure else None,
        target=result.target,
        backend=result.backend or "unknown",
        node=result.node,
        started=result.started,
        ended=result.ended,
        result=result,
    )
