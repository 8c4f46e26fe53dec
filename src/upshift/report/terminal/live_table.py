"""The table of a run that goes on, one row a step, as rich text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from upshift.report.human import count, elapsed
from upshift.report.records import brief
from upshift.report.tally import RunTally, StepTally
from upshift.report.terminal.layout import STATUS_STYLES
from upshift.report.terminal.streams import label

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
        _bar(step) if step.mapped else Text(),
        Text(f"{'' if seconds is None or status == 'reused' else elapsed(seconds):>7}"),
        _aside(step, status),
    )


def _bar(step: StepTally) -> Text:
    if step.total is None:
        return Text(f"{step.done:,} done")
    if step.total == 0:
        return Text("no tasks")
    bad = step.counts["failed"]
    done, wrong = (BAR * step.done // step.total, BAR * bad // step.total)
    if bad and not wrong and done:
        wrong = 1
    bar = Text.assemble(("━" * (done - wrong), "green"), ("━" * wrong, "red"), ("━" * (BAR - done), "dim"))
    return bar.append(f" {step.done:,}/{step.total:,}")


def _aside(step: StepTally, status: str) -> Text:
    if status == "skipped" and step.skipped:
        return Text(step.skipped, "dim")
    hardware = brief(step.granted)
    if step.metrics and status != "pending":
        shown = Text.assemble(step.metrics, "  ", (hardware, "dim"))
        return shown if step.over or not step.notice else shown.append(f"  {step.notice}", "yellow")
    if step.over or not step.notice:
        return Text(hardware, "dim")
    if status == "pending" or not hardware:
        return Text(step.notice, "yellow")
    return Text.assemble((hardware, "dim"), "  ", (step.notice, "yellow"))
