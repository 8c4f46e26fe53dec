"""The progress of a run: in plain lines, or drawn again in place; notices read the same in both.

Plain lines are for pipes, files and CI. :class:`Redrawn` is what a terminal and a notebook have in common.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TextIO

from upshift.model.spec.task import TaskId
from upshift.model.spec.telemetry import MetricValue
from upshift.report import ImageChange, TaskChange
from upshift.report.human import about, count, delay, duration, many, on_rank
from upshift.report.terminal import Outlet, Page, printed
from upshift.report.terminal.tally import ENDED, Clock, Pace, RunTally, StepTally, ending, image_of, making
from upshift.report.views.records import Verdicts

INTERVAL = 5.0
"""Seconds, at least, between two lines on how far a step is."""


class PlainProgress:
    """Progress as lines on one stream, what steps print as lines on another."""

    shows = True

    def __init__(self, progress: TextIO, output: TextIO, clock: Clock = time.monotonic) -> None:
        self._tally = RunTally(clock)
        self._announcer = Announcer(self._tally, Page())
        self._progress = Outlet(progress)
        self._output = Outlet(output)
        self._started: set[str] = set()
        self._spoke: dict[str, float] = {}
        self._images = Pace(INTERVAL)

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        self._tally.start(run, pipeline, target, steps)
        self._say(self._announcer.opening())

    def step_sized(self, step: str, tasks: int) -> None:
        tally = self._tally.size(step, tasks)
        if tasks == 0:
            self._say(self._announcer.ended(tally))

    def image_changed(self, change: ImageChange) -> None:
        if change.status != "making":
            self._say(ending(change))
        elif self._images.due(change, self._tally.clock()):
            now = "" if change.progress is None else f": {making(change.progress)}"
            self._say(f"{image_of(change.steps, change.noun)}{now or ': being made'}")

    def task_changed(self, change: TaskChange) -> None:
        step = self._tally.change(change)
        if change.status == "running" and change.since is not None:
            self._started.add(step.name)
            began = datetime.fromtimestamp(change.since).strftime("%H:%M:%S")
            self._say(f"{change.task}: still running since {began}")
        elif change.status == "running" and step.name not in self._started:
            self._started.add(step.name)
            self._spoke[step.name] = self._tally.clock()
            tasks = self._announcer.shares(step) if step.mapped else ""
            each = many(step.granted) + (" each" if step.mapped and many(step.granted) else "")
            self._say(", ".join(filter(None, (f"{step.name}: started", tasks, each))))
        if change.attempt_failed:
            self._say(self._announcer.failure(change))
        if step.over:
            self._started.discard(step.name)
            if step.mapped or change.status != "failed":  # else the failure's own line said so
                self._say(self._announcer.ended(step))
        elif step.mapped:
            self._say_how_far(step)
        self._say(self._announcer.verdict(change))

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        self._say(self._announcer.notice(text, task.step if task else None))

    def output(self, task: TaskId, text: str) -> None:
        self._output.write(printed(str(task), text))

    def unfinished(self, task: TaskId, text: str) -> None:
        """Lines are shown when they have ended."""

    def logged(self, task: TaskId, values: Mapping[str, MetricValue], step: float | None) -> None:
        tally, now = self._tally.logged(task, values, step), self._tally.clock()
        if not tally.mapped and now - self._spoke.get(tally.name, now) >= INTERVAL:
            self._spoke[tally.name] = now
            self._say(f"{tally.name}: {tally.metrics}")

    def run_ended(self, run: str, status: str, seconds: float) -> None:
        self._say(self._announcer.closing(run, status, seconds))

    def close(self) -> None:
        """Do nothing: plain lines need no cleaning up."""

    def _say(self, line: str | None) -> None:
        if line is not None:
            self._progress.write(line + "\n")

    def _say_how_far(self, step: StepTally) -> None:
        now = self._tally.clock()
        if now - self._spoke.get(step.name, now) >= INTERVAL:
            self._spoke[step.name] = now
            total = "" if step.total is None else f" of {step.total:,}"
            left = step.left(now)
            told = [f"{step.done:,}{total} tasks done after {duration(step.seconds(now) or 0)}"]
            told += [] if left is None else [f"about {about(left)} left"]
            self._say(f"{step.name}: {', '.join(filter(None, (*told, step.best)))}")


TRACEBACKS = 3
"""Failures of one step that are shown with their traceback …"""
FAILURES = 20
"""… and failures that are shown at all. All of them are in ``upshift show``."""


class Announcer:
    """Puts what happens into words; says the same thing of a step once."""

    def __init__(self, tally: RunTally, page: Page) -> None:
        self._tally = tally
        self._page = page
        self._noticed: set[tuple[str | None, str]] = set()
        self._failures: dict[tuple[str, bool], int] = {}
        self._verdicts: dict[str, Verdicts] = {}

    def opening(self) -> str:
        """The first line of a run."""
        tally = self._tally
        return f"run {tally.run}: {tally.pipeline} on {tally.target}, {count(len(tally.steps), 'step')}"

    def notice(self, text: str, step: str | None) -> str | None:
        """A line for a notice; None where it was given already."""
        if (step, text) in self._noticed:
            return None
        self._noticed.add((step, text))
        return self._page.paint(f"{step}: {text}" if step else text, "yellow")

    def failure(self, change: TaskChange) -> str | None:
        """Lines for an attempt that failed; None where its step has failed too often to repeat it."""
        step, failure, again = change.task.step, change.failure, change.retry_in is not None
        seen = self._failures[step, again] = self._failures.get((step, again), 0) + 1
        if seen > FAILURES:
            return None
        if change.retry_in is not None:
            lines = [self._page.paint(_retry(change, change.retry_in), "yellow")]
            if seen == FAILURES:
                lines.append(f"{step}: further attempts that failed are not shown here")
            return "\n".join(lines)
        attempt = f"attempt {change.attempt} " if change.attempt > 1 else ""
        after = "" if change.seconds is None else f" after {duration(change.seconds)}"
        which = "" if failure is None else on_rank(failure)
        what = f"{change.task}: {attempt}failed{which}{after}"
        if failure is not None:
            what += f" ({failure.reason}): " + failure.message.replace("\n", "\n    ")
        lines = [self._page.paint(what, "red")]
        if failure is not None and seen <= TRACEBACKS:
            if failure.traceback:
                lines += [f"    {line}" for line in failure.traceback.rstrip().splitlines()]
            elif failure.where:
                lines.append(f"    where: {failure.where}")
            if failure.fix:
                lines.append("    fix: " + failure.fix.replace("\n", "\n" + " " * len("    fix: ")))
        if seen == FAILURES:
            lines.append(f"{step}: further failures are not shown here")
        return "\n".join(lines)

    def ended(self, step: StepTally) -> str:
        """A line for a step all of whose tasks are over."""
        if step.total == 0:
            return f"{step.name}: completed, no tasks"
        seconds = step.seconds(self._tally.clock())
        took = "" if seconds is None or step.status == "reused" else f" in {duration(seconds)}"
        told = ", ".join(filter(None, (self.shares(step), step.best))) if step.mapped else step.metrics
        tail = f": {told}" if told else ""
        if step.status == "skipped" and step.skipped:
            tail += f": {step.skipped}"
        return f"{step.name}: {self._page.paint(step.status, _STYLES.get(step.status))}{took}{tail}"

    def verdict(self, change: TaskChange) -> str | None:
        """A line on what a step needs, once all of its tasks are over; None: there is nothing to say."""
        step = self._tally.step(change.task.step)
        if change.status in ENDED and change.used is not None and not change.cached:
            records = {"asked": change.asked, "granted": change.granted, "used": change.used}
            self._verdicts.setdefault(step.name, Verdicts()).add(str(change.task), records)
        if not step.over or step.name not in self._verdicts:
            return None
        line = self._verdicts.pop(step.name).line()
        return None if line is None else self._page.paint(f"{step.name}: {line}", "yellow")

    def shares(self, step: StepTally) -> str:
        """How many tasks of a mapped step are what: ``12 tasks, 3 reused, 1 failed``."""
        parts = [count(step.total or len(step.statuses), "task")]
        if step.reused and step.status != "reused":
            parts.append(f"{step.reused:,} reused")
        parts += [
            f"{step.counts[status]:,} {status}"
            for status in ("failed", "cancelled", "skipped")
            if step.counts[status] and step.counts[status] != step.total
        ]
        return ", ".join(parts)

    def closing(self, run: str, status: str, seconds: float) -> str:
        """The last line of a run."""
        painted = self._page.paint(status, _STYLES.get(status))
        return f"run {run}: {painted} in {duration(seconds)} · upshift show {run}"


def _retry(change: TaskChange, pause: float) -> str:
    """A line for an attempt that failed and is followed by another one."""
    what = f"{change.task}: attempt {change.attempt} failed"
    failure = change.failure
    if failure is not None:
        what += f"{on_rank(failure)} ({failure.reason}): {failure.in_a_line}"
    if not change.retries:
        return f"{what}; the flow continues, because of @catch"
    when = f" in {delay(pause)}" if pause > 0 else ""
    when += f" with {change.retry_with}" if change.retry_with else ""
    return f"{what}; trying again{when} ({change.retry} of {change.retries})"


_STYLES = {"completed": "green", "reused": "blue", "failed": "red", "cancelled": "yellow", "skipped": "dim"}


SHARE = 20
"""A drawing that took a second is followed by a pause of at least this many."""


class Redrawn(abc.ABC):
    """Progress that is drawn again whenever something changes, with ``pause`` seconds between at least.

    The engine never waits for the display: it leaves notes under a lock and goes on. The display thread
    starts with the first task that runs and not before, because a process with a second thread cannot fork
    safely and by then the fork server exists.
    """

    def __init__(self, output: TextIO, page: Page, clock: Clock, *, pause: float) -> None:
        self._tally = RunTally(clock)
        self._announcer = Announcer(self._tally, page)
        self._output = Outlet(output)
        self._pause = pause
        self._drawn = clock() - pause
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def _draw(self) -> None:
        """Draw the tally as it stands."""

    @abc.abstractmethod
    def _tell_of(self, change: TaskChange) -> None:
        """Keep what stays on display of a change that is in the tally; called under the lock."""

    @abc.abstractmethod
    def _as_drawn(self, line: str) -> str:
        """A line that a task has begun to print, without what would spoil the drawing."""

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        with self._lock:
            self._tally.start(run, pipeline, target, steps)
        self._show()

    def step_sized(self, step: str, tasks: int) -> None:
        with self._lock:
            self._tally.size(step, tasks)
        self._show()

    def task_changed(self, change: TaskChange) -> None:
        with self._lock:
            self._tally.change(change)
            self._tell_of(change)
        if self._thread is None and change.status == "running":
            self._thread = threading.Thread(target=self._keep_drawing, name="run display", daemon=True)
            self._thread.start()
        self._show()

    def unfinished(self, task: TaskId, text: str) -> None:
        with self._lock:
            if text:
                self._tally.unfinished[str(task)] = [self._as_drawn(line) for line in text.split("\n")]
            else:
                self._tally.unfinished.pop(str(task), None)
        self._show()

    def logged(self, task: TaskId, values: Mapping[str, MetricValue], step: float | None) -> None:
        with self._lock:
            self._tally.logged(task, values, step)
        self._show()

    def close(self) -> None:
        """Draw for the last time, and leave the drawing where it is. Further calls do nothing."""
        if self._over.is_set():
            return
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._tally.run:
            self._draw()

    def _show(self) -> None:
        if self._thread is not None:
            self._wake.set()
        elif self._tally.clock() - self._drawn >= self._pause:
            self._draw()

    def _keep_drawing(self) -> None:
        while not self._over.is_set():
            self._wake.wait(1.0)  # seconds that pass are shown
            self._wake.clear()
            began = time.monotonic()
            self._draw()
            self._over.wait(max(self._pause, SHARE * (time.monotonic() - began)))
