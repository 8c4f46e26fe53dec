"""A run that a tool does by itself, seen from outside: how it goes, its end on request, its end on record.

The tool starts pods, and each records what it does (:mod:`upshift.engine.one_step`). The last one records the
end. It never starts if the run is terminated, and not once more if the run is retried: then whoever looks at
the run next records its end, as the tool tells it.

A run is followed by the walk of an engine that submits nothing. What became of tasks is read from the records
of their pods in the bucket: one list for each look, and what is new in it.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Collection, Iterable, Iterator
from functools import partial

import attrs

from upshift.backends.registry import open_backend
from upshift.backends.scheduler import Gone, NotNow, Orchestrator, Standing
from upshift.engine.exported import Order
from upshift.engine.journal import Decisions, Journal
from upshift.engine.one_step import OneStep
from upshift.engine.targets import LogReader
from upshift.engine.tasks import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, TaskState
from upshift.engine.walk import Walk
from upshift.errors import BackendError, UpshiftError
from upshift.model.configuration import Configuration, Target, user_name
from upshift.model.graph import Graph
from upshift.model.settings.retry import STOPPED
from upshift.model.spec.codec import from_json
from upshift.model.spec.task import Failure, TaskId, TaskResult
from upshift.report import Progress, TaskChange
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import ORCHESTRATOR, bring_in
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.history.records import growth_of
from upshift.runs.publishing import Elsewhere
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.records import attempt_path
from upshift.runtime.storage.store import Store, open_direct, open_store

_STOPPED = "stopped.json"
"""The record of a run that says who has asked for its end."""


def is_tools(row: RunRow) -> bool:
    """Whether a tool does the run, and no engine of Upshift's."""
    return ORCHESTRATOR in row.source


@contextlib.contextmanager
def opened(target: Target, store: str) -> Iterator[Orchestrator]:
    """The tool of a target.

    Raises
    ------
    BackendError
        Its backend has none that can be asked.
    """
    backend = open_backend(target, store=store, sink=lambda event: None)
    try:
        tool: Orchestrator | None = getattr(backend, "orchestrator", None)
        if tool is None:
            raise BackendError(f"runs of backend {target.backend} cannot be asked about from here")
        yield tool
    finally:
        backend.close()


def opened_for(row: RunRow, configuration: Configuration) -> contextlib.AbstractContextManager[Orchestrator]:
    """The tool that does a run."""
    target = configuration.target(row.target)
    return opened(target, configuration.store_address(target))


class ToolRun:
    """The records of such a run, in the bucket.

    Parameters
    ----------
    run
        Its id.
    store
        The store, as this machine follows it.
    """

    def __init__(self, run: str, store: Store) -> None:
        self.id = run
        self.store = store
        self._direct = open_direct(store.name, durability=store.durability, verify=store.verify)

    @classmethod
    def of(cls, row: RunRow, configuration: Configuration) -> ToolRun:
        """That of a row of the catalog."""
        return cls(row.id, open_store(row.store, **configuration.store_options))

    def row(self) -> RunRow:
        """The record of the run, as the bucket has it now."""
        self.store.bring_run(self.id)
        content = self.store.read_record(self.id, "run.json")
        assert content is not None  # whoever submitted the run has written it, or its first pod
        return from_json(RunRow, content)

    @property
    def order(self) -> Order:
        """What was exported."""
        return from_json(Order, bytes(self.store.read(self._digest)))

    @property
    def _digest(self) -> str:
        digest: str = self.row().source[ORCHESTRATOR]["order"]
        return digest

    @property
    def _step(self) -> OneStep:
        return OneStep(self.order, self._digest, self._direct, self.id)

    def reopen(self) -> None:
        """Record that it goes on."""
        self._step.begin(None)

    def stopped_by(self) -> str | None:
        """Who has asked for its end by ``upshift cancel``; None: nobody."""
        content = self._direct.read_record(self.id, _STOPPED)
        said = {} if content is None else json.loads(content)
        return f"{said['user']} on {said['host']}" if said else None

    def stop(self, tool: Orchestrator) -> None:
        """Have the tool end it; it is on record who asked for that."""
        who = {"user": user_name(), "host": socket.gethostname()}
        self._direct.write_record(self.id, _STOPPED, json.dumps(who).encode())
        tool.stop(self.id)

    def record_end(self, standing: Standing, tool: Orchestrator) -> None:
        """Record how it ended, where its own pods have not, or do not know why."""
        status = self.row().status
        if status in UNFINISHED or (standing.phase == FAILED and status == CANCELLED):
            self._step.end(self._lost(standing, tool))

    def _lost(self, standing: Standing, tool: Orchestrator) -> Failure | None:
        """What became of tasks that have left no result."""
        if standing.phase == CANCELLED:
            by = self.stopped_by()
            whose = f"{by} cancelled it" if by else standing.message or f"it was terminated in {tool.title}"
            return Failure(reason=CANCELLED, message=whose)
        if standing.phase != FAILED:
            return None
        said = [f"{name}: {text}" for name, text in _words(tool, self.id)]
        why = "; ".join(said) or standing.message or "its pod never started, or has gone without a result"
        return Failure(reason="infrastructure", message=f"{tool.title}: {why}")


