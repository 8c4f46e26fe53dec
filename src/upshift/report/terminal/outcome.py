"""The outcome of a run: failures and what to do about them, earlier attempts, outputs, metrics, cards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from upshift.model.settings.sizes import format_size
from upshift.model.spec.task import Failure, TaskId
from upshift.report.human import (
    DASH,
    TIMES,
    because,
    count,
    elsewhere,
    of_tasks,
    on_rank,
    together,
    worth_a_look,
)
from upshift.report.terminal import GAP, Page, cells, columns, cut, fit, heading, spark, wrap
from upshift.report.views.records import Verdicts
from upshift.report.views.steps import alike, item_of, named
from upshift.runs.history.values import best_of, mode_of
from upshift.runtime.storage.metrics import of_rank, value_text

if TYPE_CHECKING:
    from upshift.model.spec.telemetry import MetricSummary, MetricValue
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.runs import Run
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task


Only = Collection[TaskId] | None
"""The tasks that are told of; None: all."""
FAILURES = 10
"""Failures of a run that are told in full."""
ATTEMPTS = 20
"""Earlier attempts of a run that are told."""
ROWS = 40
"""Metrics, and cards, of a run that are listed."""


def failures(run: Run, page: Page, *, only: Only = None) -> str:
    """Reason, message, traceback and remedy of what failed, each kind once; empty: nothing did."""
    failed = alike(task for step in run.steps for task in _of(step, only))
    parts = [_failure(run, task, others, page) for task, *others in failed[:FAILURES]]
    if len(failed) > FAILURES:
        parts.append(f"… and {count(len(failed) - FAILURES, 'more failure')}: upshift show {run.id} --json")
    return "\n\n".join(parts)


def _failure(run: Run, task: Task, others: Sequence[Task], page: Page) -> str:
    name, failure = str(task.row.task), task.attempts[-1].error
    assert failure is not None
    tries = f" after {count(len(task.attempts), 'attempt')}" if len(task.attempts) > 1 else ""
    why = because(task.status, failure.reason)
    lines = [page.paint(f"{name} {task.status}{on_rank(failure)}{tries}{why}", "red")]
    lines += [f"  {line}" for line in wrap(failure.message, page.width - 2)]
    if failure.traceback:
        lines += [page.paint(f"    {line}", "dim") for line in failure.traceback.rstrip().splitlines()]
    told = {
        "item": item_of(run, task),
        "where": None if failure.traceback else failure.where,
        "fix": failure.fix,
        "ranks": _ranks(failure, task.attempts[-1]),
        "kept": _kept(task.attempts[-1]),
        "like": named(others),
    }
    for label, text in told.items():
        if text:
            first, *rest = wrap(text, page.width - 9)
            lines += [f"  {label + ':':<6} {first}", *(f"         {line}" for line in rest)]
    return "\n".join(lines)


def _ranks(failure: Failure, attempt: Attempt) -> str:
    """Where the others of several processes were, and how to see more of that."""
    places = elsewhere(failure, attempt.stacks).removeprefix("ranks ")
    stacks = f"upshift show {attempt.run} --stacks shows where each was, call by call"
    more = stacks if worth_a_look(failure, attempt.stacks) else ""
    return "\n".join(filter(None, (places, more)))


def _kept(attempt: Attempt) -> str | None:
    """What is left of an attempt that failed, for another one."""
    had = attempt.checkpoints
    if had is None:
        return None
    return (
        f"checkpoint {had.newest}, {format_size(had.bytes)}"
        if had.newest
        else f"checkpoint {had.resumed_from}"
    )


def earlier_attempts(run: Run, page: Page, *, only: Only = None) -> str:
    """What became of the attempts before the last one, of tasks that needed several; empty: none did.

    The last one is there if it did not begin from the start.
    """
    tries = [
        (str(task.row.task), attempt)
        for step in run.steps
        for task in _of(step, only)
        if not task.cached
        for attempt in task.attempts
        if attempt is not task.attempts[-1] or (attempt.number > 1 and _went_on(attempt))
    ]
    if not tries:
        return ""
    lines = ["attempts" if any(_went_on(attempt) for _, attempt in tries) else "earlier attempts"]
    for name, attempt in tries[:ATTEMPTS]:
        error = attempt.error
        why = because(attempt.status, attempt.reason)
        if error is not None:
            why = f"{on_rank(error)}{why}: {error.in_a_line}"
        line = f"{name}: attempt {attempt.number}{_went_on(attempt)} {attempt.status}{why}"
        first, *rest = wrap(line, page.width - 4)
        lines += [f"  {page.paint(first, 'yellow')}", *(f"    {page.paint(more, 'yellow')}" for more in rest)]
    if len(tries) > ATTEMPTS:
        lines.append(f"  … and {len(tries) - ATTEMPTS:,} more: upshift show {run.id} --json")
    return "\n".join(lines)


def gaps(run: Run, page: Page) -> str:
    """What was printed, logged or shown, and is not on record; empty: nothing."""
    lines = []
    for who, what in of_tasks(task for step in run.steps for task in step.tasks):
        first, *rest = wrap(f"{who}: {what}" if who else what, page.width - 2)
        lines += [page.paint(first, "yellow"), *(page.paint(f"  {more}", "yellow") for more in rest)]
    return "\n".join(lines)


def stacks(run: Run, page: Page) -> str:
    """Where each process was of the attempts that failed or were stopped, call by call."""
    found = [
        (str(task.row.task) + (f", attempt {attempt.number}" if len(task.attempts) > 1 else ""), attempt)
        for step in run.steps
        for task in step.tasks
        if not task.cached
        for attempt in task.attempts
        if attempt.stacks
    ]
    if not found:
        return "no stacks: those of several processes are kept when their step fails or is stopped"
    lines = ["stacks"]
    for name, attempt in found:
        for place, text in together(attempt.stacks):
            first, *rest = wrap(f"{name}: {place}", page.width - 4)
            lines += [
                f"  {page.paint(first, 'yellow')}",
                *(f"    {page.paint(more, 'yellow')}" for more in rest),
            ]
            lines += [page.paint(f"    {line}", "dim") for line in text.splitlines()]
    return "\n".join(lines)


def _went_on(attempt: Attempt) -> str:
    had = attempt.checkpoints
    return f" went on from checkpoint {had.resumed_from} and" if had and had.resumed_from else ""


def needs(run: Run, page: Page) -> str:
    """What each step needs, where its records say that it is not what it asked for; empty: nowhere."""
    lines = []
    for step in run.steps:
        verdicts = Verdicts()
        for task in step.tasks:
            if task.attempts and not task.cached:
                last = task.attempts[-1]
                records = {"asked": last.asked, "granted": last.granted, "seen": last.seen, "used": last.used}
                verdicts.add(str(task.row.task), records)
        line = verdicts.line()
        if line is not None:
            first, *rest = wrap(f"{step.name}: {line}", page.width - 4)
            lines += [
                f"  {page.paint(first, 'yellow')}",
                *(f"    {page.paint(more, 'yellow')}" for more in rest),
            ]
    return "\n".join(["what steps need", *lines]) if lines else ""


def outputs(run: Run, page: Page, *, only: Only = None) -> str:
    """Name, type and size of what each step made."""
    rows = [row for step in run.steps for row in _made(step.name, _of(step, only))]
    if not rows:
        return ""
    headings = ("output", "type", "size")
    natural = [max(map(cells, column)) for column in zip(headings, *rows, strict=True)]
    widths = fit(natural, page.width - 2 * GAP, least=(8, 8, natural[2]))
    lines = heading(headings, widths, page)
    lines += [columns([cut(c, width) for c, width in zip(row, widths, strict=True)], widths) for row in rows]
    return "\n".join(lines)


def _of(step: Step, only: Only) -> list[Task]:
    return [task for task in step.tasks if only is None or task.row.task in only]


def _made(step: str, tasks: list[Task]) -> Iterator[tuple[str, str, str]]:
    """One row for each output; those of a mapped step's tasks together."""
    sizes: dict[str, int] = {}
    types: dict[str, dict[str, int]] = {}
    for task in tasks:
        for name, artifact in task.made.items():
            sizes[name] = sizes.get(name, 0) + artifact.bytes
            kinds = types.setdefault(name, {})
            kinds[artifact.type] = kinds.get(artifact.type, 0) + 1
    for name, size in sizes.items():
        kinds = types[name]
        made = sum(kinds.values())
        kind = " | ".join(kinds) if len(kinds) <= 3 else f"{len(kinds)} types"
        mapped = made > 1 or any(task.index is not None for task in tasks)
        label = step if name == "output" and not tasks[0].in_flow else f"{step}.{name}"
        yield label, f"{made:,} {TIMES} {kind}" if mapped else kind, format_size(size)


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
