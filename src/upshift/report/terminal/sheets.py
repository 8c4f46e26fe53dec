"""A table of runs or tasks as wide as the page: curves are dropped first, then columns from the right."""

from __future__ import annotations

from collections.abc import Sequence

from upshift.model.plain import words
from upshift.report.human import count
from upshift.report.terminal.layout import (
    GAP,
    STATUS_STYLES,
    Page,
    cells,
    columns,
    cut,
    heading,
    labelled,
    spark,
)
from upshift.report.views.charts import Cell, Table
from upshift.report.views.comparing import Comparison

_WIDEST, _SENTENCE = 40, 120
"""Columns that a cell takes at most, and one with a sentence."""
_LEAST = 20
"""Columns in which the beginning of a sentence is worth showing."""
_BEST = " *"
_SAME = 12
"""Values that are the same in all rows, and are told."""


def sheet(comparison: Comparison, page: Page) -> str:
    """The table of a comparison, and below it what is the same in all rows."""
    table = comparison.table()
    facts = len(table.heads) - max((len(row.facts) for row in comparison.rows), default=0)
    plain = [[_short(c, _WIDEST if at < facts else _SENTENCE) for at, c in enumerate(r)] for r in table.rows]
    drawn = [_with_curves(comparison, plain, most) for most in (len(comparison.metrics), 1)]
    texts = next((each for each in drawn if _fits(table, each, page)), plain)
    shown = _shown(table, texts, page, _always(comparison))
    last = len(table.heads) - 1
    room = page.width - _width(table, texts, shown) - GAP
    if last not in shown and shown[-1] == last - 1 and room >= _LEAST:  # a sentence says something when cut
        texts = [[*row[:last], cut(row[last], room)] for row in texts]
        shown.append(last)
    widths = _widths(table, texts, shown)
    lines = heading([table.heads[i] for i in shown], widths, page)
    for row, cut_row in zip(table.rows, texts, strict=True):
        lines.append(columns([_painted(cut_row[i], row[i], page) for i in shown], widths))
    gone = [head for at, head in enumerate(table.heads) if at not in shown]
    notes = []
    if any(cell.mark == "best" for row in table.rows for cell in row):
        notes.append(page.paint(f"{_BEST.strip()} best", "green"))
    if gone:
        room = page.width - sum(cells(note) + 3 for note in notes)
        notes.append(page.paint(cut(f"no room for: {', '.join(gone)}", max(room, _LEAST)), "dim"))
    return "\n".join([*lines, *filter(None, [" · ".join(notes)]), *_same(comparison, page)])


def title(comparison: Comparison, what: str) -> str:
    """``5 runs, by test/accuracy, best first``."""
    name = comparison.sorted_by
    if name is None:
        return what
    order = ", best first" if comparison.best.get(name) is not None else ""
    return f"{what}, by {comparison.labels().get(name, name)}{order}"


def _same(comparison: Comparison, page: Page) -> list[str]:
    if not comparison.same or len(comparison.rows) < 2:
        return []
    items = [f"{name}={words(value)}" for name, value in comparison.same.items()]
    if len(items) > _SAME:
        items[_SAME:] = [f"and {count(len(items) - _SAME, 'more value')}"]
    label = f"the same in all {comparison.noun}s: "
    lines = labelled(label, items, max(page.width - len(label), 20))
    return [page.paint(f"{first or ' ' * len(label)}{line}", "dim") for first, line in lines]


def _short(cell: Cell, width: int = _WIDEST) -> str:
    return cut(cell.text, width) + (_BEST if cell.mark == "best" else "")


def _with_curves(comparison: Comparison, rows: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """The cells, with its curve beside each value of the first metrics, one below the other."""
    drawn = [list(row) for row in rows]
    for at, name in enumerate(comparison.metrics[:most], 1 + len(comparison.given)):
        curves = [spark(row.curves.get(name, ())) for row in comparison.rows]
        if any(curves):
            width = max(cells(row[at]) for row in rows)
            for row, curve in zip(drawn, curves, strict=True):
                row[at] = f"{row[at]}{' ' * (width - cells(row[at]))}  {curve}".rstrip()
    return drawn


def _painted(text: str, cell: Cell, page: Page) -> str:
    if cell.mark == "best":
        value = _short(cell)
        return page.paint(value, "green") + text[len(value) :]
    return page.paint(text, STATUS_STYLES.get(cell.status or ""))


def _always(comparison: Comparison) -> set[int]:
    """The columns that stay, however narrow the page is: the name, and what the rows are sorted by."""
    names = [*comparison.given, *comparison.metrics]
    return {0} | {1 + at for at, name in enumerate(names) if name == comparison.sorted_by}


def _shown(table: Table, rows: Sequence[Sequence[str]], page: Page, always: set[int]) -> list[int]:
    shown = sorted(always)
    for at in range(len(table.heads)):
        more = sorted({*shown, at})
        if _width(table, rows, more) > page.width:
            break
        shown = more
    return shown


def _fits(table: Table, rows: Sequence[Sequence[str]], page: Page) -> bool:
    return _width(table, rows, range(len(table.heads))) <= page.width


def _width(table: Table, rows: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    return sum(_widths(table, rows, shown)) + GAP * (len(shown) - 1)


def _widths(table: Table, rows: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    return [max([cells(table.heads[i]), *(cells(row[i]) for row in rows)]) for i in shown]
