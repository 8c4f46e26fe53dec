"""Runs, steps and tasks in notebooks and pandas: how they are drawn, and lists of them as tables."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from upshift.errors import MissingExtra, UpshiftError
from upshift.model.plain import is_opaque, words
from upshift.runs.history.values import best_of, mode_of, number

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

SHOWN = 20
"""Rows that are shown."""
_NARROW = 80
_GAP = 2


class Drawn:
    """Draws itself in a notebook. How is known to the reports, above this layer, and looked up only there."""

    def _repr_html_(self) -> str | None:
        objects = import_module("upshift.report.notebook")
        try:
            return str(objects.html_of(objects.drawn(self)))
        except UpshiftError:  # what is to be drawn is not there any more; its text still is
            return None


class Rows(Drawn, list[T]):
    """A list whose items are rows of a table."""

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each item: what it is, and dotted names for what it was given and measured."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a table of pandas.

        Raises
        ------
        MissingExtra
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtra("to_pandas() needs pandas", fix="pip install pandas") from None
        rows = self.rows()
        return pandas.DataFrame(rows, columns=_columns(rows))

    def shown(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The columns in which a row says something, and the first rows."""
        rows = self.rows()
        told = {
            name
            for row in rows
            for name, value in row.items()
            if value not in (None, []) and value is not False
        }
        return [name for name in _columns(rows) if name in told], rows[:SHOWN]

    def __repr__(self) -> str:
        heads, rows = self.shown()
        if not rows:
            return "[]"
        columns = [[name, *(cell_text(row.get(name)) for row in rows)] for name in heads]
        lines = _side_by_side(columns, max(shutil.get_terminal_size().columns, _NARROW))
        more = [f"… and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return "\n".join([*lines, *more])


def _side_by_side(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of text; where there is no room for all columns, those go first that say the same in each row."""
    widths = [max(map(len, column)) for column in columns]
    same = [at for at, column in enumerate(columns) if at and len(set(column[1:])) == 1 < len(column) - 1]
    left = [at for at in range(len(columns)) if at not in same]
    dropped = [*reversed(same), *reversed(left[1:])]
    shown = list(range(len(columns)))
    while dropped and sum(widths[at] for at in shown) + _GAP * len(shown) > width:
        shown.remove(dropped.pop(0))
    more = " …" if len(shown) < len(columns) else ""
    return [
        (" " * _GAP).join(line[at].ljust(widths[at]) for at in shown).rstrip() + more
        for line in zip(*columns, strict=True)
    ]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all rows: what an item is, then what it was given, then what was measured."""
    names = dict.fromkeys(name for row in rows for name in row)
    return sorted(names, key=lambda name: (name.startswith("metrics."), "." in name))


def named(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under ``prefix.name``; those that are not plain data in words."""
    return {f"{prefix}.{name}": words(v) if is_opaque(v) else v for name, v in values.items()}


def measured(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of a run as columns; of a mapped step the best value, the least and the greatest."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if not isinstance(value, list):
            found[f"metrics.{name}"] = value
            continue
        best = best_of(value, mode_of(name))
        numbers = [known for one in value if (known := number(one)) is not None]
        found[f"metrics.{name}"] = None if best is None else value[best]
        found[f"metrics.{name}.min"] = min(numbers, default=None)
        found[f"metrics.{name}.max"] = max(numbers, default=None)
    return found


def cell_text(value: object) -> str:
    """A value of a column as people read it."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
