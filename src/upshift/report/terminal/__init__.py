"""Text on a page: columns that line up, curves and graphs in characters, nothing too wide; and streams."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO

import attrs

NARROWEST = 20
"""Columns: on a narrower terminal lines are broken by the terminal."""
WIDEST = 120
"""Columns: a table does not get easier to read beyond this."""
GAP = 2
"""Columns between two columns of a table."""
_PIPED_WIDTH = 100
_HARD = "\N{NO-BREAK SPACE}"
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
STATUS_STYLES: Mapping[str, str] = {
    "pending": "dim",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "skipped": "dim",
    "reused": "blue",
}


@attrs.frozen
class Page:
    """What text is laid out for."""

    width: int = _PIPED_WIDTH  # columns
    colour: bool = False  # whether ANSI colours are understood and wanted
    terminal: int = 0  # columns that the terminal has

    @property
    def whole(self) -> Page:
        """A page as wide as the terminal, for tables with many columns."""
        return attrs.evolve(self, width=max(self.width, self.terminal))

    @classmethod
    def of_stdout(cls) -> Page:
        """The page that stdout is: ``COLUMNS`` or the terminal's width, from 20 to 120; else 100."""
        if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
            return cls()
        columns = max(shutil.get_terminal_size((_PIPED_WIDTH, 0)).columns, NARROWEST)
        return cls(min(columns, WIDEST), wants_colour(sys.stdout), columns)

    def paint(self, text: str, style: str | None) -> str:
        """``text`` in a style: ``"bold"``, ``"red"``, ….

        Each line is closed by itself, so that painted text may be cut into lines afterwards.
        """
        if not (self.colour and style and text):
            return text
        return "\n".join(f"\x1b[{_CODES[style]}m{line}\x1b[0m" for line in text.split("\n"))


