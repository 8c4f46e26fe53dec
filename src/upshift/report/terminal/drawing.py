"""A graph in characters: one line a node, lines beside them from each node to those that need it.

::

    ●       load
    ├─●     clean
    │ ├─●   score
    ●─┴─╯   report

Each node has one lane, from its own line down to the last one that needs it, so that what is needed
by many takes no more room than what is needed by one. Where a line passes behind a lane that it has
nothing to do with, the lane is drawn through: ``├─│─●``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_UP_END = {-1: "╰", 1: "╯"}
_GOES_ON = {-1: "├", 1: "┤"}


def draw(needs: Mapping[str, Sequence[str]], marks: Mapping[str, str], *, most: int) -> list[str] | None:
    """One line for each node."""
    last = {needed: name for name, names in needs.items() for needed in names}
    lanes = _Lanes(most)
    lines = []
    for name, names in needs.items():
        ending = {needed for needed in names if last[needed] == name}
        line = lanes.place(name, set(names), ending, marks[name], open_ended=name in last)
        if line is None:
            return None
        lines.append(line)
    return lines


class _Lanes:
    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: list[str | None] = []
        self._above = ""

    def place(
        self, name: str, names: set[str], ending: set[str], mark: str, *, open_ended: bool
    ) -> str | None:
        """The line of a node that needs ``names``; the lanes of those that are ``ending`` end here."""
        sources = {i: lane in ending for i, lane in enumerate(self._lanes) if lane in names}
        own = self._column(sources)
        if 2 * own + 1 > self._most:
            return None
        line = self._line(own, sources, mark)
        for column, ends in sources.items():
            if ends:
                self._lanes[column] = None
        if open_ended:
            self._lanes[own] = name
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()
        self._above = line
        return line

    def _column(self, sources: Mapping[int, bool]) -> int:
        """Below what it needs where that lane ends here; else where nothing is right above it."""
        ended = [column for column, ends in sources.items() if ends]
        if ended:
            return min(ended)
        column = 0
        while not self._is_free(column):
            column += 1
        self._lanes += [None] * (column + 1 - len(self._lanes))
        return column

    def _is_free(self, column: int) -> bool:
        # Two nodes one above the other look as if one needed the other.
        taken = column < len(self._lanes) and self._lanes[column] is not None
        return not taken and self._above[2 * column : 2 * column + 1] in ("", " ", "─")

    def _line(self, own: int, sources: Mapping[int, bool], mark: str) -> str:
        first, last = min([own, *sources]), max([own, *sources])
        cells = []
        for column, lane in enumerate(self._lanes):
            if column == own:
                cells.append(mark)
            elif column in sources:
                cells.append(_joint(column, sources[column], own, first, last))
            elif lane is not None:
                cells.append("│")
            else:
                cells.append("─" if first < column < last else " ")
        gaps = ["─" if first <= column < last else " " for column in range(len(cells))]
        return "".join(cell + gap for cell, gap in zip(cells, gaps, strict=True)).rstrip()


def _joint(column: int, ends: bool, own: int, first: int, last: int) -> str:
    """Where the lane of something that is needed meets the line to the node that needs it."""
    side = -1 if column < own else 1
    if column in (first, last):
        return _UP_END[side] if ends else _GOES_ON[side]
    return "┴" if ends else "┼"
