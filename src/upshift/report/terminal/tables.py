"""Runs as tables of text: all of them (``upshift runs``), one with its four records (``upshift show``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from upshift.report.human import ago, duration, moment
from upshift.report.terminal.layout import (
    GAP,
    STATUS_STYLES,
    Page,
    cells,
    columns,
    cut,
    fit,
    heading,
    labelled,
    wrap,
)
from upshift.runs.catalog.rows import Detached
from upshift.runs.stores.lease import silent_for

if TYPE_CHECKING:
    from upshift.runs.catalog.rows import RunRow
    from upshift.runs.history.runs import Run

_HEADINGS = ("run", "pipeline", "status", "started", "", "took", "tags")
_AGO = 4
_GIVE_WAY = (6, 5, 3)
"""Tags, duration and start, which further columns may push out."""
_NAMED = 3
"""Tasks that are named where they still run."""
_ROOMY = 100
"""Columns that it takes to say both when a run started and how long ago."""


def runs_table(
    rows: Sequence[RunRow],
    *,
    page: Page | None = None,
    now: datetime | None = None,
    more: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The runs, one per line: id, pipeline, status, started, duration, tags; on a narrow page on several."""
    page = page or Page()
    if not rows:
        return "No runs."
    now, more = now or datetime.now(timezone.utc), more or {}
    page = page.whole if more else page
    own = [_run_cells(row, now) for row in rows]
    across = list(zip(*more.values(), strict=True)) if more else [()] * len(rows)
    hidden = set() if page.width >= _ROOMY and not more else {_AGO}
    for gives_way in (None, *(_GIVE_WAY if more else ())):  # to what was asked for
        hidden |= set() if gives_way is None else {gives_way}
        shown = [i for i in range(len(_HEADINGS)) if i not in hidden]
        names = [*(_HEADINGS[i] for i in shown), *more]
        table = [[*(texts[i] for i in shown), *extra] for texts, extra in zip(own, across, strict=True)]
        natural = [max(map(cells, column)) for column in zip(names, *table, strict=True)]
        # What identifies a run is never cut: pipeline and tags give way.
        least = [{"pipeline": 8, "tags": 4}.get(n, width) for n, width in zip(names, natural, strict=True)]
        room = page.width - GAP * (len(natural) - 1)
        if sum(least) <= room:
            break
    else:
        each = [dict(zip(more, extra, strict=True)) for extra in across]
        both = zip(own, each, strict=True)
        return "\n".join(line for texts, extra in both for line in _stacked(texts, page, extra))
    widths = fit(natural, room, least)
    lines = heading(names, widths, page)
    for texts in table:
        short = [cut(text, width) for text, width in zip(texts, widths, strict=True)]
        short[2] = page.paint(short[2], STATUS_STYLES.get(texts[2]))
        lines.append(columns(short, widths))
    return "\n".join(lines)


def _stacked(texts: Sequence[str], page: Page, more: Mapping[str, str]) -> list[str]:
    run, pipeline, status, started, _, took, tags = texts
    title = columns([run, page.paint(status, STATUS_STYLES.get(status))], [cells(run), 0])
    if cells(title) > page.width:
        title = title.replace(" " * GAP, "\n  ", 1)
    told = (f"{name} {text}" for name, text in more.items())
    details = " · ".join(filter(None, (pipeline, started, took, tags, *told)))
    return [title, *(f"  {line}" for line in wrap(details, page.width - 2))]


def _run_cells(row: RunRow, now: datetime) -> tuple[str, ...]:
    started = datetime.fromtimestamp(row.started, timezone.utc)
    took = "" if row.ended is None else duration(row.ended - row.started)
    return (row.id, row.pipeline, row.status, moment(started), ago(started, now), took, ", ".join(row.tags))


def show_run(
    run: Run,
    *,
    page: Page | None = None,
    tasks: bool = False,  # a table of those of each mapped step, and a row for what each rank logged
    sort: str | None = None,  # what these tables are sorted by; None: the order of the tasks
    stacks: bool = False,  # of processes that hung, or were stopped, below the failures
) -> str:
    """Everything about a run, for a person: header, steps with their four records, failures,
    metrics, cards, outputs.
    """
    from upshift.report.terminal import outcome
    from upshift.report.terminal.steps_table import steps_table, tasks_tables

    page = page or Page()
    parts = (
        _header(run, page),
        steps_table(run, page),
        tasks_tables(run, page, sort=sort) if tasks else "",
        outcome.needs(run, page),
        outcome.earlier_attempts(run, page),
        outcome.failures(run, page),
        outcome.gaps(run, page),
        outcome.stacks(run, page) if stacks else "",
        outcome.metrics_table(run, page, ranks=tasks),
        outcome.cards_table(run, page),
        outcome.outputs(run, page),
    )
    return "\n\n".join(filter(None, parts))


def summary(run: Run, *, page: Page | None = None) -> str:
    """The steps of a run with what each asked for, was granted, saw and used, side by side."""
    from upshift.report.terminal.steps_table import steps_table

    return steps_table(run, page or Page())


def _header(run: Run, page: Page) -> str:
    took = "" if run.ended is None else f", took {duration((run.ended - run.started).total_seconds())}"
    facts: dict[str, str | list[str]] = {
        "target": run.target,
        "started": f"{moment(run.started)} ({ago(run.started)}){took}",
        "by": run.user or "",
        "tags": ", ".join(run.tags),
        "params": [f"{name}={text}" for name, text in run.param_texts.items()],
    }
    status = run.row.status
    engine = Detached.of(run.row)
    if engine is not None:
        where = f"a process of {engine.host}" if engine.target is None else f"a job of {engine.target}"
        lost = f"lost: {engine.lost}" if engine.lost else f"{where}, {engine.name}"
        facts["engine"] = f"{lost}; upshift logs {run.id} --engine"
    if status == "running" and (silent := silent_for(run.id, run.row.store)) is not None:
        known = facts.get("engine")
        facts["engine"] = f"no word from it for {duration(silent)}" + (f"; {known}" if known else "")
    if run.status == "cancelled":
        facts["next"] = f"upshift resume {run.id} continues from the last completed step" + _still(run)
    title = f"run {run.id} · {run.pipeline} · {page.paint(status, STATUS_STYLES.get(status))}"
    if cells(title) > page.width:
        title = title.replace(" · ", "\n  ", 1)
    lines = [
        f"  {page.paint(f'{name:<8}', 'dim')} {line}"
        for fact, text in facts.items()
        if text
        for name, line in labelled(fact, text, page.width - 11)
    ]
    return "\n".join([title, *lines])


def _still(run: Run) -> str:
    """Which tasks of an interrupted run have not ended."""
    if not run.going_on:
        return ""
    names = list(map(str, run.going_on[:_NAMED]))
    more = f" and {len(run.going_on) - _NAMED:,} more" if len(run.going_on) > _NAMED else ""
    return f"; {', '.join(names)}{more} still run{'' if len(run.going_on) > 1 else 's'}, which it waits for"
