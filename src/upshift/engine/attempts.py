"""Attempts: following what one prints, and judging its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from upshift.backends.base import Backend, Ended, Job
from upshift.engine.tasks import TaskState
from upshift.errors import StoreUnavailable
from upshift.model.settings.retry import STOPPED
from upshift.model.spec.task import Failure, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage.log_text import ROW, last_frames
from upshift.runtime.storage.store import Store


@attrs.frozen
class Verdict:
    """What became of an attempt."""

    result: TaskResult | None  # what it recorded, where that is a result of this very attempt
    failure: Failure | None  # why it did not complete; None: it did

    @property
    def status(self) -> str:
        """Status of the attempt."""
        if self.failure is None:
            return "completed"
        return "cancelled" if self.failure.reason == "cancelled" else "failed"

    @property
    def words(self) -> Failure | None:
        """Why it did not complete, where its result does not say so itself."""
        return None if self.result is not None and self.result.failure == self.failure else self.failure


def judge(
    attempt_of: TaskId,
    number: int,
    result: TaskResult | None,
    ended: Ended | None,
    *,
    cancelled: bool = False,
) -> Verdict:
    """What became of an attempt that is over.

    What it recorded in the store counts; the backend's word where there is nothing, or where the supervisor
    knows no more than that somebody has sent a signal.
    """
    if result is not None and (result.task, result.attempt) == (attempt_of, number):
        if result.status == "completed":
            return Verdict(result, None)
        unexplained = Failure(
            reason="cancelled" if result.status == "cancelled" else "infrastructure",
            message=f"the attempt recorded that it was {result.status}, and no reason",
        )
        failure = result.failure or unexplained
        if failure.reason == STOPPED and ended is not None and ended.reason is not None:
            said = f"{ended.message}; {failure.message}" if ended.message else failure.message
            failure = attrs.evolve(failure, reason=ended.reason, message=said)
        return Verdict(result, failure)
    reason = (ended.reason if ended else None) or ("cancelled" if cancelled else "infrastructure")
    words = "it was stopped" if cancelled else "the supervisor died without a result"
    message = (ended.message if ended else None) or words
    return Verdict(None, Failure(reason=reason, message=message, node=ended.node if ended else None))


def too_many(task: TaskState, result: TaskResult, most: int | None) -> Failure | None:
    """Why more tasks would follow than the user allows; None: they do not."""
    found = [result.outputs[name].items for name in task.node.node.by_item if name in result.outputs]
    items = max(filter(None, found), default=0)
    if most is None or items <= most:
        return None
    what = f"{items:,} tasks would follow {task}, and --max-num-splits allows {most:,}"
    fix = "Allow more, or make a shorter list."
    return Failure(reason="user-error", message=what, where=task.node.definition.location, fix=fix)


def give_up(store: Store, task: TaskId, number: int) -> bool:
    """See that an attempt without a result never begins. False: it has begun, and may still run."""
    return store.claim_attempt(task, number, by="an engine that gave it up")


def fence(store: Store, task: TaskId, number: int) -> None:
    """See that nothing comes of an attempt that is over, should a scheduler start it once more."""
    with suppress(StoreUnavailable):  # where this cannot be written, no result can
        give_up(store, task, number)


def rejoin(
    backend: Backend, jobs: Sequence[tuple[Job, str | None]], store: Store
) -> list[tuple[str | None, Ended | None]]:
    """Watch jobs of an earlier engine, by the handles that it recorded.

    Gives the handle of each, and how it ended that does not run any more. One that is not found has not
    begun, and never does.
    """
    handles = [handle for _, handle in jobs]

    def look_for(which: list[int]) -> None:
        for place, handle in zip(
            which, backend.find([jobs[i][0] for i in which]) if which else (), strict=True
        ):
            handles[place] = handle

    look_for([i for i, handle in enumerate(handles) if handle is None])
    missing = [(i, jobs[i][0].spec) for i, handle in enumerate(handles) if handle is None]
    # What has begun cannot be given up; it has perhaps begun since it was looked for.
    look_for([i for i, spec in missing if not give_up(store, spec.task, spec.attempt)])
    known = {handle: job for (job, _), handle in zip(jobs, handles, strict=True) if handle is not None}
    ends = backend.attach(known) if known else {}
    return [(h, Ended(handle="") if h is None else ends[h]) for h in handles]


_BLOCK = 1 << 16
_LONGEST = 1 << 20
"""A line is passed on in pieces of this many bytes, so that one without an end does not fill memory."""

_SHOWN = 1 << 12
"""Bytes of a line without an end that are shown."""


def reader_of(store: Store, spec: TaskSpec, *, skip: bool = False) -> LogReader:
    """What reads the log of an attempt."""
    path = store.log_path(spec.task, spec.attempt)
    main = None if spec.launch is None else store.rank_log_path(spec.task, spec.attempt, 0)
    return LogReader(path, skip=skip, main=main)


class LogReader:
    """Reads the log of an attempt from where it stopped the last time; of each line the last frame."""

    __slots__ = ("_drawn", "_main", "_offset", "_path", "_rest")

    def __init__(self, path: Path, *, skip: bool = False, main: Path | None = None) -> None:
        self._path = path
        self._offset = path.stat().st_size if skip and path.exists() else 0
        self._rest = b""
        self._main = main
        self._drawn = b""

    def read(self, show: Callable[[str], None], *, size: int | None = None, end: bool = False) -> None:
        """Show the whole lines that are new, a block at a time."""
        if size is None or size > self._offset:
            self._read_blocks(show)
        if end and self._rest:
            if self._rest.strip():  # a bar that was wiped out leaves blanks
                show(_text(self._rest) + "\n")
            self._rest = b""
        if self._main is not None:
            self._drawn = b"" if end else _last_line(self._main)

    @property
    def unfinished(self) -> str:
        """The line that has no end yet, as it stands; several, where several are drawn at once."""
        text = _text((self._drawn or self._rest)[-_SHOWN:].strip().replace(ROW, b"\n"))
        if not self._drawn or not text:
            return text
        return "\n".join(f"[rank 0] {line}" for line in text.split("\n"))

    def _read_blocks(self, show: Callable[[str], None]) -> None:
        try:
            file = open(self._path, "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:  # it has printed nothing
            return
        with file:
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                self._offset += len(block)
                whole, newline, rest = block.rpartition(b"\n")
                if newline:
                    show(_text(last_frames(self._rest + whole + newline)))
                    self._rest = b""
                self._rest = last_frames(self._rest + rest)
                if len(self._rest) > _LONGEST:
                    show(_text(self._rest) + "\n")
                    self._rest = b""


def _last_line(path: Path) -> bytes:
    """The line that a log ends with, if it has no end yet; of one that is drawn again its last frame."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN))
            return last_frames(file.read().rpartition(b"\n")[2])
    except FileNotFoundError:  # it has printed nothing
        return b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
