"""A display that is drawn again in place: its thread, and the tally that it draws: :class:`Redrawn`.

The engine never waits for the display: it leaves notes under a lock and goes on. The display thread
starts with the first task that runs and not before, because a process with a second thread cannot fork
safely and by then the fork server exists.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Mapping
from typing import TextIO

from upshift.model.spec.task import TaskId
from upshift.model.spec.telemetry import MetricValue
from upshift.report.progress import TaskChange
from upshift.report.terminal.layout import Outlet, Page
from upshift.report.terminal.plain import Announcer
from upshift.report.terminal.tally import Clock, RunTally

SHARE = 20
"""A drawing that took a second is followed by a pause of at least this many."""


class Redrawn(abc.ABC):
    """Progress that is drawn again whenever something changes, with ``pause`` seconds between at least."""

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
