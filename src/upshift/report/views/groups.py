"""Tasks that are shown together, and when they ran.

A group has the tasks of one step; in very large runs, of all calls of one function. Its timeline has bars on
one time axis, in lanes where tasks ran at once, or a profile of many.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property

import attrs

from upshift.model.graph import Graph, StepDefinition, needs
from upshift.model.spec.hardware import Hardware
from upshift.report.human import TIMES, clock, count, duration, span
from upshift.report.views.records import RECORDS, Verdicts, side_by_side
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


def took(whole: Attempt | Run) -> float | None:
    """How many seconds an attempt, or a run, took; None: it is not over."""
    if whole.started is None or whole.ended is None:
        return None
    return (whole.ended - whole.started).total_seconds()


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


_MOST_BARS = 60
"""Tries of a step that are bars; more become a profile of how many ran at once."""
_BINS = 400
_TICKS = 6
_ROUND = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between two marks."""


@attrs.frozen(kw_only=True)
class Bar:
    """One try of a task, from its start to its end in seconds since the run started; ``waited`` before it."""

    label: str
    status: str
    start: float
    end: float
    waited: float = 0.0
    lane: int = 0

    @property
    def told(self) -> str:
        """The bar in words."""
        waits = f", waited {duration(self.waited)} for devices" if self.waited else ""
        took = duration(self.end - self.start)
        return f"{self.label}: {self.status}, {took} from {clock(self.start)}{waits}"


@attrs.frozen(kw_only=True)
class Row:
    """A step. Of many tries ``profile`` has how many ran at once, as a share of the most, in equal parts."""

    anchor: str
    title: str
    status: str
    note: str
    bars: Sequence[Bar]
    lanes: int
    profile: Sequence[float] = ()
    failures: Sequence[float] = ()


@attrs.frozen(kw_only=True)
class Timeline:
    """Rows from the start of the run to ``end``, in seconds, and where the axis has marks."""

    end: float
    marks: Sequence[float]
    rows: Sequence[Row]


def timeline(run: Run, groups: Sequence[Group], now: datetime) -> Timeline:
    """The rows; what still runs ends ``now``."""
    bars = {group.number: _bars(group, run, now) for group in groups}
    end = max([_end(run, now), *(bar.end for found in bars.values() for bar in found)])
    rows = [_row(group, bars[group.number], end) for group in groups]
    return Timeline(end=end, marks=marks(end), rows=rows)


def marks(end: float, most: int = _TICKS) -> list[float]:
    """Round times from zero to ``end``, ``most`` or fewer after zero; in whole minutes and hours if long."""
    least = end / most
    step: float | None = next((step for step in _ROUND if 1 <= least <= step), None)
    if step is None:
        unit = 1 if least < 1 else 86400
        power = 10.0 ** math.floor(math.log10(least / unit))
        step = unit * next(n * power for n in (1, 2, 5, 10) if n * power >= least / unit * (1 - 1e-9))
    return [number * step for number in range(math.floor(end / step + 1e-9) + 1)]


def most_at_once(bars: Sequence[Bar]) -> int:
    """How many of the tries ran at the same time, at most."""
    changes = sorted([(bar.start, 1) for bar in bars] + [(bar.end, -1) for bar in bars])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def in_lanes(bars: Sequence[Bar]) -> list[Bar]:
    """Bars in the order in which they begin, each in the lowest free lane."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    used = 0
    placed = []
    for bar in bars:
        while busy and busy[0][0] <= bar.start - bar.waited:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        heapq.heappush(busy, (bar.end, lane))
        placed.append(attrs.evolve(bar, lane=lane))
    return placed


def at_once(bars: Sequence[Bar], end: float, bins: int = _BINS) -> list[float]:
    """How many ran, on average over each of ``bins`` equal parts of the time up to ``end``."""
    width = end / bins
    whole, partly = [0.0] * (bins + 1), [0.0] * (bins + 1)
    for bar in bars:
        first, last = min(int(bar.start / width), bins - 1), min(int(bar.end / width), bins - 1)
        if first == last:
            partly[first] += (bar.end - bar.start) / width
            continue
        partly[first] += first + 1 - bar.start / width
        partly[last] += bar.end / width - last
        whole[first + 1] += 1
        whole[last] -= 1
    running, found = 0.0, []
    for number in range(bins):
        running += whole[number]
        found.append(running + partly[number])
    return found


def _bars(group: Group, run: Run, now: datetime) -> list[Bar]:
    bars = []
    for task in group.tasks:
        for attempt in task.attempts:
            if attempt.run != run.id or attempt.started is None:
                continue  # what was reused ran in another run
            several = f", attempt {attempt.number}" if len(task.attempts) > 1 else ""
            start = max(0.0, since(attempt.started, run))
            over = since(attempt.ended, run) if attempt.ended else _end(run, now)
            bars.append(
                Bar(
                    label=f"{task.row.task}{several}",
                    status=attempt.status,
                    start=start,
                    end=max(start, over),
                    waited=min(start, attempt.waited or 0.0),
                )
            )
    return sorted(bars, key=lambda bar: (bar.start - bar.waited, bar.end))


def _end(run: Run, now: datetime) -> float:
    end = run.ended or (now if run.status in ("pending", "running") else run.started)
    return max(since(end, run), 1e-3)


def _row(group: Group, bars: Sequence[Bar], end: float) -> Row:
    row = Row(anchor=group.anchor, title=group.title, status=group.word, note=group.word, bars=(), lanes=0)
    if len(bars) > _MOST_BARS:
        heights = at_once(bars, end)
        most = max(heights) or 1.0
        ends = dict.fromkeys(round(bar.end / end, 3) for bar in bars if bar.status == "failed")
        return attrs.evolve(
            row,
            note=f"{count(len(bars), 'attempt')}, at most {most_at_once(bars):,} at once",
            profile=[round(height / most, 3) for height in heights],
            failures=list(ends),
        )
    note = span(group.seconds) if bars and group.seconds else group.word
    placed = in_lanes(bars)
    return attrs.evolve(row, note=note, bars=placed, lanes=1 + max((bar.lane for bar in placed), default=0))
