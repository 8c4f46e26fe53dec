"""A run in plain lines, for pipes, files and CI."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import TextIO

from upshift.model.spec.task import TaskId
from upshift.model.spec.telemetry import MetricValue
from upshift.report.human import about, duration
from upshift.report.progress import ImageChange, TaskChange
from upshift.report.ranks import many
from upshift.report.terminal.announcements import Announcer
from upshift.report.terminal.layout import Page
from upshift.report.terminal.making import Pace, ending, image_of, making
from upshift.report.terminal.streams import Outlet, label
from upshift.report.terminal.tally import Clock, RunTally, StepTally

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
            self._say(f"{image_of(change.steps)}{now or ': being made'}")

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
        prefix = label(str(task), screen=False)
        self._output.write("".join(f"{prefix}{line}\n" for line in text.removesuffix("\n").split("\n")))

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
        """Nothing is left to put in order."""

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
