"""What the steps of a run have logged, in short, and what they have to show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, TIMES, count
from upshift.report.terminal.layout import GAP, Page, cells, columns, cut, fit, heading
from upshift.runtime.storage.metric_words import of_rank, value_text

if TYPE_CHECKING:
    from upshift.model.spec.telemetry import MetricSummary, MetricValue
    from upshift.runs.history import Attempt, Run, Task

ROWS = 40
"""Metrics, and cards, of a run that are listed."""


def metrics_table(run: Run, page: Page, *, tasks: bool = False) -> str:
    """Last, least and greatest value of each metric; empty: nothing was logged.

    Parameters
    ----------
    run, page
        What to show, and what to lay it out for.
    tasks
        Whether a mapped step has rows for each of its tasks, instead of one for all of them, and a task of
        several processes for each rank that has logged, instead of for the first one.
    """
    rows = [row for name, attempts in _attempts(run, tasks) for row in _metrics(name, attempts, tasks)]
    names = ("metric", "", "last", "min", "max", "values")
    return _table(names, rows, run, page, "metric")


def cards_table(run: Run, page: Page) -> str:
    """Title, kind and size of what there is to look at, by task; empty: nothing."""
    rows = [
        (name, shown.title + of_rank(shown.card.rank), shown.media, format_size(shown.bytes))
        for name, attempts in _attempts(run, True)
        for attempt in attempts
        for shown in attempt.cards
    ]
    return _table(("card", "", "type", "size"), rows, run, page, "card")


def range_of(texts: Sequence[str]) -> str:
    """One text, or the first and the last of several."""
    return texts[0] if len(set(texts)) < 2 else f"{texts[0]}{DASH}{texts[-1]}"


def lasts(values: Sequence[MetricValue]) -> str:
    """The values that tasks ended with, from the least to the greatest."""
    numbers = [value for value in values if type(value) in (int, float)]
    ordered = sorted(numbers) if len(numbers) == len(values) else values
    return range_of([value_text(value) for value in ordered])


def _attempts(run: Run, each_task: bool) -> Iterator[tuple[str, list[Attempt]]]:
    """Steps, or tasks, with the last attempts of theirs."""
    for step in run.steps:
        tasks: list[Task] = list(step.tasks)
        if each_task or not step.mapped:
            yield from ((str(task.row.task), task.attempts[-1:]) for task in tasks)
        else:
            last = [attempt for task in tasks for attempt in task.attempts[-1:]]
            yield f"{step.name} {TIMES}{len(tasks):,}", last


def _summaries(attempt: Attempt, each_rank: bool) -> Iterator[tuple[str, MetricSummary]]:
    """Metrics by name; those of several ranks with what tells them apart."""
    short = attempt.metric_summaries
    if each_rank and any(summary.ranks > 1 for summary in short.values()):
        for rank, curves in attempt.metrics_by_rank.items():
            yield from ((f"{name} (rank {rank})", curve.summary) for name, curve in curves.items())
        return
    for name, summary in short.items():
        several = f" (rank {summary.rank} of {summary.ranks})" if summary.ranks > 1 else of_rank(summary.rank)
        yield name + several, summary


def _metrics(name: str, attempts: Sequence[Attempt], each_rank: bool) -> Iterator[tuple[str, ...]]:
    found: dict[str, list[MetricSummary]] = {}
    for attempt in attempts:
        for metric, summary in _summaries(attempt, each_rank):
            found.setdefault(metric, []).append(summary)
    for metric, summaries in found.items():
        low = [s.min for s in summaries if s.min is not None]
        high = [s.max for s in summaries if s.max is not None]
        yield (
            name,
            metric,
            lasts([summary.last for summary in summaries]),
            value_text(min(low)) if low else DASH,
            value_text(max(high)) if high else DASH,
            f"{sum(summary.count for summary in summaries):,}",
        )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], run: Run, page: Page, noun: str) -> str:
    if not rows:
        return ""
    shown = [names, *rows[:ROWS]]
    natural = [max(map(cells, column)) for column in zip(*shown, strict=True)]
    least = [8, 8, *natural[2:]]
    widths = fit(natural, page.width - GAP * (len(natural) - 1), least)
    lines = heading(names, widths, page)
    before = None
    for row in shown[1:]:
        cut_row = [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines.append(columns(["" if row[0] == before else cut_row[0], *cut_row[1:]], widths))
        before = row[0]
    if len(rows) > ROWS:
        lines.append(f"… and {count(len(rows) - ROWS, f'more {noun}')}: upshift show {run.id} --json")
    return "\n".join(lines)
