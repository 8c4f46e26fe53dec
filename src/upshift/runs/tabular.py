"""Lists of runs, and of the tasks of a step, that are tables as well, for pandas and notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from upshift.errors import MissingExtra
from upshift.model.plain import is_opaque, words
from upshift.runs.measures import best_of, mode_of, number

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

_SHOWN = 20
"""Rows that a notebook shows."""


class Rows(list[T]):
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

    def _repr_html_(self) -> str:
        rows = self.rows()
        told = {name for row in rows for name, value in row.items() if value is not None}
        heads = [name for name in _columns(rows) if name in told]
        shown = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(_text(row.get(name)))}</td>' for name in heads)}</tr>"
            for row in rows[:_SHOWN]
        )
        more = f"<p>… and {len(rows) - _SHOWN:,} more</p>" if len(rows) > _SHOWN else ""
        return f"<table><thead><tr>{shown}</tr></thead><tbody>{body}</tbody></table>{more}"


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


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
