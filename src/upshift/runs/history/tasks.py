"""A task of a run; its records are read when first asked for."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from upshift.errors import BlobDamaged, BlobMissing, NotFound, UsageError, user_location
from upshift.model.checks import shown
from upshift.model.graph import STATES
from upshift.model.plain import flat, is_opaque
from upshift.model.spec.task import UNCACHED, Artifact, Failure, TaskId, Value
from upshift.model.spec.telemetry import MetricValue
from upshift.runs.catalog.rows import UNFINISHED, TaskRow
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.outputs import (
    Artifacts,
    DataArtifact,
    Outputs,
    Placed,
    found,
    inputs_of,
    set_by_step,
    tasks_after,
    tasks_before,
)
from upshift.runs.history.records import RunRecords
from upshift.runs.history.values import Drawn, Rows, last_values, named
from upshift.runtime.storage.artifacts import described, items_of
from upshift.runtime.storage.manifest import State


class Maker(Drawn, Placed, abc.ABC):
    """A step or a task: it has outputs, and so a value."""

    _records: RunRecords

    @property
    @abc.abstractmethod
    def outputs(self) -> Outputs:
        """The outputs by name."""

    @functools.cached_property
    def output(self) -> object:
        """The value; a tuple of several outputs; of a mapped step a list, in order.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        if self._records.graph.flow is not None:  # beside its state, it may have said how the flow goes on
            return self.outputs["output"]
        values = tuple(self.outputs.values())
        return values[0] if len(values) == 1 else values


class Metadata(NamedTuple):
    """Something that is known of a task."""

    name: str
    value: str
    created_at: datetime | None
    type: str
    task: Task


