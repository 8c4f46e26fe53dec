"""The progress of a run in a notebook: one short block, redrawn in place; what steps print stays below it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from upshift.model.spec.task import TaskId
from upshift.report.human import about, count, duration
from upshift.report.progress import ImageChange, TaskChange
from upshift.report.terminal.layout import Page, cleaned, label
from upshift.report.terminal.redrawn import Redrawn
from upshift.report.terminal.tally import Clock, StepTally, ending

if TYPE_CHECKING:
    from upshift.report.html.objects import Box

PAUSE = 0.3
"""Seconds, at least, between two drawings."""
_STEPS, _WARNINGS, _FAILURES = 5, 10, 3
"""Steps that run, notices and failures that are shown at most."""
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")

Show = Callable[[Mapping[str, str]], None]
"""Shows a block, as text by MIME type, in place of the one before."""


class NotebookProgress(Redrawn):
    """Progress as a block of HTML; the error that the cell ends with has the traceback."""

    shows = False

    def __init__(self, show: Show, output: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(output, Page(), clock, pause=PAUSE)
        self._show_block = show
        self._warnings: dict[str, None] = {}
        self._failures: list[str] = []
        self._failed = 0
        self._end: tuple[str, float] | None = None

    def image_changed(self, change: ImageChange) -> None:
        with self._lock:
            self._tally.image(change)
            if change.status == "failed":
                self._warn(ending(change))
        self._show()

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        with self._lock:
            self._warn(self._announcer.notice(text, task.step if task else None))
        self._show()

    def output(self, task: TaskId, text: str) -> None:
        prefix = label(str(task), screen=False)
        self._output.write("".join(f"{prefix}{line}\n" for line in text.removesuffix("\n").split("\n")))

    def run_ended(self, run: str, status: str, seconds: float) -> None:
        self._end = (status, seconds)
        self.close()

    def _tell_of(self, change: TaskChange) -> None:
        if change.retry_in is not None:
            self._warn(self._announcer.failure(change))
        elif change.status == "failed":
            self._failed += 1
            self._failures.append(_failure(change))
        self._warn(self._announcer.verdict(change))

    def _as_drawn(self, line: str) -> str:
        return _COLOURS.sub("", cleaned(line))

    def _warn(self, text: str | None) -> None:
        if text is not None:
            self._warnings[text] = None

    def _show(self) -> None:
        if self._tally.run:
            super()._show()

    def _draw(self) -> None:
        from upshift.report.html.objects import html_of

        self._drawn = self._tally.clock()
        with self._lock:
            box = self._box()
        said = " · ".join(filter(None, (f"{box.head} {box.status}".strip(), *box.facts)))
        self._show_block({"text/html": html_of(box), "text/plain": said})

    def _box(self) -> Box:
        from upshift.report.html.objects import Box, shortened

        tally, now = self._tally, self._tally.clock()
        steps = list(tally.steps.values())
        going_on = not self._over.is_set()
        total = sum(step.total or 1 for step in steps)
        status, seconds = self._end or ("running", now - tally.began)
        took = duration(seconds) if self._end else f"{seconds:.0f} s" if seconds < 60 else duration(seconds)
        running = [step for step in steps if step.status == "running"] if going_on else []
        lines = [_line(step, now) for step in running[:_STEPS]]
        if going_on:
            lines += [f"{name}: {said}" for name, (_, said) in tally.images.items()]
            for name, drawn in list(tally.unfinished.items())[:_STEPS]:
                lines += [f"{name} │ {line}" for line in drawn]
        failures = self._failures[:_FAILURES]
        if self._failed > _FAILURES:
            failures.append(f"… and {count(self._failed - _FAILURES, 'more failure')}")
        return Box(
            head=tally.pipeline,
            status=status,
            facts=[took, _counts(steps), f"on {tally.target}", f"run {tally.run}"],
            done=sum(step.ended for step in steps) / total if going_on and total else None,
            lines=lines,
            warnings=[shortened(text) for text in list(self._warnings)[:_WARNINGS]],
            failures=[shortened(text) for text in failures],
        )


def _counts(steps: list[StepTally]) -> str:
    """``3 steps, 8 tasks, 2 reused``; while it runs ``1 of 3 steps``."""
    over = sum(step.over for step in steps)
    if over < len(steps):
        return f"{over:,} of {count(len(steps), 'step')}"
    tasks, reused = (
        sum(step.total or len(step.statuses) for step in steps),
        sum(step.reused for step in steps),
    )
    told = [count(len(steps), "step")]
    told += [count(tasks, "task")] if tasks != len(steps) else []
    told += [f"{reused:,} reused" if reused < tasks else "all reused"] if reused else []
    return ", ".join(told)


def _line(step: StepTally, now: float) -> str:
    """How far a step is: ``fit: 12 of 40 tasks, about 30 s left, best loss 0.1 [5] (0.1–0.2)``."""
    left = step.left(now)
    told = [f"{step.done:,} of {step.total:,} tasks"] if step.mapped and step.total is not None else []
    told += [] if left is None else [f"about {about(left)} left"]
    told += filter(None, [step.best or step.metrics, step.notice])
    return f"{step.name}: {', '.join(told) or 'running'}"


def _failure(change: TaskChange) -> str:
    failure = change.failure
    return f"{change.task} failed" + (f" ({failure.reason}): {failure.in_a_line}" if failure else "")


def in_this_cell() -> Show:
    """What shows a block in the output of the cell that runs now."""
    from IPython.display import display

    shown: list[object] = []

    def show(bundle: Mapping[str, str]) -> None:
        if shown:
            shown[0].update(dict(bundle), raw=True)  # type: ignore[attr-defined]
        else:
            shown.append(display(dict(bundle), raw=True, display_id=True))  # type: ignore[no-untyped-call]

    return show