def _words(tool: Orchestrator, run: str) -> Iterable[tuple[str, str]]:
    try:
        return tool.words(run)
    except NotNow:
        return ()


def deleted(tool: Orchestrator) -> Standing:
    """How a run stands that the tool has forgotten."""
    return Standing(phase=CANCELLED, message=f"it was deleted in {tool.title}")


def settle(rows: Iterable[RunRow], catalog: Catalog, configuration: Configuration) -> None:
    """Of runs that tools do and that are not over on record, record the end where the tool knows it."""
    away: set[str] = set()  # targets that are not asked a second time
    for row in rows:
        if not is_tools(row) or row.status not in UNFINISHED or row.target in away:
            continue
        try:
            run = ToolRun.of(row, configuration)
            with opened_for(row, configuration) as tool:
                try:
                    standing = tool.standing(row.id)
                except Gone:
                    if "at" not in row.source[ORCHESTRATOR]:  # it may be one of another Kubeflow
                        continue
                    standing = deleted(tool)
                if standing.over:
                    run.record_end(standing, tool)
                    bring_in(row.id, catalog, run.store)
        except (UpshiftError, NotNow):  # whoever looks next asks again
            away.add(row.target)


def cancel(row: RunRow, configuration: Configuration) -> str:
    """Have the tool end a run. Gives a sentence for the user."""
    with opened_for(row, configuration) as tool:
        try:
            ToolRun.of(row, configuration).stop(tool)
        except Gone:
            raise _unknown(row, tool) from None
        except NotNow as error:
            raise BackendError(str(error), fix="Try again when it answers.") from None
        return f"run {row.id} is being terminated in {tool.title}"


def _unknown(row: RunRow, tool: Orchestrator) -> BackendError:
    where = row.source[ORCHESTRATOR].get("at")
    return BackendError(
        f"{tool.title} knows no run {row.id}",
        why="It was deleted there." if where else "It was deleted there, or is one of another installation.",
        fix=f"See what is kept of it: upshift show {row.id}",
    )


def confirm_known(row: RunRow, tool: Orchestrator) -> Standing:
    """How a run is in its tool, which has to know it and to answer. Raises ``BackendError``."""
    try:
        return tool.standing(row.id)
    except Gone:
        raise _unknown(row, tool) from None
    except NotNow as error:
        raise BackendError(str(error), fix="Try again when it answers.") from None


@attrs.define(eq=False)
class _Tries:
    """The attempts of a task, as far as they have been shown."""

    number: int = 0  # of the last one
    over: bool = True  # whether that has ended
    past: int = 0  # those up to this one are of before the run was retried
    log: LogReader | None = None


class RunFollower:
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
