"""Steps, tasks and attempts of a run, as users look at them; each reads what it shows when asked."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from upshift.errors import NotFound, suggestion
from upshift.model.plain import flat, is_opaque
from upshift.model.spec.artifact import Artifact, Value
from upshift.model.spec.launch import Launch
from upshift.model.spec.task import Failure, TaskId
from upshift.model.spec.telemetry import MetricValue
from upshift.runs.catalog import TaskRow
from upshift.runs.history_attempts import Attempt
from upshift.runs.history_records import UNFINISHED, RunRecords
from upshift.runs.inputs import inputs_of
from upshift.runs.measures import best_of, known_mode, last_values
from upshift.runs.tabular import Drawn, Rows, named
from upshift.runtime.storage.artifacts import described


class _Maker(Drawn, abc.ABC):
    """Has outputs, and so a value."""

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
        values = tuple(self.outputs.values())
        return values[0] if len(values) == 1 else values


class Step(_Maker):
    """A step of a run. ``len(step)`` is its number of tasks so far."""

    def __init__(self, name: str, records: RunRecords) -> None:
        self.name = name
        self._records = records

    @functools.cached_property
    def status(self) -> str:
        """As :func:`upshift.runs.history_records.step_status` says."""
        return self._records.status(self.name)

    @functools.cached_property
    def tasks(self) -> TaskList:
        """The tasks, in the order of their indices; one if the step is not mapped."""
        return TaskList(Task(row, self._records) for row in self._records.tasks(self.name))

    @functools.cached_property
    def hindrance(self) -> str:
        """What kept tasks of it from running: ``train failed``, ``the run was cancelled``."""
        return self._records.hindrance(self.name)

    @property
    def metrics(self) -> dict[str, Any]:
        """The last value of each metric that it logged.

        Of a mapped step a list of these, in the order of its tasks: None of a task that did not log it.
        """
        return self._records.metrics(self.name)

    @property
    def reused(self) -> int:
        """How many of its tasks have the result of an earlier run."""
        count = self._records.counts.get(self.name)
        return count["cached"] if count else 0

    @property
    def seconds(self) -> float | None:
        """From the start of its first task to the end of its last; None: nothing has run, or it goes on."""
        ran = [task.attempts for task in self.tasks if not task.cached and task.attempts]
        began = [attempts[0].started for attempts in ran]
        ended = [attempts[-1].ended for attempts in ran]
        starts = [moment for moment in began if moment is not None]
        ends = [moment for moment in ended if moment is not None]
        if not starts or len(ends) < len(ended) or self.status in UNFINISHED:
            return None
        return (max(ends) - min(starts)).total_seconds()

    def best(self, metric: str, mode: str | None = None) -> Task:
        """The task of a mapped step whose last value of a metric is the best.

        Parameters
        ----------
        metric
            Its name.
        mode
            ``"max"`` or ``"min"``; default: by the name, as for ``accuracy`` and ``loss``.

        Raises
        ------
        NotFound
            No task logged a number by this name.
        UsageError
            The name does not tell which is the best.
        """
        values = [task.metrics.get(metric) for task in self.tasks]
        at = best_of(values, known_mode(metric, mode))
        if at is None:
            known = {name for task in self.tasks for name in task.metrics}
            raise NotFound(
                f"no task of step {self.name!r} logged a number {metric!r}", fix=suggestion(metric, known)
            )
        return self.tasks[at]

    @property
    def mapped(self) -> bool:
        """Whether the step has one task for each item."""
        return self._records.nodes[self.name].mapped

    @property
    def launch(self) -> Launch | None:
        """How it is started as several processes; None: it is an ordinary step, of one."""
        return self._records.graph.definition(self._records.nodes[self.name]).launch

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The outputs by name; of a mapped step lists, in order.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        names = self._records.outputs(self.name)
        if not self.mapped:
            if not self.tasks:
                raise _no_output(f"step {self.name!r}", self.status)
            return self.tasks[0].outputs
        if self.status in UNFINISHED or (not self.tasks and self.status != "completed"):
            raise _no_output(f"step {self.name!r}", self.status)
        each = [task.outputs for task in self.tasks]
        return Outputs(
            f"step {self.name!r}",
            {name: functools.partial(_column, each, name) for name in names},
        )

    def __len__(self) -> int:
        count = self._records.counts.get(self.name)
        return sum(tasks for status, tasks in count.items() if status != "cached") if count else 0

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Step {self.name}: {self.status}, {len(self)} task{'' if len(self) == 1 else 's'}>"


class Task(_Maker):
    """One instance of a step."""

    def __init__(self, row: TaskRow, records: RunRecords) -> None:
        self.row = row
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
    def origin(self) -> TaskId | None:
        """The task, of an earlier run, whose result was reused; None if this task has its own."""
        if self.row.origin is None:
            return None
        run, step, index, _ = self.row.origin
        return TaskId(run=run, step=step, index=index)

    @functools.cached_property
    def artifacts(self) -> dict[str, Artifact]:
        """The outputs as they were saved, by name and in order; empty if the task did not complete."""
        result = self._records.result(self.row)
        if result is None:
            return {}
        return {name: result.outputs[name] for name in self._order(result.outputs)}

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
            raise _no_output(self._name, self.status, failure)
        load = self._records.load
        return Outputs(self._name, {n: functools.partial(load, a) for n, a in self.artifacts.items()})

    @functools.cached_property
    def inputs(self) -> Outputs:
        """What it was given, by parameter, each loaded when it is first asked for.

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
        """Those of :attr:`flat_inputs` that are plain data: what tells tasks of a sweep apart."""
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


class StepList(Rows[Step]):
    """The steps of a run: a list, and a table with a row for each."""

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each step; ``seconds`` are those of :attr:`Step.seconds`."""
        return [
            {
                "step": step.name,
                "status": step.status,
                "tasks": len(step),
                "reused": step.reused or None,
                "seconds": step.seconds,
            }
            for step in self
        ]


class TaskList(Rows[Task]):
    """The tasks of a step: a list, and a table with a row for each."""

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


class Outputs(Mapping[str, object]):
    """Values by name, in order, each loaded when it is first asked for."""

    def __init__(self, owner: str, loaders: Mapping[str, Callable[[], object]], noun: str = "output") -> None:
        self._owner = owner
        self._loaders = loaders
        self._noun = noun
        self._values: dict[str, object] = {}

    def __getitem__(self, name: str) -> object:
        if name not in self._loaders:
            raise NotFound(f"{self._owner} has no {self._noun} {name!r}", fix=suggestion(name, self._loaders))
        if name not in self._values:
            self._values[name] = self._loaders[name]()
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def get(self, name: str, default: Any = None) -> Any:
        """The value of this name, or ``default``."""
        return self[name] if name in self._loaders else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)

    def __repr__(self) -> str:
        return f"<{self._noun}s of {self._owner}: {', '.join(self)}>"


def _column(each: list[Outputs], name: str) -> list[object]:
    return [outputs[name] for outputs in each]


def _no_output(what: str, status: str, failure: Failure | None = None) -> NotFound:
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