def wants_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that shows colours, and the user has not set ``NO_COLOR``."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def cells(text: str) -> int:
    """Columns that ``text`` takes on a terminal; wide characters take two, colours none."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    bare = _ESCAPE.sub("", text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in bare)
    return len(bare) + wide - sum(unicodedata.combining(c) != 0 for c in bare)


def cut(text: str, width: int) -> str:
    """``text`` without colours in at most ``width`` columns, an ellipsis where something is missing."""
    return text if cells(text) <= width else _head(text, width - 1) + "…"


def wrap(text: str, width: int) -> list[str]:
    """``text`` without colours on lines of at most ``width`` columns, broken at blanks where possible."""
    lines: list[str] = []
    width = max(width, 1)
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if cells(longer) <= width:
                line = longer
                continue
            if line:
                lines.append(line)
            while cells(word) > width:
                head = _head(word, width) or word[0]
                lines.append(head)
                word = word[len(head) :]
            line = word
        lines.append(line)
    return lines


def _wrap_listed(items: Sequence[str], width: int) -> list[str]:
    """Items with commas between them, as :func:`wrap`; one that fits on a line is not broken."""
    hard = [item.replace(" ", _HARD) if cells(item) < width else item for item in items]
    return [line.replace(_HARD, " ") for line in wrap(", ".join(hard), width)]


def labelled(label: str, text: str | Sequence[str], width: int) -> list[tuple[str, str]]:
    """Lines of a text, or of listed items, of at most ``width`` columns, the label beside the first one."""
    first, *rest = wrap(text, width) if isinstance(text, str) else _wrap_listed(text, width)
    return [(label, first), *(("", line) for line in rest)]


def _head(text: str, width: int) -> str:
    """The beginning of ``text`` that fits into ``width`` columns."""
    head = text[: max(width, 0)]
    while head and cells(head) > width:
        head = head[:-1]
    return head


def pad(text: str, width: int) -> str:
    """``text`` and blanks, ``width`` columns in all."""
    return text + " " * (width - cells(text))


def fit(natural: Sequence[int], available: int, least: Sequence[int]) -> list[int]:
    """Widths of columns that share ``available`` columns: the widest give way first."""
    widths = list(natural)
    while sum(widths) > available:
        yielding = [i for i, width in enumerate(widths) if width > least[i]]
        if not yielding:
            break
        widths[max(yielding, key=widths.__getitem__)] -= 1
    return widths


def columns(texts: Sequence[str], widths: Sequence[int]) -> str:
    """A line of cells that fit their widths already; they may be painted."""
    return (" " * GAP).join(pad(text, width) for text, width in zip(texts, widths, strict=True)).rstrip()


def heading(names: Sequence[str], widths: Sequence[int], page: Page) -> list[str]:
    """Names of columns, and a rule below them."""
    rule = "─" * (sum(widths) + GAP * (len(widths) - 1))
    return [columns(names, widths), page.paint(rule, "dim")]


_LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 16


def spark(values: Sequence[object], *, width: int = WIDTH, bounds: tuple[float, float] | None = None) -> str:
    """The shape of a curve, from its least value to its greatest; empty, if it has none."""
    numbers = _finite(values)
    low, high = bounds or (min(numbers, default=0.0), max(numbers, default=0.0))
    if low == high:
        return ""
    size = max(len(values) / width, 1.0)
    ends = [round(i * size) for i in range(1, min(len(values), width) + 1)]
    return "".join(_level(_finite(values[a:b]), low, high) for a, b in zip([0, *ends], ends, strict=False))


def _level(numbers: Sequence[float], low: float, high: float) -> str:
    share = (sum(numbers) / len(numbers) - low) / (high - low) if numbers else math.nan
    if not math.isfinite(share):  # no number, or numbers whose difference is none
        return " "
    return _LEVELS[max(0, min(int(share * len(_LEVELS)), len(_LEVELS) - 1))]


def _finite(values: Sequence[object]) -> list[float]:
    return [v for v in values if type(v) in (int, float) and math.isfinite(v)]  # type: ignore


_COLOURS = r"\x1b\[[0-9;:]*m"
_COMMANDS = (
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # of a terminal: to move, to clear, to switch modes
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # with a text: titles, links, the clipboard
    r"|\x1b[^\n]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_CONTROLS = re.compile(f"({_COLOURS})|{_COMMANDS}")  # ECMA-48, and xterm's control sequences


def cleaned(text: str) -> str:
    """A text without what would make a terminal do anything but show it, in its colours."""
    return _CONTROLS.sub(lambda found: found[1] or "", text)


class Outlet:
    """A stream that goes silent when its reader is gone, instead of raising."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.gone = False
        self._terminal = stream.isatty()

    def write(self, text: str) -> None:
        """Write and flush ``text``, :func:`cleaned` for a terminal."""
        self.draw(cleaned(text) if self._terminal else text)

    def draw(self, text: str) -> None:
        """Write text with control sequences; characters that the stream lacks are escaped."""
        if self.gone:
            return
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                self.stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            self.stream.flush()
        except (OSError, ValueError):  # the pipe is broken, the terminal hung up, the file is closed
            self.gone = True


def shows(stream: TextIO, characters: str) -> bool:
    """Whether the encoding of ``stream`` has these characters."""
    try:
        characters.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def label(task: str, *, screen: bool) -> str:
    """What a line that a task printed begins with."""
    return f"{task} │ " if screen else f"[{task}] "


def printed(task: str, text: str) -> str:
    """What a task printed, each line with its label, where it is not on a screen."""
    prefix = label(task, screen=False)
    return "".join(f"{prefix}{line}\n" for line in text.removesuffix("\n").split("\n"))


_UP_END = {-1: "╰", 1: "╯"}
_GOES_ON = {-1: "├", 1: "┤"}


def draw(needs: Mapping[str, Sequence[str]], marks: Mapping[str, str], *, most: int) -> list[str] | None:
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
