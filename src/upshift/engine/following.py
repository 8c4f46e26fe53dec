"""Shows how a run goes that something else does: the walk of an engine that submits nothing.

What became of tasks is read from the records of their pods in the bucket: one list for each look, and what is
new in it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import attrs

from upshift.engine.exported import Order
from upshift.engine.journal import Decisions, Journal
from upshift.engine.targets import LogReader
from upshift.engine.tasks import COMPLETED, FAILED, PENDING, RUNNING, TaskState
from upshift.engine.walk import Walk
from upshift.model.graph import Graph
from upshift.model.settings.retry import STOPPED
from upshift.model.spec.task import Failure, TaskId, TaskResult
from upshift.report.progress import Progress, TaskChange
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.history.records import growth_of
from upshift.runs.stores.elsewhere import Elsewhere
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.records import attempt_path
from upshift.runtime.storage.store import Store


@attrs.define(eq=False)
class _Tries:
    """The attempts of a task, as far as they have been shown."""

    number: int = 0  # of the last one
    over: bool = True  # whether that has ended
    past: int = 0  # those up to this one are of before the run was retried
    log: LogReader | None = None


class Following:
    """A run as whoever follows it sees it.

    Parameters
    ----------
    run, graph, order
        The run: its id, its graph as it began, and what was exported.
    store
        The store, as this machine follows it; ``elsewhere`` brings what is new.
    again
        Whether it is retried: attempts that have failed by now are past.
    """

    def __init__(
        self,
        run: str,
        graph: Graph,
        order: Order,
        store: Store,
        *,
        elsewhere: Elsewhere,
        catalog: Catalog,
        progress: Progress,
        again: bool = False,
    ) -> None:
        self._run = run
        self._order = order
        self._store = store
        self._elsewhere = elsewhere
        self._progress = progress
        self._journal = Journal(run, catalog, progress)
        self._walk = Walk(
            graph,
            truth=lambda artifact: artifacts.plain_value(artifact, store),
            grow=growth_of(graph, store),
        )
        self._decisions = Decisions(self._walk, self._journal, lambda step, length: [])
        self._open: dict[TaskState, _Tries] = {}
        self._told: set[TaskId] = set()
        self._again = again
        self.first_failure: tuple[TaskId, Failure, int] | None = None
        self._walk.start()

    @property
    def running(self) -> bool:
        """Whether a pod is at work."""
        return any(not tries.over for tries in self._open.values())

    def told(self, task: TaskId) -> bool:
        """Whether it was shown how a task ended."""
        return task in self._told

    def look(self) -> None:
        """Show what is new."""
        self._elsewhere.hear(now=True)
        files = self._elsewhere.files
        self._take_ready()
        pending = list(self._open)
        while pending:
            for task in pending:
                self._look_at(task, self._open[task], files)
            before = set(self._open)
            self._take_ready()
            pending = [task for task in self._open if task not in before]
        self._again = False
        self._tell()

    def _take_ready(self) -> None:
        while self._walk.ready:
            self._open.setdefault(self._walk.ready.popleft(), _Tries())

    def _look_at(self, task: TaskState, tries: _Tries, files: Collection[str]) -> None:
        task_id = self._journal.id(task)
        while attempt_path(task_id, tries.number + 1, "spec.json") in files:
            tries.number += 1
            tries.over = False
            result = self._result(task_id, tries.number, files)
            path = self._store.log_path(task_id, tries.number)
            past = self._again and result is not None
            tries.log = LogReader(path, skip=past)
            if past and result is not None and result.status != COMPLETED:
                tries.over, tries.past = True, tries.number
                continue
            self._begin(task, task_id, tries.number)
            if result is not None:
                self._end(task, task_id, tries, result)
        if not tries.over:
            result = self._result(task_id, tries.number, files)
            self._print(task_id, tries, end=result is not None)
            if result is not None:
                self._end(task, task_id, tries, result)

    def _result(self, task: TaskId, number: int, files: Collection[str]) -> TaskResult | None:
        known = attempt_path(task, number, "result.json") in files
        return self._store.read_result(task, number) if known else None

    def _begin(self, task: TaskState, task_id: TaskId, number: int) -> None:
        self._walk.began(task)
        granted = self._order.steps[task.node.node.step].granted
        self._journal.tell(TaskChange(task=task_id, status=RUNNING, attempt=number, granted=granted))

    def _print(self, task: TaskId, tries: _Tries, *, end: bool) -> None:
        log = tries.log
        if log is not None:
            self._journal.write()  # what it prints comes after what was said before
            log.read(partial(self._progress.output, task), end=end)
            self._progress.unfinished(task, log.unfinished)

    def _end(self, task: TaskState, task_id: TaskId, tries: _Tries, result: TaskResult) -> None:
        self._tell()
        self._print(task_id, tries, end=True)
        tries.over = True
        change = TaskChange(
            task=task_id,
            status=result.status,
            attempt=tries.number,
            seconds=max(0.0, result.ended - result.started) if result.started and result.ended else None,
            asked=result.asked,
            granted=result.granted,
            used=result.used,
            metrics=result.metrics,
            failure=result.failure,
        )
        if result.status == COMPLETED:
            self._decisions.changes[task] = change
            del self._open[task]
            self._told.add(task_id)
            self._walk.completed(task, result.outputs, degraded=result.degraded)
            return
        failure = result.failure or Failure(reason="infrastructure", message="it left no reason")
        if failure.reason == STOPPED:  # by what is known when the run is over, or its next attempt begins
            return
        policy, failures = task.node.definition.settings.retry_policy, tries.number - tries.past
        if policy.again(failure.reason, failures) or (
            task.node.definition.settings.catch is not None and failures <= policy.times + 1
        ):
            self._walk.again(task)
            self._decisions.changes[task] = attrs.evolve(
                change,
                status=PENDING,
                retry_in=policy.pause(failures) if failures <= policy.times else 0.0,
                retry=failures if failures <= policy.times else 0,
                retries=policy.times,
            )
            return
        del self._open[task]
        self._told.add(task_id)
        if result.status == FAILED:
            self._decisions.changes[task] = change
            self.first_failure = self.first_failure or (task_id, failure, tries.number)
            self._walk.failed(task, failure)
        else:
            self._walk.cancelled(task)

    def _tell(self) -> None:
        while refused := self._decisions.write():
            for task, failure in refused:
                self.first_failure = self.first_failure or (self._journal.id(task), failure, 1)
        self._journal.write()
