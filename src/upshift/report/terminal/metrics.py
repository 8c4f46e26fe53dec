"""The metrics and cards of a run, in short."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, TIMES, count
from upshift.report.terminal.layout import GAP, Page, cells, columns, cut, fit, heading, spark
from upshift.runs.history.values import best_of, mode_of
from upshift.runtime.storage.metrics import of_rank, value_text

if TYPE_CHECKING:
    from upshift.model.spec.task import TaskId
    from upshift.model.spec.telemetry import MetricSummary, MetricValue
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.runs import Run
    from upshift.runs.history.tasks import Task

ROWS = 40
"""Metrics, and cards, of a run that are listed."""


def metrics_table(
    run: Run, page: Page, *, ranks: bool = False, only: Collection[TaskId] | None = None
) -> str:
    """Last, best, least and greatest value of each metric; empty: nothing was logged."""
    found = [row for name, tasks in _tasks(run, only) for row in _metrics(name, tasks, ranks)]
    names: tuple[str, ...] = ("metric", "", "last", "best", "min", "max", "values", "")
    empty = {at for at in (3, 7) if not any(row[at] for row in found)}
    rows = [[cell for at, cell in enumerate(row) if at not in empty] for row in found]
    return _table([n for at, n in enumerate(names) if at not in empty], rows, run, page, "metric")


def cards_table(run: Run, page: Page, *, only: Collection[TaskId] | None = None) -> str:
    """Title, kind and size of what there is to look at, by task; empty: nothing."""
    rows = [
        (
            str(task.row.task),
            shown.card.label + of_rank(shown.card.rank),
            shown.media,
            format_size(shown.bytes),
        )
        for step in run.steps
        for task in step.tasks
        if only is None or task.row.task in only
        for attempt in task.attempts[-1:]
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


def _tasks(run: Run, only: Collection[TaskId] | None) -> Iterator[tuple[str, list[Task]]]:
    """Steps, or tasks, with those tasks that are told of together."""
    for step in run.steps:
        tasks = [task for task in step.tasks if only is None or task.row.task in only]
        if only is None and step.mapped:
            yield f"{step.name} {TIMES}{len(tasks):,}", tasks
        else:
            yield from ((str(task.row.task), [task]) for task in tasks)


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


def _metrics(name: str, tasks: Sequence[Task], each_rank: bool) -> Iterator[tuple[str, ...]]:
    found: dict[str, list[MetricSummary]] = {}
    makers: dict[str, list[Task]] = {}
    for task in tasks:
        for attempt in task.attempts[-1:]:
            for metric, summary in _summaries(attempt, each_rank):
                found.setdefault(metric, []).append(summary)
                makers.setdefault(metric, []).append(task)
    curves = tasks[0].attempts[-1].metrics if len(tasks) == 1 and tasks[0].attempts else {}
    for metric, summaries in found.items():
        low = [s.min for s in summaries if s.min is not None]
        high = [s.max for s in summaries if s.max is not None]
        yield (
            name,
            metric,
            lasts([summary.last for summary in summaries]),
            _best(metric, summaries, makers[metric]),
            value_text(min(low)) if low else DASH,
            value_text(max(high)) if high else DASH,
            f"{sum(summary.count for summary in summaries):,}",
            spark(curves[metric].values) if metric in curves else "",
        )


def _best(metric: str, summaries: Sequence[MetricSummary], tasks: Sequence[Task]) -> str:
    """The best of several last values, with whose it is, where the name of the metric tells what is best."""
    at = best_of([summary.last for summary in summaries], mode_of(metric)) if len(summaries) > 1 else None
    if at is None:
        return ""
    index = tasks[at].index
    return value_text(summaries[at].last) + ("" if index is None else f" [{index}]")


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
