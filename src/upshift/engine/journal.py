"""What the engine writes down, and what it tells: collected while it works, done when it has a moment.

The next task is submitted before the last one is committed, which is what keeps the time between two
steps of a chain short. It is safe because the store decides what is done, and the catalog is its index:

* The **spec** of an attempt is written before the attempt is submitted. An engine that is killed
  after that leaves a spec without a recorded handle, and the next engine asks the backend for the job
  by its task and attempt (:meth:`Backend.find`). So a job that runs is found,
  and no task is run by two attempts at once.
* The **result** is written by the supervisor, once. An engine that is killed before it commits a
  completed task finds the result in the store again.

So all that a lost batch costs is a second look.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.base import Logged, LogGrew, Noticed
from upshift.engine import RunOptions
from upshift.engine.offers import GrantPlan
from upshift.engine.targets import AttemptState, OpenTarget, Verdict
from upshift.engine.tasks import (
    CANCELLED,
    FAILED,
    PENDING,
    RUNNING,
    SKIPPED,
    NodeState,
    TaskState,
    why_skipped,
)
from upshift.engine.walk import Walk
from upshift.errors import StoreUnavailable, UpshiftError
from upshift.model.configuration import user_name
from upshift.model.graph import Graph
from upshift.model.spec.codec import encode, to_json
from upshift.model.spec.hardware import Shortfall
from upshift.model.spec.task import Code, Failure, TaskId
from upshift.report import ImageChange, Progress, TaskChange
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.rebuild import Backlog, record_ending
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runtime.storage.store import Store
from upshift.runtime.usercode import SOURCES

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
"""Without those that are easily taken for another."""


def new_run_id(now: float) -> str:
    """An id that sorts by time, and that no other run has: ``20261121-032154-k3f9``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{stamp}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"


def new_row(
    run: str,
    graph: Graph,
    *,
    status: str,
    target: str,
    store: Store,
    options: RunOptions,
    source: Mapping[str, Any],
    earlier: RunRow | None,  # where the run is resumed
    now: float,
) -> RunRow:
    """The row of a run that begins, or goes on."""
    return RunRow(
        id=run,
        pipeline=graph.pipeline,
        status=status,
        target=target,
        user=options.user or (earlier.user if earlier else None) or user_name(),
        tags=options.tags,
        started=earlier.started if earlier else now,
        store=store.address,
        source={name: encode(value) for name, value in source.items()},
        params={name: encode(artifact) for name, artifact in graph.params.items()},
    )


@attrs.define(eq=False)
class RunRecord:
    """The record of a run that this engine owns: in the store, and in the catalog."""

    row: RunRow
    _catalog: Backlog
    _store: Store
    _progress: Progress

    def begin(self, graph: Graph, images: Sequence[Mapping[str, object]] | None) -> None:
        """Record the run, its graph, and what its images are made from; None: it has none."""
        self._write()
        self._catalog.add_run(self.row)
        self._store.write_record(self.row.id, "graph.json", to_json(attrs.evolve(graph, sources={})))
        if images is not None:
            self._store.write_record(self.row.id, "images.json", to_json(images))
        self._store.write_record(self.row.id, SOURCES, to_json(graph.sources))

    def keep_code(self, code: Code) -> None:
        """Note the code with its package."""
        self._note("code", code)

    def lack_code(self, why: str) -> None:
        """Note why there is no package, for whoever asks for --same-code later."""
        self._note("code_lacks", why)

    def end(self, status: str, now: float) -> None:
        """Record that the run is over; in the store first, since the catalog can be made anew from there."""
        # The machine's clock may have been set back since the run began, and resumed.
        self.row = attrs.evolve(self.row, status=status, ended=max(self.row.started, now))
        with self._noticed():
            record_ending(self.row, self._catalog, self._store)
        with self._noticed():
            self._catalog.update_run(self.row.id, status=status, ended=self.row.ended)
            self._catalog.settle()

    def _note(self, name: str, value: object) -> None:
        self.row = attrs.evolve(self.row, source={**self.row.source, name: encode(value)})
        with contextlib.suppress(StoreUnavailable):  # the run can do without; the record of its end has it
            self._write()
        self._catalog.add_run(self.row)

    def _write(self) -> None:
        self._store.write_record(self.row.id, "run.json", to_json(self.row))

    @contextlib.contextmanager
    def _noticed(self) -> Iterator[None]:
        try:
            yield
        except UpshiftError as error:
            # Whoever hears of the first failure needs that one; the run can be resumed all the same.
            self._progress.notice(f"the end of run {self.row.id} was not recorded: {error.what}")


