"""Where a task's result is taken from before anything is submitted: :class:`Admission`.

A result may be there already, of another run or of this one before its engine was killed; a job of
that engine may still be at it (:class:`Recovery`); or there is none, and the task has to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from upshift.backends.base import INLINE, Ended, Job
from upshift.engine.journal import Journal
from upshift.engine.keys import Keys, debugged_key
from upshift.engine.reuse import Hit, Reuse, Standard, intact, shortcoming
from upshift.engine.schedule import Demand
from upshift.engine.targets import (
    AttemptState,
    OpenTarget,
    Verdict,
    reader_of,
    rejoin,
    verdict_on,
)
from upshift.engine.tasks import COMPLETED, PENDING, RUNNING, TaskState
from upshift.errors import ConfigError
from upshift.model.configuration import Target
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import TaskId, TaskResult, TaskSpec, Value, same_work
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import bring_in
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runs.lease import here
from upshift.runtime.storage.checkpoints import discard
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor import server_files


@attrs.frozen(kw_only=True)
class Found:
    """What is left of one task."""

    attempts: int = 0  # number of its newest attempt; 0: it has none
    result: TaskResult | None = None
    """Its result, if that is of the same work and whole; and its row, if it had ended."""
    row: TaskRow | None = None
    over: tuple[tuple[AttemptState, Verdict], ...] = ()
    """Attempts of which nobody had recorded the end, and what became of each."""
    watched: AttemptState | None = None  # an attempt that runs
    same: bool = False  # whether it does the same work


def is_at(attempt: AttemptRow | TaskSpec, target: Target) -> bool:
    """Whether an attempt was given to this target; older records know the backend alone."""
    return attempt.target == target.name if attempt.target is not None else attempt.backend == target.backend


def take_over(run: str, catalog: Catalog, store: Store) -> RunRow:
    """A run whose engine is gone, perhaps that of another home: with its records and its fork servers."""
    bring_in(run, catalog, store)
    row = catalog.run(run)
    engine = row.source.get("engine") or {}
    if engine.get("host") == here()["host"] and engine["home"] != here()["home"]:
        server_files.adopt(Path(engine["home"]))
    return row


class Recovery:
    """What is recorded of a run, looked at once for each task."""

    def __init__(
        self,
        places: Sequence[OpenTarget],
        store: Store,
        *,
        tasks: Mapping[TaskId, TaskRow] | None = None,
        attempts: Mapping[TaskId, AttemptRow] | None = None,
    ) -> None:
        self._places = places  # where its jobs may run
        self._store = store
        self._tasks = dict(tasks or {})  # the rows of tasks
        self._attempts = dict(attempts or {})  # the newest attempt of each task
        self._unfinished: dict[TaskId, AttemptState] = {}
        self._resumed = tasks is not None
        self._steps: dict[str, list[TaskId]] | None = None

    @classmethod
    def of_run(cls, run: str, catalog: Catalog, places: Sequence[OpenTarget], store: Store) -> Recovery:
        """What is left of a run."""
        newest: dict[TaskId, AttemptRow] = {}
        for row in catalog.attempts(run):
            if row.task not in newest or row.number > newest[row.task].number:
                newest[row.task] = row
        tasks = {row.task: row for row in catalog.tasks(run)}
        return cls(places, store, tasks=tasks, attempts=newest)

    def watch_all(self) -> list[AttemptState]:
        """Watch every recorded job that still runs."""
        at: dict[OpenTarget, list[AttemptRow]] = {}
        for row in self._attempts.values():
            if row.status in (PENDING, RUNNING):
                at.setdefault(self._place_of(row), []).append(row)
        for place, rows in at.items():
            jobs = [(self._job(self._store.spec_path(row.task, row.number)), row.handle) for row in rows]
            for row, attempt in zip(rows, self._rejoin(place, jobs), strict=True):
                attempt.started, attempt.why = row.started, row.waits
                self._unfinished[row.task] = attempt
        return [attempt for attempt in self._unfinished.values() if attempt.ended is None]

    def surplus(self, step: str, length: int) -> list[TaskId]:
        """Recorded tasks of a mapped step beyond its ``length`` now, of which nothing runs."""
        if self._steps is None:
            self._steps = {}
            for task in self._tasks:
                self._steps.setdefault(task.step, []).append(task)
        return [
            task
            for task in self._steps.get(step, ())
            if task.index is not None and task.index >= length and task not in self._unfinished
        ]

    def of(self, task: TaskId, key: str | None, *, strict: bool) -> Found:
        """What is left of a task; the second time nothing is."""
        if not self._resumed:
            return Found()
        newest = self._attempts.pop(task, None)
        number = newest.number if newest else 0
        row = self._tasks.pop(task, None)
        if row is not None and row.status == COMPLETED:
            result = self._usable(self._recorded(row, number), key, strict=strict)
            return Found(attempts=number, result=result, row=row)
        attempt = self._unfinished.pop(task, None)
        over: tuple[tuple[AttemptState, Verdict], ...] = ()
        if attempt is None or attempt.ended is not None:
            # The engine may have seen its end, and submitted the next one, before it wrote either down.
            over = () if attempt is None else ((attempt, verdict_on(attempt, attempt.ended, self._store)),)
            for attempt in self._left_behind(task, number):
                if attempt.ended is not None:
                    over += ((attempt, verdict_on(attempt, attempt.ended, self._store)),)
        if attempt is None:
            return Found(attempts=number)
        if attempt.ended is None:
            same = same_work(attempt.spec.key, key)
            return Found(attempts=attempt.number, over=over, watched=attempt, same=same)
        _, verdict = over[-1]
        usable = self._usable(verdict.result, key, strict=strict) if verdict.failure is None else None
        return Found(attempts=attempt.number, over=over, result=usable)

    def _recorded(self, row: TaskRow, number: int) -> TaskResult | None:
        task = row.task
        if row.origin is not None:
            run, step, index, number = row.origin
            task = TaskId(run=run, step=step, index=index)
        return self._store.read_result(task, number) if number else None

    def _usable(self, result: TaskResult | None, key: str | None, *, strict: bool) -> TaskResult | None:
        if result is None or result.status != COMPLETED or not same_work(result.key, key):
            return None
        if result.edited or shortcoming(result, self._store, Standard(strict=strict)) is not None:
            return None
        if not intact(result.outputs, self._store):
            return None
        return result

    def _place_of(self, attempt: AttemptRow | TaskSpec) -> OpenTarget:
        """Where an attempt may still run."""
        place = next((p for p in self._places if is_at(attempt, p.target)), None)
        if place is None and attempt.backend == INLINE:
            place = self._places[0]  # what ran in the earlier engine itself ended with it
        if place is None:
            raise ConfigError(
                f"{attempt.task} may still run on target {attempt.target or attempt.backend!r}, "
                "which this run does not use now",
                fix="Resume it on the target that it was started on, or cancel it first.",
            )
        return place

    def _job(self, path: str) -> Job:
        return Job(spec=self._store.read_spec(path), spec_path=path)

    def _rejoin(self, place: OpenTarget, jobs: Sequence[tuple[Job, str | None]]) -> list[AttemptState]:
        """Jobs of one place, watched if they run, by the handles that were recorded."""
        found = []
        for (job, _), (handle, ended) in zip(jobs, rejoin(place.backend, jobs, self._store), strict=True):
            attempt = self._attempt(job.spec, place, handle or "")
            attempt.ended = ended
            if ended is None:
                place.queue.room.take(attempt.demand)
                place.jobs[attempt.handle] = attempt
            found.append(attempt)
        return found

    def _left_behind(self, task: TaskId, number: int) -> Iterator[AttemptState]:
        """Attempts that an engine had not written down when it was killed: all but the last one are over."""
        path = self._after(task, number)
        while path is not None:
            number += 1
            job, path = self._job(path), self._after(task, number)
            place = self._place_of(job.spec)
            if path is None:
                yield from self._rejoin(place, [(job, None)])
            else:
                gone = self._attempt(job.spec, place, "")
                gone.ended = Ended(handle="")
                yield gone

    def _after(self, task: TaskId, number: int) -> str | None:
        """The spec of a task's next attempt, which the engine may have been about to submit."""
        there = self._store.has_spec(task, number + 1)
        return self._store.spec_path(task, number + 1) if there else None

    def _attempt(self, spec: TaskSpec, place: OpenTarget, handle: str) -> AttemptState:
        demand = place.queue.room.clipped(Demand.of(spec.granted or Hardware(), launch=spec.launch))
        return AttemptState(None, spec, place, handle, demand, reader_of(self._store, spec, skip=True))


