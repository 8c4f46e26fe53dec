"""What an attempt has logged: one small file of JSON lines that is whole at every instant.

A line is a header, an object, or a point, an array. A point begins with the number of its header, from 0,
by its place among them; the step is null where the caller said none.

::

    {"version": 1, "names": ["loss", "accuracy"]}
    [0, 1.234, 120, 0.231, 0.91]            header, seconds since the attempt started, step, values
    {"version": 1, "names": ["lr"]}
    [1, 1.235, 120, 0.001]

JSON has no numbers that are none, and no infinite ones: they are the texts ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``, which are read as numbers again.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import attrs

from upshift.spec.telemetry import MetricSummary, MetricValue

VERSION = 1
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MOST = 1000
"""Metrics of an attempt that are summed up. Points are kept of all."""
_NUMBERS = (int, float)
_TEXTS = (str, bool)
_LARGEST = sys.float_info.max
"""Integers in JSON may be larger, which nobody can reckon with."""
_Columns = list[list[Any]]
_BLOCK = 1 << 13
"""Bytes that are parsed at once: of more, the garbage collector looks at each point several times."""


@attrs.frozen(kw_only=True)
class Curve:
    """One metric over an attempt; its sequences are equally long, and in the order of the calls.

    Parameters
    ----------
    name
        As it was logged.
    values
        Numbers, booleans or texts.
    steps
        The caller's own count (of batches, of epochs) with each; None: not said.
    times
        Seconds since the attempt started.
    """

    name: str
    values: Sequence[MetricValue] = attrs.field(repr=False)
    steps: Sequence[float | None] = attrs.field(repr=False)
    times: Sequence[float] = attrs.field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def summary(self) -> MetricSummary:
        """All of it in short."""
        last = as_json(self.last)
        return MetricSummary(last=last, step=self.steps[-1], min=self.min, max=self.max, count=len(self))

    @property
    def last(self) -> MetricValue:
        """The newest value."""
        return self.values[-1]

    @property
    def min(self) -> float | None:
        """The least of the finite numbers; None: there are none."""
        return min(_finite(self.values), default=None)

    @property
    def max(self) -> float | None:
        """The greatest of the finite numbers; None: there are none."""
        return max(_finite(self.values), default=None)


class Summaries:
    """What is known in short of each metric, while points come."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(
        self, points: Iterable[Sequence[Any]], names: Mapping[int, Sequence[str]] | Sequence[Sequence[str]]
    ) -> None:
        """Further points, in the form and the order that they have in the file.

        Parameters
        ----------
        points
            Beginning with the number of their header.
        names
            What the values are called, by header.
        """
        for number, group in groupby(points, key=itemgetter(0)):
            _, _, steps, *columns = zip(*group, strict=True)
            for name, values in zip(names[number], columns, strict=True):
                known = self._known.get(name)
                if known is None:
                    if len(self._known) == MOST:
                        continue
                    known = self._known[name] = _Known()
                known.add(values, steps[-1])

    def by_name(self, most: int = MOST) -> dict[str, MetricSummary]:
        """Those that came first, so many at most."""
        return {
            name: MetricSummary(last=k.last, step=k.step, min=k.min, max=k.max, count=k.count)
            for name, k in islice(self._known.items(), most)
        }


class _Known:
    """The fields of a summary, which may change."""

    __slots__ = ("count", "last", "max", "min", "step")

    def __init__(self) -> None:
        self.count = 0
        self.last: MetricValue = ""
        self.step: float | None = None
        self.min: float | None = None
        self.max: float | None = None

    def add(self, values: Sequence[MetricValue], step: float | None) -> None:
        self.last, self.step = values[-1], step
        self.count += len(values)
        numbers = _finite(values)
        if numbers:
            least, most = min(numbers), max(numbers)
            self.min = least if self.min is None else min(self.min, least)
            self.max = most if self.max is None else max(self.max, most)


def header(names: Sequence[str]) -> bytes:
    """The line that comes before points with these values."""
    fields = {"version": VERSION, "names": list(names)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def as_json(value: MetricValue) -> MetricValue:
    """A value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_json(value: MetricValue) -> MetricValue:
    """The value that :func:`as_json` gave this for."""
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


def read_metrics(path: Path) -> dict[str, Curve]:
    """The metrics in a file, by name, in the order in which they came first; none where there is no file.

    A line that is torn or strange is left out.
    """
    names, tables = _read(path)
    parts: dict[str, list[_Columns]] = {}  # of each metric: places, times, steps and values
    for number, (places, times, steps, *columns) in tables.items():
        for name, values in zip(names[number], columns, strict=True):
            parts.setdefault(name, []).append([places, times, steps, values])
    return {name: _curve(name, found) for name, found in parts.items()}


def _read(path: Path) -> tuple[list[list[str]], dict[int, _Columns]]:
    """The names that each header has; for each, columns: places in the file, times, steps, values."""
    names: list[list[str]] = []
    tables: dict[int, _Columns] = {}
    place = 0
    for block in _blocks(path):
        points: dict[int, list[list[Any]]] = {}
        for line in block:
            if isinstance(line, dict):
                names.append(_names(line.get("names")))
            elif _is_point(line, names):
                points.setdefault(line[0], []).append(line)
                line[0] = place
                place += 1
        for number, rows in points.items():
            table = tables.setdefault(number, [[] for _ in rows[0]])
            for column, values in zip(table, zip(*rows, strict=True), strict=True):
                column.extend(values)
    return names, tables


def _is_point(line: Any, names: Sequence[Sequence[str]]) -> bool:
    if not isinstance(line, list) or len(line) < 4 or type(line[0]) is not int:
        return False
    number, time, step, *values = line
    return (
        0 <= number < len(names)
        and len(values) == len(names[number])
        and _is_number(time)
        and (step is None or _is_number(step))
        and all(type(value) in _TEXTS or type(value) is float or _is_number(value) for value in values)
    )


def _is_number(value: object) -> bool:
    """Whether it is a finite number that can be reckoned with."""
    return type(value) in _NUMBERS and -_LARGEST <= value <= _LARGEST  # type: ignore


def _names(found: object) -> list[str]:
    """The names in a header; none: it is strange, and so are the points that refer to it."""
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return []
    return found if len(set(found)) == len(found) else []


def _blocks(path: Path) -> Iterable[list[Any]]:
    """The lines of a file, parsed, many at once."""
    rest = b""
    with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        while data := file.read(_BLOCK):
            *lines, rest = (rest + data).split(b"\n")
            yield _parsed(lines)
        yield _parsed([rest])  # torn, if there is anything


def _parsed(lines: list[bytes]) -> list[Any]:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(b"[" + b",".join(lines) + b"]")  # type: ignore[no-any-return]
    parsed = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            parsed.append(json.loads(line))
    return parsed


def _curve(name: str, parts: Sequence[_Columns]) -> Curve:
    """A metric from the columns of those headers that have it."""
    columns = parts[0]
    if len(parts) > 1:
        rows = sorted(row for part in parts for row in zip(*part, strict=True))
        columns = [list(column) for column in zip(*rows, strict=True)]
    _, times, steps, values = columns
    if any(type(value) is str for value in values):
        values = list(map(from_json, values))
    return Curve(name=name, values=values, steps=steps, times=times)


def _finite(values: Iterable[MetricValue]) -> list[float]:
    """The numbers among them that are finite; true and false are none."""
    return [v for v in values if type(v) in _NUMBERS and math.isfinite(v)]  # type: ignore
