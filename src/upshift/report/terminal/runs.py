"""Runs in a table of text: ``upshift runs``."""

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
    wrap,
)

if TYPE_CHECKING:
    from upshift.runs.catalog.rows import RunRow

_HEADINGS = ("run", "pipeline", "status", "started", "", "took", "tags")
_AGO = 4
_GIVE_WAY = (6, 5, 3)
"""Tags, duration and start, which further columns may push out."""
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