@attrs.frozen
class Made:
    """An earlier result that the task takes."""

    result: TaskResult


@attrs.frozen
class Running:
    """An earlier engine's job is at the task; ``same``: it does the work that is asked for now."""

    attempt: AttemptState
    same: bool


@attrs.define(eq=False)
class Admission:
    """Looks where a task's result may be, and notes on the task what was found."""

    _keys: Keys
    _reuse: Reuse
    recovery: Recovery
    _journal: Journal
    _store: Store
    _unexplained: list[tuple[TaskState, Mapping[str, Value]]] = attrs.field(init=False, factory=list)
    _twins: dict[str, dict[TaskState, int]] = attrs.field(init=False, factory=dict)

    def of(
        self, task: TaskState, inputs: Mapping[str, Value], *, standard: Standard, debugged: bool, now: float
    ) -> Made | Running | None:
        """What there is of a task with these inputs, by this standard; None: it has to run."""
        key = self._keys.key(task.node, inputs)
        twins = self._twins.setdefault(key, {})
        twin = twins.setdefault(task, len(twins))
        task.key = key = debugged_key(key) if debugged else key
        if task.redone_for is not None:
            task.stream = self._keys.stream(task.node, inputs, twin)
            task.cached, task.origin = False, None
            task.cache_reason = "its result was lost"
            return None
        left = self._left(task, key, strict=standard.strict, debugged=debugged, now=now)
        if left is not None:
            return left
        found = self._reuse.find(task, key, standard, now=now)
        if isinstance(found, Hit):
            made = found.result
            task.cached, task.cache_reason = True, found.reason
            task.origin = (made.task.run, made.task.step, made.task.index, made.attempt)
            return Made(made)
        task.cache_reason = found
        task.stream = self._keys.stream(task.node, inputs, twin)
        if found is None:
            self._unexplained.append((task, inputs))
        return None

    def explain(self) -> list[TaskState]:
        """Say of the tasks that have to run why they do, where that takes a while to find out; gives them."""
        explained = [task for task, _ in self._unexplained]
        for task, inputs in self._unexplained:
            task.cache_reason = self._reuse.history.why(task, inputs)
        self._unexplained.clear()
        return explained

    def _left(
        self, task: TaskState, key: str, *, strict: bool, debugged: bool, now: float
    ) -> Made | Running | None:
        """What an earlier engine of this run left of the task."""
        left = self.recovery.of(self._journal.id(task), key, strict=strict)
        task.attempts = max(task.attempts, left.attempts)
        for attempt, verdict in left.over:
            self._journal.attempt(attempt, verdict, ended=now)
        if left.watched is not None:
            return Running(left.watched, left.same)
        row = left.row
        others = row is not None and row.origin is not None
        if left.result is None or (others and not self._reuse.enabled) or debugged:
            return None
        if row is not None:
            task.cached, task.cache_reason, task.origin = row.cached, row.cache_reason, row.origin
        if not others:  # nothing may have been forked yet, and a thread would be in the way of that
            discard(self._store, left.result, wait=True)
        return Made(left.result)
