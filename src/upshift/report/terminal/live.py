"""A run on a terminal: a table that is drawn again in place, and above it what the steps print.

::

    engine's thread                        display thread
    task_changed ──► tally ─┐
    notice, output ► backlog ┴─ wake ────► clear the table, print the backlog, draw the table

The threads, and when the second one starts: :class:`upshift.report.terminal.progress.Redrawn`.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

import attrs
from rich.console import Console
from rich.text import Text

from upshift.model.spec.task import TaskId
from upshift.report import ImageChange, TaskChange
from upshift.report.human import about, count, elapsed
from upshift.report.terminal import STATUS_STYLES, Outlet, Page, cleaned, label, printed
from upshift.report.terminal.progress import Redrawn
from upshift.report.terminal.tally import Clock, RunTally, StepTally, ending
from upshift.report.views.records import brief

PAUSE = 0.1
"""Seconds, at least, between two drawings."""
BACKLOG = 1_000_000
"""Characters that may wait for the terminal; more is left out and counted."""
_COLOURS = ("cyan", "magenta", "green", "blue", "yellow")
BAR = 12
"""Columns of a mapped step's bar."""
_ROOMY = 72
"""Columns that it takes to show hardware and notices as well."""
_GLYPHS = {
    "pending": "·",
    "running": "▶",
    "completed": "✓",
    "reused": "↺",
    "failed": "✗",
    "cancelled": "■",
    "skipped": "↷",
}
_URGENCY = {"running": 0, "failed": 1, "pending": 2}


class LiveProgress(Redrawn):
    """Progress on a terminal."""

    shows = True

    def __init__(self, progress: TextIO, output: TextIO, clock: Clock = time.monotonic) -> None:
        self._console = Console(file=progress, highlight=False)
        colour = self._console.color_system is not None and not self._console.no_color
        self._page = Page(colour=colour)
        super().__init__(output, self._page, clock, pause=PAUSE)
        self._progress = Outlet(progress)
        self._shared = _same_terminal(progress, output)
        self._on_terminal = output.isatty()
        self._backlog: list[tuple[Outlet, str]] = []
        self._waiting = 0
        self._left_out = 0
        self._height = 0

    def image_changed(self, change: ImageChange) -> None:
        if change.progress is not None:
            told = attrs.evolve(change.progress, text=cleaned(change.progress.text))
            change = attrs.evolve(change, progress=told)
        with self._lock:
            self._tally.image(change)
            if change.status != "making":
                self._tell(ending(change))
        self._show()

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        with self._lock:
            if task is not None:
                self._tally.step(task.step).notice = text
            self._tell(self._announcer.notice(text, task.step if task else None))
        self._show()

    def output(self, task: TaskId, text: str) -> None:
        if not self._on_terminal:
            self._output.write(printed(str(task), text))
            return
        lines = text.removesuffix("\n").split("\n")
        prefix = self._page.paint(label(str(task), screen=True), self._colour(task.step))
        reset = "\x1b[0m" if "\x1b" in text else ""
        shown = "".join(f"{prefix}{cleaned(line)}{reset}\n" for line in lines)
        if not self._shared:
            self._output.write(shown)
            return
        with self._lock:
            if self._waiting + len(shown) > BACKLOG:
                self._left_out += len(lines)
                return
            self._waiting += len(shown)
            self._backlog.append((self._output, shown))
        self._show()

    def run_ended(self, run: str, status: str, seconds: float) -> None:
        self.close()
        self._progress.write(self._announcer.closing(run, status, seconds) + "\n")

    def _tell_of(self, change: TaskChange) -> None:
        if change.attempt_failed:
            self._tell(self._announcer.failure(change))
        self._tell(self._announcer.verdict(change))

    def _as_drawn(self, line: str) -> str:
        return cleaned(line)

    def _tell(self, text: str | None) -> None:
        if text is not None:
            self._backlog.append((self._progress, text + "\n"))

    def _colour(self, step: str) -> str:
        names = list(self._tally.steps)
        return _COLOURS[names.index(step) % len(_COLOURS)] if step in names else _COLOURS[0]

    def _show(self) -> None:
        if self._over.is_set():
            self._print_backlog()
        else:
            super()._show()

    def _draw(self) -> None:
        self._drawn = self._tally.clock()
        with self._lock:
            table = render(self._tally, self._console.width, self._console.height)
        with self._console.capture() as captured:
            self._console.print(table)
        lines = cleaned(captured.get())
        up = f"\x1b[{self._height}F" if self._height else "\r"
        self._height = lines.count("\n")
        if not self._backlog:
            self._progress.draw(up + lines.replace("\n", "\x1b[K\n") + "\x1b[J")
            return
        self._progress.draw(up + "\x1b[J")
        self._print_backlog()
        self._progress.write(lines)

    def _print_backlog(self) -> None:
        with self._lock:
            backlog, self._backlog, self._waiting = self._backlog, [], 0
            left_out, self._left_out = self._left_out, 0
        for outlet, text in backlog:
            outlet.write(text)
        if left_out:
            self._progress.write(
                f"… {left_out:,} lines are left out; upshift logs {self._tally.run} has them\n"
            )


