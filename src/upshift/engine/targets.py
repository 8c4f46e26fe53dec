"""The targets of a run, and the attempts that run there: following what one prints, and judging its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs

from upshift.backends.base import Backend, Ended, Event, Job
from upshift.backends.registry import open_backend as open_registered
from upshift.engine.schedule import Demand, Queue, Room
from upshift.engine.tasks import TaskState
from upshift.errors import BackendError, ConfigError, NotFound, StoreUnavailable, UpshiftError
from upshift.model.configuration import Configuration, Target
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.retry import STOPPED
from upshift.model.spec.task import Failure, TaskId, TaskResult, TaskSpec
from upshift.runtime.storage.files import fresh
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.progress_bars import ROW, last_frames

OpenBackend = Callable[..., Backend]
"""As :func:`upshift.backends.registry.open_backend`."""


class OpenTarget:
    """One target with its open backend, what waits for it and what runs on it."""

    def __init__(
        self,
        target: Target,
        *,
        store: str,
        inbox: SimpleQueue[Any],
        open_backend: OpenBackend,
        others: bool = False,
    ) -> None:
        self.target = target
        self.store = store
        self.others = others  # whether there are other targets to choose
        self.backend: Backend = open_backend(target, store=store, sink=self._receive)
        self.jobs: dict[str, AttemptState] = {}
        self._inbox = inbox

    @cached_property
    def queue(self) -> Queue:
        """What waits here; made when something does, and the offers are known."""
        return Queue(Room(self.backend.capacity()))

    def _receive(self, event: Event) -> None:
        # Handles are unique within a backend only.
        self._inbox.put((self, event))


def open_targets(
    graph: Graph,
    configuration: Configuration,
    target: str | None,
    *,
    inbox: SimpleQueue[Any],
    open_backend: OpenBackend = open_registered,
) -> dict[str | None, OpenTarget]:
    """Open the backend of each target that the graph's steps name; the run's own is under None."""
    own = configuration.target(target)
    others = own.name != "local" or bool(configuration.targets.keys() - {"local"})
    store = configuration.store_address(own)
    places: dict[str | None, OpenTarget] = {}
    try:
        places[None] = OpenTarget(own, store=store, inbox=inbox, open_backend=open_backend, others=others)
        by_target = {own.name: places[None]}
        used = set(graph.used)
        for name, definition in graph.steps.items():
            if name not in used or definition.settings.on in places:
                continue
            other = _target_of(name, definition, configuration)
            if other.name not in by_target:
                if configuration.store_address(other) != store:
                    raise ConfigError(
                        f"step {name} runs on target {other.name!r}, whose store is not that of {own.name!r}",
                        where=definition.location,
                        why="The steps of a run hand each other their results through one store.",
                        fix="Give both targets the same store.",
                    )
                try:
                    by_target[other.name] = OpenTarget(
                        other, store=store, inbox=inbox, open_backend=open_backend
                    )
                except UpshiftError as error:
                    raise of_step(error, name, definition) from None
            places[definition.settings.on] = by_target[other.name]
    except BaseException:
        close_targets(places.values())
        raise
    return places


def close_targets(places: Iterable[OpenTarget]) -> None:
    """Close each backend once."""
    for place in dict.fromkeys(places):
        place.backend.close()


def _target_of(name: str, definition: StepDefinition, configuration: Configuration) -> Target:
    try:
        return configuration.target(definition.settings.on)
    except NotFound as error:
        error.what = f"step {name}: {error.what}"
        error.where = definition.settings.origins.get("on") or definition.location or error.where
        raise


def of_step(error: UpshiftError, name: str, definition: StepDefinition) -> UpshiftError:
    """The error of a place that the step chose: where it did, and that nobody else can choose another."""
    error.where = error.where or definition.location
    between = "\n" if "\n" in (error.fix or "") else " "
    error.fix = between.join(filter(None, (error.fix, chosen_by_step(name, definition))))
    return error


def chosen_by_step(name: str, definition: StepDefinition) -> str:
    """Where a step says itself that it runs there."""
    on, where = definition.settings.on, definition.settings.origins.get("on") or definition.location
    return f"{name} has on={on!r}{f' at {where}' if where else ''}, which --on does not change."


@attrs.define(eq=False, repr=False)
class AttemptState:
    """A job that a backend has."""

    task: TaskState | None  # it waits for this; None: no task has asked yet for a job of an earlier engine
    spec: TaskSpec
    place: OpenTarget
    handle: str  # the backend's name for it
    demand: Demand  # the room it takes up
    log: LogReader  # how far it has been shown
    waits: bool = False  # the backend holds it back for want of accelerators: it takes up no other room then
    why: str | None = None  # what it waits for, in words
    started: float | None = None  # seconds since the epoch
    node: str | None = None  # where the supervisor runs
    cancelled: bool = False  # whether this engine has stopped it
    given_up: Failure | None = None  # why this engine does not wait for it any more
    overdue: bool = False  # whether it is noted when that will be so
    ended: Ended | None = None  # how the backend says that it ended

    def wait_for_devices(self, waits: bool) -> None:
        """What waits for devices leaves CPUs and memory to tasks that do not.

        Once it has them it starts, whatever has taken its place meanwhile.
        """
        if self.waits == waits:
            return
        self.waits = waits
        room = self.place.queue.room
        if waits:
            room.give_back(self.demand.host)
        else:
            room.take(self.demand.host)

    def give_up(self, why: str, store: Store) -> bool:
        """Wait no more for an attempt that has not started. False: it has begun, or is over."""
        if self.started is not None or self.given_up is not None or self.ended is not None:
            return False
        if not give_up(store, self.task_id, self.number):
            return False
        name, within = self.place.target.name, self.place.target.start_within
        self.given_up = Failure(
            reason="infrastructure",
            message=why,
            where=self.spec.location,
            fix="Request less, or use another target. "
            f'Target {name!r} lets a task wait for start_within = "{within}".',
        )
        return True

    @property
    def task_id(self) -> TaskId:
        """The task of the attempt."""
        return self.spec.task

    @property
    def number(self) -> int:
        """The number of the attempt."""
        return self.spec.attempt


def cancel(
    attempts: Iterable[AttemptState], grace: float | None
) -> Iterator[tuple[list[AttemptState], BackendError]]:
    """Have backends stop attempts, each with its own grace period where ``grace`` is None; what fails."""
    alike: dict[tuple[OpenTarget, float], list[AttemptState]] = {}
    for attempt in attempts:
        attempt.cancelled = True
        own = attempt.spec.settings.grace_period if grace is None else grace
        alike.setdefault((attempt.place, own), []).append(attempt)
    for (place, own), some in alike.items():
        try:
            place.backend.cancel([attempt.handle for attempt in some], grace=own)
        except BackendError as error:
            yield some, error


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


def verdict_on(attempt: AttemptState, ended: Ended | None, store: Store) -> Verdict:
    """What became of an attempt that is over; no later start of it counts."""
    result = store.read_result(attempt.task_id, attempt.number)
    if result is None:
        fence(store, attempt.task_id, attempt.number)
    return judge(attempt.task_id, attempt.number, result, ended, cancelled=attempt.cancelled)


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
            file = fresh(str(self._path), lambda: self._path.open("rb", buffering=0))
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