@attrs.define(eq=False)
class Journal:
    """The catalog's rows and the progress of one run."""

    _run: str
    _catalog: Catalog
    _progress: Progress
    _tasks: dict[TaskId, TaskRow] = attrs.field(init=False, factory=dict)
    _attempts: dict[tuple[TaskId, int], AttemptRow] = attrs.field(init=False, factory=dict)
    _news: list[Callable[[], None]] = attrs.field(init=False, factory=list)

    def id(self, task: TaskState) -> TaskId:
        """The task's name in all records."""
        return TaskId(run=self._run, step=task.node.node.name, index=task.index)

    def task(self, task: TaskState, *, status: str | None = None) -> None:
        """Record the status of a task."""
        self.row(
            TaskRow(
                task=self.id(task),
                status=status or task.status,
                cached=task.cached,
                cache_reason=task.cache_reason,
                key=task.key,
                origin=task.origin,
            )
        )

    def row(self, row: TaskRow) -> None:
        """Record a task's row."""
        self._tasks[row.task] = row

    def attempt(
        self, attempt: AttemptState, verdict: Verdict | None = None, *, ended: float | None = None
    ) -> None:
        """Record the status of an attempt."""
        result = verdict.result if verdict else None
        failure = verdict.failure if verdict else None
        self.attempt_row(
            AttemptRow(
                task=attempt.task_id,
                number=attempt.number,
                status=verdict.status if verdict else (RUNNING if attempt.started is not None else PENDING),
                reason=failure.reason if failure else None,
                target=attempt.place.target.name,
                backend=attempt.place.backend.name,
                handle=attempt.handle,
                node=(result.node if result else None) or attempt.node,
                started=(result.started if result else None) or attempt.started,
                ended=(result.ended if result else None) or ended,
                result=result,
                failure=verdict.words if verdict else None,
                waits=None if verdict or attempt.started is not None else attempt.why,
            )
        )

    def refused(self, task: TaskState, failure: Failure, place: OpenTarget, *, ended: float) -> None:
        """An attempt that failed before it could be submitted."""
        self.attempt_row(
            AttemptRow(
                task=self.id(task),
                number=task.attempts,
                status=FAILED,
                reason=failure.reason,
                target=place.target.name,
                backend=place.backend.name,
                ended=ended,
                failure=failure,
            )
        )

    def attempt_row(self, row: AttemptRow) -> None:
        """Record an attempt's row."""
        self._attempts[row.task, row.number] = row

    def forget(self, tasks: list[TaskId]) -> None:
        """Remove tasks that no longer exist."""
        if tasks:
            self._catalog.forget(tasks)

    def tell(self, change: TaskChange) -> None:
        """Show that a task has another status."""
        self._news.append(lambda: self._progress.task_changed(change))

    def running(self, attempt: AttemptState, *, since: float | None = None) -> None:
        """Show that a task runs."""
        self.tell(
            TaskChange(
                task=attempt.task_id,
                status=RUNNING,
                attempt=attempt.number,
                since=since,
                granted=attempt.spec.granted,
            )
        )

    def sized(self, state: NodeState) -> None:
        """Show how many tasks a step has."""
        assert state.length is not None
        name, length = state.node.name, state.length
        self._news.append(lambda: self._progress.step_sized(name, length))

    def image(self, change: ImageChange) -> None:
        """Show how far an image is."""
        self._news.append(lambda: self._progress.image_changed(change))

    def notice(self, text: str, task: TaskId | None = None) -> None:
        """Show a line."""
        self._news.append(lambda: self._progress.notice(text, task=task))

    def printed(self, attempt: AttemptState, *, size: int | None = None, end: bool = False) -> None:
        """Show what the attempt has printed."""
        progress, task, log = self._progress, attempt.task_id, attempt.log

        def show() -> None:
            before = log.unfinished
            log.read(lambda text: progress.output(task, text), size=size, end=end)
            if log.unfinished != before:
                progress.unfinished(task, log.unfinished)

        self._news.append(show)

    def hear(self, attempt: AttemptState, event: LogGrew | Logged | Noticed) -> None:
        """Show what the attempt has printed, the newest values of its metrics, or a line."""
        if isinstance(event, LogGrew):
            self.printed(attempt, size=event.size)
        elif isinstance(event, Logged):
            values, step = event.values, event.step
            self._news.append(lambda: self._progress.logged(attempt.task_id, values, step))
        else:
            self.notice(event.text, attempt.task_id)

    def write(self) -> None:
        """Commit everything that is new, in one transaction, and show it."""
        if self._tasks or self._attempts:
            tasks, attempts = self._tasks, self._attempts
            self._tasks, self._attempts = {}, {}
            self._catalog.record(tasks.values(), attempts.values())
        news, self._news = self._news, []
        for show in news:
            show()


def over(attempt: AttemptState, verdict: Verdict, *, now: float) -> TaskChange:
    """What to show of an attempt that is over, and the task with it."""
    result = verdict.result
    started = (result.started if result else None) or attempt.started
    ended = (result.ended if result else None) or now
    return TaskChange(
        task=attempt.task_id,
        status=verdict.status,
        attempt=attempt.number,
        seconds=None if started is None else max(0.0, ended - started),
        asked=result.asked if result else None,
        granted=(result.granted if result else None) or attempt.spec.granted,
        used=result.used if result else None,
        metrics=result.metrics if result else {},
        failure=verdict.failure,
    )


