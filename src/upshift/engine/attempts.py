"""Attempts, and what the end of one means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from upshift.backends.base import Ended
from upshift.model.spec.task import Failure, TaskId, TaskResult, TaskSpec

if TYPE_CHECKING:
    from upshift.engine.follow import LogReader
    from upshift.engine.places import Place
    from upshift.engine.schedule import Need
    from upshift.engine.tasks import Task


class Attempt:
    """A job that a backend has.

    Attributes
    ----------
    task_id, number
        What it is an attempt of.
    task
        The task that waits for it; None: a job of an earlier engine that no task has asked for yet.
    place, handle
        Where it runs, and the backend's name for it.
    need
        The room it takes up.
    waits
        Whether the backend holds it back, for want of accelerators: it takes up no other room then.
    why
        What it waits for, in words, while it does.
    spec
        Its spec.
    log
        How far its log has been shown.
    started, node
        Since when, in seconds since the epoch, and where the supervisor runs.
    cancelled
        Whether this engine has stopped it.
    ended
        How the backend says that it ended; None: it has not.
    """

    __slots__ = (
        "cancelled",
        "ended",
        "handle",
        "log",
        "need",
        "node",
        "number",
        "place",
        "spec",
        "started",
        "task",
        "task_id",
        "waits",
        "why",
    )

    def __init__(
        self, task: Task | None, spec: TaskSpec, place: Place, handle: str, need: Need, log: LogReader
    ) -> None:
        self.task = task
        self.task_id: TaskId = spec.task
        self.number = spec.attempt
        self.spec = spec
        self.place = place
        self.handle = handle
        self.need = need
        self.waits = False
        self.why: str | None = None
        self.log = log
        self.started: float | None = None
        self.node: str | None = None
        self.cancelled = False
        self.ended: Ended | None = None


@attrs.frozen
class Verdict:
    """What became of an attempt.

    Parameters
    ----------
    result
        What it recorded, where that is a result of this very attempt.
    failure
        Why it did not complete; None: it did.
    """

    result: TaskResult | None
    failure: Failure | None

    @property
    def status(self) -> str:
        """Status of the attempt."""
        if self.failure is None:
            return "completed"
        return "cancelled" if self.failure.reason == "cancelled" else "failed"


def judge(
    attempt_of: TaskId,
    number: int,
    result: TaskResult | None,
    ended: Ended | None,
    *,
    cancelled: bool = False,
) -> Verdict:
    """What became of an attempt that is over.

    What it recorded in the store counts; the backend's word only where there is nothing.

    Parameters
    ----------
    attempt_of, number
        The attempt.
    result
        What was recorded, if anything.
    ended
        What the backend says; None: it knows nothing of the job any more.
    cancelled
        Whether it was told to stop.
    """
    if result is not None and (result.task, result.attempt) == (attempt_of, number):
        if result.status == "completed":
            return Verdict(result, None)
        unexplained = Failure(
            reason="cancelled" if result.status == "cancelled" else "infrastructure",
            message=f"the attempt recorded that it was {result.status}, and no reason",
        )
        return Verdict(result, result.failure or unexplained)
    reason = (ended.reason if ended else None) or ("cancelled" if cancelled else "infrastructure")
    words = "it was stopped" if cancelled else "the supervisor died without a result"
    message = (ended.message if ended else None) or words
    return Verdict(None, Failure(reason=reason, message=message))
