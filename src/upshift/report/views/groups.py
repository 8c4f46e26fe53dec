"""Tasks that are shown together: those of one step; in very large runs, of all calls of one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

import attrs

from upshift.model.graph import Graph, StepDefinition, needs
from upshift.model.spec.hardware import Hardware
from upshift.report.human import TIMES
from upshift.report.views.records import RECORDS, side_by_side
from upshift.report.views.verdicts import Verdicts
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.records import step_status
from upshift.runs.history.runs import Run
from upshift.runs.history.steps import Step
from upshift.runs.history.tasks import Task

Rows = Sequence[tuple[str, str, str, str]]
MOST_STEPS = 150
"""Steps that are told one by one; of more, those that call the same function are told together."""


@attrs.define(eq=False, slots=False)
class Group:
    """The tasks of one step, or of all calls of one function, shown together."""

    number: int
    name: str  # of the step, or of the function that all of the steps call
    steps: Sequence[Step]
    definition: StepDefinition  # what they call
    run: Run

    @cached_property
    def tasks(self) -> list[Task]:
        """All tasks, in order."""
        return [task for step in self.steps for task in step.tasks]

    @property
    def anchor(self) -> str:
        """The anchor of the group on the page."""
        return f"step-{self.number}"

    @property
    def many(self) -> bool:
        """Whether the group is known to be more than one plain task."""
        return len(self.steps) > 1 or self.steps[0].mapped

    @property
    def title(self) -> str:
        """The name of the group, and its number of tasks."""
        return f"{self.name} {TIMES}{len(self.tasks):,}" if self.many and self.tasks else self.name

    @cached_property
    def statuses(self) -> Mapping[str, int]:
        """How many tasks have which status, ``reused`` among them."""
        return Counter("reused" if task.cached else task.status for task in self.tasks)

    @cached_property
    def status(self) -> str:
        """The status of the group: that of its tasks together."""
        if len(self.steps) == 1:
            status = self.steps[0].status
        else:
            counts = Counter(task.status for task in self.tasks)
            counts.update(step.status for step in self.steps if not step.tasks)
            status = step_status(counts, self.run.status)
        return "reused" if status == "completed" and set(self.statuses) == {"reused"} else status

    @property
    def word(self) -> str:
        """The status of the group as people read it."""
        return self.run.row.status if self.run.interrupted and self.status == "cancelled" else self.status

    @cached_property
    def attempts(self) -> list[Attempt]:
        """The last attempt of each task that has any; of a reused one that which made the result."""
        return [task.attempts[-1] for task in self.tasks if task.attempts]

    @cached_property
    def records(self) -> Rows:
        """The four records of all of them together, as rows of texts."""
        return records_of(self.attempts)

    @cached_property
    def verdict(self) -> str | None:
        """What their records say together, in a line; None: nothing."""
        verdicts = Verdicts()
        for attempt in self.attempts:
            verdicts.add(str(attempt.row.task), four_records(attempt))
        return verdicts.line()

    @cached_property
    def seconds(self) -> list[float]:
        """How long each of these took that are over."""
        return [s for attempt in self.attempts if (s := took(attempt)) is not None]


def records_of(attempts: Sequence[Attempt]) -> Rows:
    """The records of one attempt, or of several together, as rows of texts."""
    return side_by_side([four_records(attempt) for attempt in attempts])


def four_records(attempt: Attempt) -> Mapping[str, Hardware | None]:
    """What was asked, granted, seen and used, by these names."""
    return {name: getattr(attempt, name) for name in RECORDS}


def took(attempt: Attempt) -> float | None:
    """How many seconds an attempt took; None: it is not over."""
    if attempt.started is None or attempt.ended is None:
        return None
    return (attempt.ended - attempt.started).total_seconds()


def since(moment: datetime, run: Run) -> float:
    """Seconds from the start of the run."""
    return float((moment - run.started).total_seconds())


def grouped(run: Run, graph: Graph) -> list[Group]:
    """The groups of a run, each after those that it needs, as far as that can be."""
    together: dict[str, list[Step]] = {}
    apart = len(run.steps) <= MOST_STEPS
    for step, node in zip(run.steps, graph.nodes, strict=True):
        together.setdefault(node.name if apart else node.step, []).append(step)
    definitions = {node.name: graph.definition(node) for node in graph.nodes}
    return [
        Group(number, name, steps, definitions[steps[0].name], run)
        for number, (name, steps) in enumerate(together.items())
    ]


def connections(groups: Sequence[Group], graph: Graph) -> dict[str, list[str]] | None:
    """For each group those that it needs, by name; None: they need each other in turn."""
    of = {step.name: group.name for group in groups for step in group.steps}
    found: dict[str, dict[str, None]] = {group.name: {} for group in groups}
    for node in graph.nodes:
        for needed in sorted(needs(node)):
            if of[needed] != of[node.name]:
                found[of[node.name]][of[needed]] = None
    return _in_order({name: list(names) for name, names in found.items()})


def _in_order(needed: Mapping[str, Sequence[str]]) -> dict[str, list[str]] | None:
    """The same mapping, each name after those that it needs; None if they form a circle."""
    left = {name: len(names) for name, names in needed.items()}
    users: dict[str, list[str]] = {}
    for name, names in needed.items():
        for other in names:
            users.setdefault(other, []).append(name)
    ready = [name for name, number in left.items() if not number]
    result: dict[str, list[str]] = {}
    for name in ready:  # which grows
        result[name] = list(needed[name])
        for user in users.get(name, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    return result if len(result) == len(needed) else None