class Task(Maker):
    """One instance of a step.

    Parameters
    ----------
    row
        Its record; or where it is: ``"Training/20261123-160338-9g7y/train/3"``.
    records
        The run that it is of.
    node
        Of a step with ``@parallel`` the node whose artifacts and log it has; None: those of the whole.

    Raises
    ------
    NotFound
        There is no such task.
    """

    row: TaskRow
    node: int | None

    def __init__(
        self, row: TaskRow | str, records: RunRecords | None = None, node: int | None = None
    ) -> None:
        if isinstance(row, str):
            task: Task = found(row, "task")
            row, records, node = task.row, task._records, task.node
        assert records is not None
        self.row = row
        self.node = node
        self._records = records
        self.index = row.task.index
        self.status = row.status
        self.cached = row.cached
        self.cache_reason = row.cache_reason

    @functools.cached_property
    def attempts(self) -> list[Attempt]:
        """Its attempts, in order. If its result was reused, those that led to it come last.

        These are of an earlier run (:attr:`Attempt.run`). Where nothing is known of them any more, there
        are none.
        """
        return [Attempt(row, self._records) for row in self._records.attempts(self.row)]

    @property
    def why(self) -> str:
        """Why it ran, was reused or skipped; empty where a flow that reuses nothing did not ask for it."""
        uncached = self.cache_reason == UNCACHED and self._records.graph.reuses_nothing
        return "" if uncached else self.cache_reason or ""

    @property
    def origin(self) -> TaskId | None:
        """The task, of an earlier run, whose result was reused; None if this task has its own."""
        if self.row.origin is None:
            return None
        run, step, index, _ = self.row.origin
        return TaskId(run=run, step=step, index=index)

    @property
    def id(self) -> str:
        """The id of the task in its step: its index, ``"0"`` without one, ``"1.0"`` in two foreaches."""
        inside = self.row.task.step.removeprefix(self._step).lstrip(".")
        index = None if self.index is None else str(self.index)
        identity = ".".join(part for part in (inside, index) if part) or "0"
        return f"{identity}_node_{self.node}" if self.node else identity

    def by_node(self) -> list[Task]:
        """The same task for each node of a step with ``@parallel``; of any other step itself."""
        launch = self._records.graph.definition(self._records.nodes[self.row.task.step]).launch
        if launch is None or launch.launcher != "parallel" or self.node is not None:
            return [self]
        return [Task(self.row, self._records, node) for node in range(launch.processes)]

    @property
    def pathspec(self) -> str:
        """``Training/20261123-160338-9g7y/train/3``."""
        run = self._records.row
        return f"{run.pipeline}/{run.id}/{self._step}/{self.id}"

    @property
    def parent(self) -> Any:
        """The step that it is a task of: a :class:`upshift.runs.history.steps.Step`."""
        return self._records.run[self._step]

    @property
    def parent_tasks(self) -> Iterator[Task]:
        """The tasks that it goes on from; of a step that joins all that it joins."""
        rows = tasks_before(self.row, self._records)
        return (task for row in rows for task in Task(row, self._records).by_node())

    @property
    def child_tasks(self) -> Iterator[Task]:
        """The tasks that go on from it."""
        rows = tasks_after(self.row, self._records)
        return (task for row in rows for task in Task(row, self._records).by_node())

    @property
    def parent_task_pathspecs(self) -> Iterator[str]:
        """The places of :attr:`parent_tasks`."""
        return (task.pathspec for task in self.parent_tasks)

    @property
    def child_task_pathspecs(self) -> Iterator[str]:
        """The places of :attr:`child_tasks`."""
        return (task.pathspec for task in self.child_tasks)

    @property
    def current_attempt(self) -> int:
        """The number of its last attempt, from 0 as in Metaflow."""
        return max(0, len(self.attempts) - 1)

    @property
    def metadata_dict(self) -> dict[str, str]:
        """What is known of its last attempt besides: where it ran, and as whose."""
        if not self.attempts:
            return {}
        last, run = self.attempts[-1], self._records.row
        known = {
            "attempt": self.current_attempt,
            "attempt_ok": last.status == "completed",
            "user": run.user,
            "target": last.target,
            "backend": last.backend,
            "node": last.node,
            "image": last.image,
            "python_version": last.seen and last.seen.details.get("python"),
            "origin-run-id": self.origin and self.origin.run,
        }
        return {name: str(value) for name, value in known.items() if value is not None}

    @property
    def metadata(self) -> list[Metadata]:
        """:attr:`metadata_dict`, as a list."""
        at = self.created_at
        return [Metadata(name, value, at, name, self) for name, value in self.metadata_dict.items()]

    @property
    def created_at(self) -> datetime | None:
        """When it first started, in UTC; None: it has not."""
        return self.attempts[0].started if self.attempts else None

    @property
    def finished_at(self) -> datetime | None:
        """When it ended, in UTC; None: it is not over."""
        return self.attempts[-1].ended if self.finished and self.attempts else None

    @property
    def finished(self) -> bool:
        """Whether the task is over, whatever its outcome."""
        return self.status not in UNFINISHED

    @property
    def successful(self) -> bool:
        """Whether it is done."""
        return self.status == "completed"

    @property
    def exception(self) -> Failure | None:
        """Why its last attempt failed: ``message``, ``traceback``, ``where``; None: it did not."""
        return self.attempts[-1].error if self.attempts else None

    @property
    def stdout(self) -> str:
        """What its last attempt printed, to whichever of the two streams."""
        if not self.attempts:
            return ""
        last = self.attempts[-1]
        return last.log if self.node is None or len(last.ranks) < 2 else last.ranks[self.node].log

    @property
    def stderr(self) -> str:
        """Nothing: what is printed there is in :attr:`stdout`, in the order in which it was printed."""
        return ""

    def loglines(self, stream: str, as_unicode: bool = True) -> Iterator[tuple[None, Any]]:
        """The lines of ``"stdout"`` or ``"stderr"``, each with None for its time, which logs do not have.

        Raises
        ------
        UsageError
            There is no such stream.
        """
        if stream not in ("stdout", "stderr"):
            raise UsageError(
                f"there is no stream {shown(stream)}", where=user_location(), fix='Use "stdout" or "stderr".'
            )
        text: str = getattr(self, stream)
        return ((None, line if as_unicode else line.encode()) for line in text.splitlines())

    @property
    def data(self) -> State:
        """The artifacts that it left, as attributes, each loaded when it is touched.

        Of a step that is a function, its outputs by name: ``task.data.output``.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        if self.in_flow:
            state = self.outputs["output"]
            assert isinstance(state, State)
            return state
        _ = self.outputs
        return State(artifacts=self.artifacts, load=self._records.load)

    def __getitem__(self, name: str) -> DataArtifact:
        """An artifact: ``task["score"].data``."""
        return self.artifacts.named(name)

    def __iter__(self) -> Iterator[DataArtifact]:
        return iter([self[name] for name in self.artifacts.visible])

    def __contains__(self, name: object) -> bool:
        return name in self.artifacts.visible

    @functools.cached_property
    def artifacts(self) -> Artifacts:
        """The outputs as they were saved, by name and in order; empty if the task did not complete.

        Of a flow ``task.artifacts.score.data`` is the value of one of its artifacts.
        """
        result = self._records.result(self.row)
        saved = {} if result is None else {n: result.outputs[n] for n in self._order(result.outputs)}
        if self.node is not None and STATES in saved:
            saved = {"output": items_of(saved[STATES], self._records.store)[self.node]}
        return Artifacts(saved, self)

    @functools.cached_property
    def made(self) -> Mapping[str, Artifact]:
        """The outputs as they were saved, by name; of a flow the artifacts that its step has set."""
        saved = self.artifacts
        if not self.in_flow or not saved:
            return saved
        try:
            return set_by_step(saved["output"], self.input_artifacts, self._records.held)
        except (BlobMissing, BlobDamaged):  # the list is gone, and the run is told of all the same
            return {}

    @property
    def _step(self) -> str:
        node = self.row.task.step
        return self._records.nodes[node].step if self.in_flow else node

    @property
    def in_flow(self) -> bool:
        """Whether the task belongs to a flow, whose steps pass on their states."""
        return self._records.graph.flow is not None

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The outputs by name.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        if self.status != "completed" or not self.artifacts:
            failure = self.attempts[-1].error if self.status == "failed" and self.attempts else None
            raise no_output(self._name, self.status, failure)
        load = self._records.load
        return Outputs(self._name, {n: functools.partial(load, a) for n, a in self.artifacts.items()})

    @functools.cached_property
    def inputs(self) -> Outputs:
        """The inputs by parameter, each loaded when it is first asked for.

        What a step before it has not made, or nobody knows any more, is not among them.
        """
        load, saved = self._records.load, self.input_artifacts
        return Outputs(self._name, {n: functools.partial(load, v) for n, v in saved.items()}, "input")

    @functools.cached_property
    def input_artifacts(self) -> dict[str, Value]:
        """The inputs as they were saved, by parameter."""
        return inputs_of(self.row, self._records)

    @functools.cached_property
    def flat_inputs(self) -> dict[str, Any]:
        """The inputs as plain data by dotted name, as :attr:`Run.flat_params`; nothing is loaded."""
        plain = {name: described(value) for name, value in self.input_artifacts.items()}
        return {key: one for name, value in plain.items() for key, one in flat(value, name).items()}

    @property
    def plain_inputs(self) -> dict[str, Any]:
        """The plain data in :attr:`flat_inputs`: what distinguishes the tasks of a sweep."""
        return {name: value for name, value in self.flat_inputs.items() if not is_opaque(value)}

    @property
    def code(self) -> Mapping[str, str]:
        """The code that its step reached: name to digest."""
        return self._records.graph.definition(self._records.nodes[self.row.task.step]).code

    @property
    def metrics(self) -> dict[str, MetricValue]:
        """The last value of each metric that it logged. Its curves are in ``attempts[-1].metrics``."""
        return last_values(self.attempts[-1].metric_summaries) if self.attempts else {}

    @property
    def seconds(self) -> float | None:
        """How long its last attempt took; None: it is not over."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.started is None or last.ended is None:
            return None
        return (last.ended - last.started).total_seconds()

    @property
    def _name(self) -> str:
        return f"{'step' if self.index is None else 'task'} {str(self.row.task)!r}"

    def _order(self, outputs: Mapping[str, Artifact]) -> list[str]:
        known = self._records.outputs(self.row.task.step)
        return [name for name in known if name in outputs] or list(outputs)

    def __repr__(self) -> str:
        reused = " (reused)" if self.cached else ""
        return f"<Task {self.row.task}: {self.status}{reused}>"


class TaskList(Rows[Task]):
    """The tasks of a step: a list, and a table with a row for each."""

    def __call__(self) -> Iterator[Task]:
        return iter(self)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each task; ``inputs.NAME`` are plain inputs, ``metrics.NAME`` last values."""
        return [
            {
                "task": str(task.row.task),
                "index": task.index,
                "status": task.status,
                "cached": task.cached,
                "seconds": task.seconds,
                **named("inputs", task.plain_inputs),
                **named("metrics", task.metrics),
            }
            for task in self
        ]


def no_output(what: str, status: str, failure: Failure | None = None) -> NotFound:
    """Why something that is looked for by its output has none."""
    if status == "skipped":
        return NotFound(
            f"{what} has no output: it was skipped",
            why="Its condition, or that of a step it needs, was false.",
        )
    if status in UNFINISHED:
        return NotFound(f"{what} has no output yet: it is {status}")
    if status == "completed":
        return NotFound(f"{what} completed, but its result is neither in the catalog nor in the store")
    verb = "it failed" if status == "failed" else f"it was {status}"
    why, where, fix = (failure.message, failure.where, failure.fix) if failure else (None, None, None)
    return NotFound(f"{what} has no output: {verb}", where=where, why=why, fix=fix)
