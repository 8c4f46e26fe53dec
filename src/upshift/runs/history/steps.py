"""A step of a run; its records are read when first asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import upshift
from upshift.errors import NotFound, suggestion
from upshift.model.checks import shown
from upshift.model.spec.hardware import Launch
from upshift.runs.catalog.rows import UNFINISHED
from upshift.runs.history.outputs import Outputs, nodes_after, nodes_before
from upshift.runs.history.records import RunRecords
from upshift.runs.history.tasks import Maker, Task, TaskList, no_output
from upshift.runs.history.values import Rows, best_of, known_mode


class Step(Maker):
    """A step of a run. ``len(step)`` is its number of tasks so far.

    Parameters
    ----------
    name
        What it is called.
    records
        The run that it is a step of.
    nodes
        Of a step that a foreach or a loop of a flow has made several times: each by its name.
    """

    def __init__(self, name: str, records: RunRecords, nodes: Sequence[str] = ()) -> None:
        self.name = self.id = name
        self._records = records
        self._nodes = nodes or (name,)
        self.pathspec = f"{records.row.pipeline}/{records.row.id}/{name}"

    @functools.cached_property
    def status(self) -> str:
        """As :func:`upshift.runs.history.records.step_status` says."""
        return self._records.status(*self._nodes)

    @functools.cached_property
    def tasks(self) -> TaskList:
        """The tasks, in the order of their indices; one if the step is not mapped."""
        return TaskList(Task(row, self._records) for name in self._nodes for row in self._records.tasks(name))

    @property
    def task(self) -> Task | None:
        """Its first task; None: there is none yet."""
        return next(iter(self), None)

    @property
    def control_task(self) -> Task | None:
        """The task of node 0 of a step with ``@parallel``; None if it has none."""
        return next(self.control_tasks(), None)

    def control_tasks(self) -> Iterator[Task]:
        """The tasks of node 0 of a step with ``@parallel``: several, if a foreach repeats the step."""
        return (task for task in self if task.node == 0)

    @property
    def parent(self) -> upshift.Run[Any]:
        """The run that it is a step of."""
        return self._records.run

    @property
    def parent_steps(self) -> Iterator[Step]:
        """The steps that it goes on from, or waits for."""
        return self._beside(before for node in self._nodes for before in nodes_before(node, self._records))

    @property
    def child_steps(self) -> Iterator[Step]:
        """The steps that go on from it, or wait for it."""
        return self._beside(after for node in self._nodes for after in nodes_after(node, self._records))

    def _beside(self, nodes: Iterable[str]) -> Iterator[Step]:
        named = {node: name for name, group in self._records.groups.items() for node in group}
        return (self.parent[name] for name in dict.fromkeys(named[node] for node in nodes))

    @property
    def created_at(self) -> datetime | None:
        """When its first task started, in UTC; None: none has."""
        return min((task.created_at for task in self.tasks if task.created_at is not None), default=None)

    @property
    def finished_at(self) -> datetime | None:
        """When its last task ended, in UTC; None: not all are over."""
        times = [task.finished_at for task in self.tasks]
        return max((time for time in times if time is not None), default=None) if all(times) else None

    @functools.cached_property
    def hindrance(self) -> str:
        """What kept tasks of it from running: ``train failed``, ``the run was cancelled``."""
        return self._records.hindrance(self._nodes[0])

    @property
    def metrics(self) -> dict[str, Any]:
        """The last value of each metric that it logged.

        Of a mapped step a list of these, in the order of its tasks: None of a task that did not log it.
        """
        if len(self._nodes) > 1:
            names = dict.fromkeys(name for task in self.tasks for name in task.metrics)
            return {name: [task.metrics.get(name) for task in self.tasks] for name in names}
        return self._records.metrics(self._nodes[0])

    @property
    def reused(self) -> int:
        """How many of its tasks have the result of an earlier run."""
        counts = self._records.counts
        return sum(counts[name]["cached"] for name in self._nodes if name in counts)

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
        return len(self._nodes) > 1 or self._records.nodes[self._nodes[0]].mapped

    @property
    def launch(self) -> Launch | None:
        """How it is started as several processes; None: it is an ordinary step, of one."""
        return self._records.graph.definition(self._records.nodes[self._nodes[0]]).launch

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The outputs by name; of a mapped step lists, in order.

        Raises
        ------
        NotFound
            It failed, was skipped or is not over.
        """
        names = self._records.outputs(self._nodes[0])
        if not self.mapped:
            if not self.tasks:
                raise no_output(f"step {self.name!r}", self.status)
            return self.tasks[0].outputs
        if self.status in UNFINISHED or (not self.tasks and self.status != "completed"):
            raise no_output(f"step {self.name!r}", self.status)
        each = [task.outputs for task in self.tasks]
        return Outputs(
            f"step {self.name!r}",
            {name: functools.partial(_column, each, name) for name in names},
        )

    def __len__(self) -> int:
        counts = [self._records.counts[name] for name in self._nodes if name in self._records.counts]
        return sum(tasks for count in counts for status, tasks in count.items() if status != "cached")

    def __iter__(self) -> Iterator[Task]:
        """Its tasks; of a step with ``@parallel`` one for each node, ``step["0_node_1"]`` among them."""
        return (node for task in self.tasks for node in task.by_node())

    def __getitem__(self, task: str) -> Task:
        """The task of this id, such as ``"3"``."""
        for candidate in self:
            if candidate.id == str(task):
                return candidate
        raise NotFound(
            f"step {self.name!r} has no task {shown(task)}",
            fix=suggestion(str(task), [candidate.id for candidate in self]),
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Step {self.name}: {self.status}, {len(self)} task{'' if len(self) == 1 else 's'}>"


class StepList(Rows[Step]):
    """The steps of a run: a list, and a table with a row for each; called, it is ``iter(run)``."""

    def __init__(self, steps: Iterable[Step], run: upshift.Run[Any]) -> None:
        super().__init__(steps)
        self._run = run

    def __call__(self) -> Iterator[Step]:
        return iter(self._run)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each step; ``seconds`` are those of :attr:`Step.seconds`."""
        return [
            {
                "step": step.name,
                "status": step.status,
                "tasks": len(step),
                "reused": step.reused,
                "seconds": step.seconds,
            }
            for step in self
        ]


def _column(each: list[Outputs], name: str) -> list[object]:
    return [outputs[name] for outputs in each]