@attrs.define(eq=False)
class Decisions:
    """What a walk has decided, recorded and shown."""

    _walk: Walk
    _journal: Journal
    _surplus: Callable[[str, int], list[TaskId]]  # recorded tasks of a step beyond its length now
    changes: dict[TaskState, TaskChange] = attrs.field(init=False, factory=dict)
    """What to show of a task whose change is known from elsewhere: from its attempt, or its reuse."""

    def write(self) -> list[tuple[TaskState, Failure]]:
        """Tell what was decided since the last time; gives the tasks that failed before any submission."""
        self._sized()
        refused = self._changed()
        self._closed()
        return refused

    def _sized(self) -> None:
        for state in self._walk.sized:
            self._journal.sized(state)
            if state.node.mapped:
                self._journal.forget(self._surplus(state.node.name, len(state.tasks)))
            for task in state.tasks:
                if task.status == PENDING:
                    self._journal.task(task)
        self._walk.sized.clear()

    def _changed(self) -> list[tuple[TaskState, Failure]]:
        refused = []
        for task in self._walk.changed:
            change = self.changes.pop(task, None)
            if task.status == RUNNING:
                continue
            if task.status == SKIPPED:
                task.cache_reason = why_skipped(task, self._walk.nodes)
            self._journal.task(task)
            if change is None and task.status != PENDING:
                change = TaskChange(
                    task=self._journal.id(task),
                    status=task.status,
                    failure=task.failure,
                    skipped=task.cache_reason if task.status == SKIPPED else None,
                )
                if task.status == FAILED and task.failure is not None:
                    refused.append((task, task.failure))
            if change is not None:
                self._journal.tell(change)
        self._walk.changed.clear()
        return refused

    def _closed(self) -> None:
        for state in self._walk.closed:
            lone, status = TaskState(state, None), state.ended or CANCELLED
            skipped = why_skipped(lone, self._walk.nodes) if status == SKIPPED else None
            row = TaskRow(task=self._journal.id(lone), status=status, cache_reason=skipped)
            if skipped is not None:
                self._journal.row(row)
            self._journal.tell(TaskChange(task=row.task, status=status, skipped=skipped))
        self._walk.closed.clear()


_IMAGE = "image"


@attrs.define(eq=False)
class Shortfalls:
    """Collects what is to be said, as steps begin."""

    _walk: Walk
    _plans: Mapping[str, GrantPlan]  # what each step gets, by the name of its definition
    _known: set[tuple[str, str]] = attrs.field(init=False, factory=set)
    _news: dict[str, list[Shortfall]] = attrs.field(init=False, factory=dict)
    _remarks: list[str] = attrs.field(init=False, factory=list)

    def began(self, step: str) -> None:
        """A task of a step has been submitted."""
        plan = self._plans[step]
        said = (*(shortfall.field for shortfall in plan.shortfalls), *plan.remarks)
        if all((step, what) in self._known for what in said):
            return
        others = {state.node.step for state in self._walk.nodes.values() if state.ended is None}
        for remark in plan.remarks:
            if (step, remark) not in self._known:
                self._known.add((step, remark))
                self._remarks.append(f"{step}: {remark}")
        for shortfall in plan.shortfalls:
            image = shortfall.field == _IMAGE
            for name in self._plans if image else (step,):
                runs = name == step or name in others
                new = (name, shortfall.field) not in self._known
                if runs and new and shortfall in self._plans[name].shortfalls:
                    self._known.add((name, shortfall.field))
                    self._news.setdefault(name, []).append(shortfall)

    def reused(self, step: str) -> None:
        """A result of a step is reused that was made with less than it asks for."""
        less = [f"asked {s.asked}, got {s.got}" for s in self._plans[step].shortfalls if s.field != _IMAGE]
        if less and (step, "reused") not in self._known:
            self._known.add((step, "reused"))
            self._remarks.append(f"{step}: reused, made with less than it asks for: {'; '.join(less)}")

    def lines(self) -> list[str]:
        """What is new: a line for each step that gets less than it asks for, and for each image not used."""
        lines, self._remarks = self._remarks, []
        images: dict[tuple[str, str], list[str]] = {}
        for name, shortfalls in self._news.items():
            less = [f"asked {s.asked}, gets {s.got}: {s.why}" for s in shortfalls if s.field != _IMAGE]
            if less:
                lines.append(f"{name}: {'; '.join(less)}")
            for shortfall in shortfalls:
                if shortfall.field == _IMAGE:
                    images.setdefault((shortfall.asked, shortfall.why), []).append(name)
        for (asked, why), names in images.items():
            lines.append(f"{', '.join(names)}: {asked} is not used: {why}")
        self._news.clear()
        return lines
