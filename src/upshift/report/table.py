"""A table as plain data: what a page, a terminal or JSON can show alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from upshift.report.human import DASH, amount


@attrs.frozen(kw_only=True)
class Cell:
    """One cell."""

    text: str = ""  # what it says
    value: float | None = None  # the number that it is sorted by; None: it is sorted by its text
    status: str | None = None  # a status that the text is a word for
    anchor: str | None = None  # what of the same view it leads to
    # ``"best"`` of its column, ``"short"`` of what was asked for, ``"soft"``: beside the point
    mark: str | None = None


@attrs.frozen(kw_only=True)
class Table:
    """Rows of cells below their titles; ``numeric`` has the columns of figures."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numeric: Sequence[int] = ()

    def without_empty(self, keep: int = 1) -> Table:
        """The same without those columns after the first ``keep`` in which no row says anything."""
        shown = [
            at
            for at in range(len(self.heads))
            if at < keep or any(row[at].text not in ("", DASH) for row in self.rows)
        ]
        return Table(
            title=self.title,
            heads=[self.heads[at] for at in shown],
            rows=[[row[at] for at in shown] for row in self.rows],
            numeric=[new for new, at in enumerate(shown) if at in self.numeric],
        )


def told(value: float | None, unit: str) -> Cell:
    """An amount, or a dash where it is not known."""
    return Cell(text=DASH) if value is None else Cell(text=amount(value, unit), value=value)


def texts(values: Iterable[object]) -> list[Cell]:
    """Cells of plain text."""
    return [Cell(text=str(value)) for value in values]