def _same_terminal(one: TextIO, other: TextIO) -> bool:
    """Whether what is written to either appears on the same screen."""
    try:
        return one.isatty() and other.isatty() and os.ttyname(one.fileno()) == os.ttyname(other.fileno())
    except OSError:
        return False


def render(tally: RunTally, width: int, height: int) -> Text:
    """The table as it stands."""
    now = tally.clock()
    head = Text.assemble(
        (tally.pipeline, "bold"), f" on {tally.target} · run {tally.run} · {elapsed(now - tally.began)}"
    )
    drawn = _images(tally, now) + _unfinished(tally, most=max(height // 3, 1))
    shown = _visible(list(tally.steps.values()), max(height - 3 - len(drawn), 1))
    rows = [_row(step, now) for step in shown]
    widths = [min(max(row[i].cell_len for row in rows), max(width // 3, 8)) for i in range(4)] if rows else []
    if width >= _ROOMY:
        widths.append(width - sum(widths) - 2 * len(widths) - 1)
    lines = [head, *(_line(row, widths) for row in rows)]
    hidden = Counter(step.status for step in tally.steps.values()) - Counter(step.status for step in shown)
    if hidden:
        parts = ", ".join(f"{steps:,} {status}" for status, steps in hidden.items())
        lines.append(Text(f"  … {count(sum(hidden.values()), 'more step')}: {parts}", "dim"))
    lines += drawn
    for line in lines:
        line.truncate(width - 1, overflow="ellipsis")
    return Text("\n").join(lines)


def _images(tally: RunTally, now: float) -> list[Text]:
    """What is being made, before the first step that needs it can start."""
    return [
        Text.assemble(
            (f"  ▶ {name} ", "cyan"), f"{elapsed(now - began)}  ", Text.from_ansi(said, style="dim")
        )
        for name, (began, said) in tally.images.items()
    ]


def _unfinished(tally: RunTally, most: int) -> list[Text]:
    """What tasks have begun to print: their progress bars."""
    drawn = [
        Text.assemble((label(task, screen=True), "dim"), Text.from_ansi(line))
        for task, lines in tally.unfinished.items()
        for line in lines
    ]
    if len(drawn) > most:
        drawn[most - 1 :] = [Text(f"  … {count(len(drawn) - most + 1, 'more unfinished line')}", "dim")]
    return drawn


def _line(row: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text()
    for cell, width in zip(row, widths, strict=False):
        cell.truncate(width, overflow="ellipsis", pad=True)
        line.append_text(cell).append("  ")
    line.rstrip()
    return line


def _visible(steps: list[StepTally], room: int) -> list[StepTally]:
    """The steps that matter most now, in their own order."""
    if len(steps) <= room:
        return steps
    ranked = sorted(range(len(steps)), key=lambda i: (_URGENCY.get(steps[i].status, 3), i))
    return [steps[i] for i in sorted(ranked[: room - 1])]


def _row(step: StepTally, now: float) -> tuple[Text, Text, Text, Text, Text]:
    status = step.status
    seconds = step.seconds(now)
    return (
        Text(f"  {_GLYPHS[status]} {status:<9}", STATUS_STYLES[status]),
        Text(step.name, "bold" if status == "running" else ""),
        _bar(step, now) if step.mapped else Text(),
        Text(f"{'' if seconds is None or status == 'reused' else elapsed(seconds):>7}"),
        _aside(step, status),
    )


def _bar(step: StepTally, now: float) -> Text:
    if step.total is None:
        return Text(f"{step.done:,} done")
    if step.total == 0:
        return Text("no tasks")
    bad = step.counts["failed"]
    done, wrong = (BAR * step.done // step.total, BAR * bad // step.total)
    if bad and not wrong and done:
        wrong = 1
    bar = Text.assemble(("━" * (done - wrong), "green"), ("━" * wrong, "red"), ("━" * (BAR - done), "dim"))
    bar.append(f" {step.done:,}/{step.total:,}")
    left = step.left(now)
    return bar if left is None else bar.append(f" {about(left)} left", "dim")


def _aside(step: StepTally, status: str) -> Text:
    if status == "skipped" and step.skipped:
        return Text(step.skipped, "dim")
    hardware = brief(step.granted)
    metrics = (step.best or step.metrics) if step.mapped else step.metrics
    if metrics and status != "pending":
        shown = Text.assemble(metrics, "  ", (hardware, "dim"))
        return shown if step.over or not step.notice else shown.append(f"  {step.notice}", "yellow")
    if step.over or not step.notice:
        return Text(hardware, "dim")
    if status == "pending" or not hardware:
        return Text(step.notice, "yellow")
    return Text.assemble((hardware, "dim"), "  ", (step.notice, "yellow"))
