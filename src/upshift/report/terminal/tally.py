"""The progress of each step and image of a run, for the live and the plain display."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import TaskId
from upshift.model.spec.telemetry import MetricValue
from upshift.report import ImageChange, TaskChange
from upshift.report.human import DASH, duration
from upshift.report.terminal import cut
from upshift.runs.history.values import best_of, mode_of, number
from upshift.runtime.storage.metrics import newest, told, value_text

if TYPE_CHECKING:
    from upshift.images.base import Progress

ENDED = frozenset({"completed", "failed", "cancelled", "skipped"})
_METRICS = 6
"""Metrics that are shown of a step …"""
_BEST = 2
"""… and of which the best value is, where it is mapped."""
_TELLING = 2
"""Tasks that have to be over before it is told how long the others take."""
Clock = Callable[[], float]


@attrs.define
class StepTally:
    """The progress of one step."""

    name: str
    total: int | None = None  # how many tasks it has; None: not known yet
    # the latest status of each task, by index (None for a step that is not mapped)
    statuses: dict[int | None, str] = attrs.field(factory=dict)
    counts: Counter[str] = attrs.field(factory=Counter)
    reused: int = 0  # tasks whose result is that of an earlier run
    # when the first task started to run, and when the last one ended, on the tally's clock
    began: float | None = None
    finished: float | None = None
    granted: Hardware | None = None  # what the latest task was granted
    notice: str | None = None  # the latest thing that was said about the step
    retries: int = 0  # attempts that failed and were, or will be, repeated
    skipped: str | None = None  # why the latest task that was skipped was
    metrics: str = ""  # what the task that logged last has logged, in words
    # of a mapped step, the last value of each metric by the index of the task
    lasts: dict[str, dict[int, MetricValue]] = attrs.field(factory=dict)

    @property
    def best(self) -> str:
        """The best values of metrics so far in a mapped step: ``best accuracy 0.94 [6] (0.87–0.94)``."""
        told = []
        for name, values in self.lasts.items():
            indices = sorted(values)
            at = best_of([values[index] for index in indices], mode_of(name))
            if at is not None and len(values) > 1:
                numbers = [known for one in values.values() if (known := number(one)) is not None]
                ends = f"{value_text(min(numbers))}{DASH}{value_text(max(numbers))}"
                told.append(f"{name} {value_text(values[indices[at]])} [{indices[at]}] ({ends})")
        return f"best {', '.join(told[:_BEST])}" if told else ""

    def left(self, now: float) -> float | None:
        """Seconds until a mapped step ends, if its tasks go on as until now; None: nobody knows."""
        ran = self.done - self.reused
        if self.total is None or self.over or self.began is None or ran < _TELLING:
            return None
        return (now - self.began) / ran * (self.total - self.ended)

    @property
    def mapped(self) -> bool:
        """Whether the step is known to be mapped: it has other than one plain task."""
        return (self.total is not None and self.total != 1) or any(i is not None for i in self.statuses)

    @property
    def ended(self) -> int:
        """Tasks that are over."""
        return sum(self.counts[status] for status in ENDED)

    @property
    def done(self) -> int:
        """Tasks that are over, and were not stopped before they were through."""
        return self.ended - self.counts["cancelled"]

    @property
    def over(self) -> bool:
        """Whether every task is over."""
        total = 1 if self.total is None and None in self.statuses else self.total
        return total is not None and self.ended >= total

    @property
    def status(self) -> str:
        """One word for all tasks: the worst of those that are over, once they all are."""
        if not self.over:
            return "running" if self.counts["running"] or self.ended else "pending"
        for status in ("failed", "cancelled", "completed", "skipped"):
            if self.counts[status]:
                return "reused" if status == "completed" and self.reused == self.total else status
        return "completed"  # a step mapped over an empty list

    def seconds(self, now: float) -> float | None:
        """From the start of the first task to the end of the last, or until now; None: nothing has run."""
        if self.began is None:
            return None
        return (self.finished if self.finished is not None else now) - self.began


class RunTally:
    """All steps of a run."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self.run = ""
        self.pipeline = ""
        self.target = ""
        self.steps: dict[str, StepTally] = {}
        self.unfinished: dict[str, list[str]] = {}
        self.images: dict[str, tuple[float, str]] = {}

    def start(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        """The run begins."""
        self.began = self.clock()
        self.run, self.pipeline, self.target = run, pipeline, target
        self.steps = {name: StepTally(name) for name in steps}

    def size(self, step: str, tasks: int) -> StepTally:
        """Note how many tasks a step has."""
        tally = self.step(step)
        tally.total = tasks
        return tally

    def image(self, change: ImageChange) -> None:
        """Note the progress of an image that the run needs."""
        name = image_of(change.steps, change.noun)
        if change.status != "making":
            self.images.pop(name, None)
            return
        began, said = self.images.get(name, (self.clock(), ""))
        self.images[name] = (began, said if change.progress is None else making(change.progress))

    def change(self, change: TaskChange) -> StepTally:
        """A task has another status."""
        tally = self.step(change.task.step)
        index, status = change.task.index, change.status
        if change.retry_in is not None:
            status = "pending"
            tally.retries += 1
        before = tally.statuses.get(index)
        if before is not None:
            tally.counts[before] -= 1
        tally.statuses[index] = status
        tally.counts[status] += 1
        if index is None and tally.total is None:
            tally.total = 1
        if change.cached and before != "completed":
            tally.reused += 1
        if change.skipped is not None:
            tally.skipped = change.skipped
        if change.metrics:
            first = min(change.metrics.values(), key=lambda summary: summary.rank)
            values = newest(dict(islice(change.metrics.items(), _METRICS)))
            self.logged(change.task, values, first.step)
            if index is not None:
                for name, value in values.items():
                    tally.lasts.setdefault(name, {})[index] = value
        if change.granted is not None:
            tally.granted = change.granted
        if status == "running":
            tally.finished = tally.notice = None  # what it waited for has come
            if tally.began is None:
                tally.began = self.clock()
        elif status in ENDED:
            tally.finished = self.clock()
            if index is None and tally.began is not None and change.seconds is not None and not tally.retries:
                # One task and one attempt: it took as long as its record says, whenever that was told.
                tally.finished = tally.began + change.seconds
        return tally

    def logged(self, task: TaskId, values: Mapping[str, MetricValue], step: float | None) -> StepTally:
        """Metrics of a task have these values."""
        tally = self.step(task.step)
        tally.metrics = ("" if task.index is None else f"[{task.index}] ") + told(values, step)
        return tally

    def step(self, name: str) -> StepTally:
        """The tally of a step, made where the run did not announce it."""
        if name not in self.steps:
            self.steps[name] = StepTally(name)
        return self.steps[name]


_LONGEST = 160
"""Columns of what happens: a command of a build may be as long as a page; what fails says why at its end."""
_NAMED = 3
"""Steps that an image is called by."""


def image_of(steps: Sequence[str], noun: str = "image") -> str:
    """What an image is called, by the steps that run in it: ``image of train, score and 2 more``."""
    more = len(steps) - _NAMED
    return f"{noun} of {', '.join(steps[:_NAMED])}" + (f" and {more:,} more" if more > 0 else "")


def making(progress: Progress) -> str:
    """What happens now, with bytes where they are known: ``pushing · torch 2.1.0: 34 MB of 120 MB``."""
    from upshift.images.base import shortened  # a run without images does not need it

    said = cut(shortened(progress.text.partition("\n")[0].strip()), _LONGEST)
    verb = _VERBS.get(progress.stage)
    if verb is not None:
        said = f"{verb} · {said}"
    if progress.total:
        return f"{said}: {format_size(progress.done or 0)} of {format_size(progress.total)}"
    return f"{said}: {format_size(progress.done)}" if progress.done else said


def ending(change: ImageChange) -> str:
    """A line for an image that is made, or could not be."""
    from upshift.images.base import shortened

    took = "" if change.seconds is None else f" {_TOOK[change.status]} {duration(change.seconds)}"
    name = f": {shortened(change.name)}" if change.name else ""
    return f"{image_of(change.steps, change.noun)}: {change.status}{took}{name}"


_VERBS = {
    "resolve": "resolving",
    "install": "installing",
    "pack": "packing",
    "push": "pushing",
    "pull": "pulling",
}
"""What a stage is called; a line of a build speaks for itself."""
_TOOK = {"made": "in", "failed": "after"}
_AGAIN = 12
"""Pauses after which the same words are said once more."""


class Pace:
    """Decides what is told of an image where each line stays: a new stage at once, the rest now and then."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._spoke: dict[tuple[str, ...], tuple[str, str, float]] = {}

    def due(self, change: ImageChange, now: float) -> bool:
        """Whether this is to be told at this time, in seconds of any clock."""
        stage = "" if change.progress is None else change.progress.stage
        words = "" if change.progress is None else making(change.progress)
        if change.steps in self._spoke:
            before, said, when = self._spoke[change.steps]
            pause = self._interval * (_AGAIN if words == said else 1)
            if before == stage and now - when < pause:
                return False
        self._spoke[change.steps] = (stage, words, now)
        return True
