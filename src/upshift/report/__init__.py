"""Runs as people look at them; and what whoever watches a run is told while it goes: :class:`Progress`.

:func:`make_progress` chooses who that is: a live display, a notebook, or plain lines.

``views`` make plain data of runs; ``terminal``, ``page``, ``notebook`` and ``doctor`` show it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

import attrs

from upshift.model.spec.hardware import Hardware
from upshift.model.spec.task import Failure, TaskId
from upshift.model.spec.telemetry import MetricSummary, MetricValue

if TYPE_CHECKING:
    from upshift.images.base import Progress as ImageProgress


@attrs.frozen(kw_only=True)
class TaskChange:
    """A task has another status now."""

    task: TaskId
    status: str  # ``pending``, ``running``, ``completed``, ``failed``, ``cancelled`` or ``skipped``
    attempt: int = 0  # number of the attempt, from 1; 0 where there is none
    cached: bool = False  # whether the result is that of an earlier run
    # when the attempt started, in seconds since the epoch, where that was under an earlier engine
    since: float | None = None
    seconds: float | None = None  # how long the attempt took, once it is over
    asked: Hardware | None = None  # records, where known
    granted: Hardware | None = None
    used: Hardware | None = None
    metrics: Mapping[str, MetricSummary] = attrs.field(factory=dict)  # what it has logged, in short
    failure: Failure | None = None  # why the attempt did not complete
    skipped: str | None = None  # why the task was skipped, in words
    # seconds until the next attempt, if the attempt failed and another one follows; the task is
    # pending then
    retry_in: float | None = None
    retry: int = 0  # which retry that will be, from 1, and how many the step has; 0: its failure is caught
    retries: int = 0
    retry_with: str | None = None  # what is different then, in words: ``2 GB of memory``

    @property
    def attempt_failed(self) -> bool:
        """Whether an attempt has failed, be it the last one or not."""
        return self.status == "failed" or self.retry_in is not None


@attrs.frozen(kw_only=True)
class ImageChange:
    """An image that a run needs is made, and this is how far."""

    steps: tuple[str, ...]  # the steps that run in it: that is what people know it by
    status: str  # ``"making"``, ``"made"`` or ``"failed"``
    progress: ImageProgress | None = None  # what happens now; None: nothing that was told yet
    name: str | None = None  # what the image is called, once it is made
    seconds: float | None = None  # how long it took, once it is over
    noun: str = "image"  # or "environment"


class Progress(Protocol):
    """Somebody who watches a run. Called by the engine's own thread only, and must return soon."""

    shows: bool  # whether a person reads it: a traceback that it was given need not be told again

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        """The run has this id; these are its steps, in order."""

    def step_sized(self, step: str, tasks: int) -> None:
        """A step has this many tasks; for a mapped one that may be known only while running."""

    def image_changed(self, change: ImageChange) -> None:
        """An image that the run needs is further; what is there already is not told of."""

    def task_changed(self, change: TaskChange) -> None:
        """A task has another status."""

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        """Something the user should know, in a line: a degraded grant, a reason for waiting."""

    def output(self, task: TaskId, text: str) -> None:
        """Whole lines that the task printed."""

    def unfinished(self, task: TaskId, text: str) -> None:
        """The line that the task has begun, as it stands; several that it draws together; empty: none."""

    def logged(self, task: TaskId, values: Mapping[str, MetricValue], step: float | None) -> None:
        """Metrics of the task have these values now, at a step of its own count."""

    def run_ended(self, run: str, status: str, seconds: float) -> None:
        """The run is over."""


_DRAWN = "│━✓✗▶·…↺■↷"
"""What a live display draws with."""


class ClosableProgress(Progress, Protocol):
    """A progress that may have a terminal to put in order."""

    def close(self) -> None:
        """Show nothing more. Needed where the run ended without telling; harmless otherwise."""


def make_progress(stream: TextIO | None = None, *, live: bool = True) -> ClosableProgress:
    """A progress for one run: live on a terminal, a block of HTML in a notebook, plain lines elsewhere.

    What steps print goes to stdout, line by line; all else to ``stream``.
    """
    from upshift.report.terminal.progress import PlainProgress

    if live and stream is None and _in_notebook():
        from upshift.report.notebook import NotebookProgress, in_this_cell

        return NotebookProgress(in_this_cell(), sys.stdout)
    stream = sys.stderr if stream is None else stream
    if not live or not _is_screen(stream):
        return PlainProgress(stream, sys.stdout)
    from upshift.report.terminal.live import LiveProgress

    return LiveProgress(stream, sys.stdout)


def _in_notebook() -> bool:
    """Whether this is a kernel of Jupyter's. Where IPython is not loaded it is not asked for."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _is_screen(stream: TextIO) -> bool:
    from upshift.report.terminal import shows

    return (
        stream.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and not os.environ.get("CI")
        and shows(stream, _DRAWN)
    )
