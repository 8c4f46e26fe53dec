"""Cancelling a run from another process: :func:`cancel`."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import attrs

from upshift.backends.base import Ended, Job
from upshift.backends.inline import InlineBackend
from upshift.backends.registry import open_backend
from upshift.engine.control import ask
from upshift.engine.leftovers import is_at
from upshift.engine.tasks import CANCELLED, PENDING, RUNNING
from upshift.errors import BackendError, RunOwned, StoreError
from upshift.model.configuration import UNCONFIGURED, Configuration, Target
from upshift.model.spec.task import Failure, TaskId
from upshift.runs.catalog import AttemptRow, Catalog, RunRow, TaskRow, open_catalog
from upshift.runs.endings import record_ending
from upshift.runs.lease import Lease
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.backends.base import Backend, Event

_UNFINISHED = (PENDING, RUNNING)
_PATIENCE = 60.0
"""Seconds in which a killed task has ended, and its backend has said so."""


def cancel(ref: str, configuration: Configuration) -> str:
    """Stop a run. What is done is kept.

    Parameters
    ----------
    ref
        The run's id, a unique prefix of it, or ``latest``.
    configuration
        Where the catalog and the targets are.

    Returns
    -------
    str
        A sentence for the user.

    Raises
    ------
    NotFound
        There is no such run.
    RunOwned
        An engine owns the run and does not answer: it is on another machine, or stopped.
    """
    with contextlib.closing(open_catalog(configuration)) as catalog:
        row = catalog.run(ref)
        try:
            with Lease(row.id):
                row = catalog.run(row.id)
                if row.status not in _UNFINISHED:
                    return f"run {row.id} has ended already: {row.status}"
                stopped = _cancel_ownerless(row, configuration, catalog)
                left = f", {stopped} of its tasks still ran and were stopped" if stopped else ""
                return f"run {row.id} is cancelled: no engine was at work on it any more{left}"
        except RunOwned:
            if ask(row.id, "cancel") is None:
                raise
            return f"run {row.id} is being cancelled"


def _cancel_ownerless(row: RunRow, configuration: Configuration, catalog: Catalog) -> int:
    store = open_store(row.store, **configuration.store_options)
    attempts = _unfinished(row, catalog, store)
    stopped = _stop_jobs(row, attempts, store, configuration) if attempts else 0
    now = max(row.started, time.time())  # the clock may have been set back since
    ended = []
    for attempt in attempts:
        result = store.read_result(attempt.task, attempt.number)
        failure = result.failure if result else Failure(reason="cancelled", message="the run was cancelled")
        ended.append(
            attrs.evolve(
                attempt,
                status=result.status if result else CANCELLED,
                reason=failure.reason if failure else None,
                ended=result.ended if result else now,
                result=result,
                failure=None if result else failure,
            )
        )
    status = {attempt.task: attempt.status for attempt in ended}
    known = {task.task: task for task in catalog.tasks(row.id)}
    unknown = [TaskRow(task=task, status=PENDING) for task in status if task not in known]
    tasks = [
        attrs.evolve(task, status=status.get(task.task, CANCELLED))
        for task in (*known.values(), *unknown)
        if task.status in _UNFINISHED
    ]
    catalog.record(tasks, ended)
    record_ending(attrs.evolve(row, status=CANCELLED, ended=now), catalog, store)
    catalog.update_run(row.id, status=CANCELLED, ended=now)
    return stopped


def _unfinished(row: RunRow, catalog: Catalog, store: Store) -> list[AttemptRow]:
    """The attempts that may still run, also those that the engine was killed before it recorded."""
    recorded = catalog.attempts(row.id)
    known = {(attempt.task, attempt.number) for attempt in recorded}
    return [attempt for attempt in recorded if attempt.status in _UNFINISHED] + [
        AttemptRow(
            task=spec.task, number=spec.attempt, status=PENDING, target=spec.target, backend=spec.backend
        )
        for spec in store.unfinished(row.id)
        if spec.backend is not None and (spec.task, spec.attempt) not in known
    ]


def _stop_jobs(row: RunRow, attempts: list[AttemptRow], store: Store, configuration: Configuration) -> int:
    """Stop what still runs of these attempts, and wait for its end; returns how many these were."""
    inbox: SimpleQueue[tuple[str, Event]] = SimpleQueue()
    targets = _targets(row, attempts, configuration)
    backends: dict[str, Backend] = {}
    grace = 0.0
    running: set[tuple[str, str]] = set()  # a handle is unique within a backend only
    try:
        for attempt in attempts:
            target = targets.get((attempt.task, attempt.number))
            if target is None:
                continue
            path = store.spec_path(attempt.task, attempt.number)
            try:
                job = Job(spec=store.read_spec(path), spec_path=path)
            except StoreError:  # it was never submitted
                continue
            backend = backends.get(target.name)
            if backend is None:
                sink = partial(_tell, inbox, target.name)
                backend = backends[target.name] = open_backend(target, store=row.store, sink=sink)
            handle = attempt.handle or backend.find(job)
            if handle and backend.attach(handle, job):
                running.add((target.name, handle))
                backend.cancel(handle, grace=job.spec.settings.grace_period)
                grace = max(grace, job.spec.settings.grace_period)
        stopped = len(running)
        deadline = time.monotonic() + grace + _PATIENCE
        while running:
            try:
                name, event = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise BackendError(
                    f"{len(running)} of {stopped} tasks of run {row.id} were stopped and have not ended",
                    why=f"They were given {grace:g} seconds, and then killed, {_PATIENCE:g} seconds ago.",
                    fix=f"See what they do (upshift show {row.id}), and run this again.",
                ) from None
            if isinstance(event, Ended):
                running.discard((name, event.handle))
        return stopped
    finally:
        for backend in backends.values():
            backend.close()


def _tell(inbox: SimpleQueue[tuple[str, Event]], target: str, event: Event) -> None:
    inbox.put((target, event))


def _targets(
    row: RunRow, attempts: list[AttemptRow], configuration: Configuration
) -> dict[tuple[TaskId, int], Target]:
    """The target that each attempt was given to; of one that ran in the engine itself there is none.

    Raises
    ------
    NotFound
        A target is not configured any more, so nobody can be asked to stop what runs there.
    """
    own = [row.target, *configuration.targets, *UNCONFIGURED]
    found: dict[tuple[TaskId, int], Target] = {}
    for attempt in attempts:
        if attempt.backend == InlineBackend.name:
            continue
        names = [attempt.target] if attempt.target is not None else own
        target = next((t for t in map(configuration.target, names) if is_at(attempt, t)), None)
        if target is not None:
            found[attempt.task, attempt.number] = target
    return found
