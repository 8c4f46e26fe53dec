"""What an attempt has logged: one small file of JSON lines that is whole at every instant.

A line is a header, an object, or a point, an array. A point begins with the number of its header, from 0,
by its place among them; the step is null where the caller said none.

::

    {"version": 1, "names": ["loss", "accuracy"]}
    [0, 1.234, 120, 0.231, 0.91]            header, seconds since the attempt started, step, values
    {"version": 1, "names": ["lr"]}
    [1, 1.235, 120, 0.001]
    {"version": 1, "names": ["loss"], "rank": 3}        what another one of several processes has logged
    [2, 1.236, 120, 0.247]

JSON has no numbers that are none, and no infinite ones: they are the texts ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``, which are read as numbers again.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from upshift.model.plain import finite
from upshift.model.spec.telemetry import MetricSummary, MetricValue

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
    rank
        Which of several processes logged it.
    """

    name: str
    values: Sequence[MetricValue] = attrs.field(repr=False)
    steps: Sequence[float | None] = attrs.field(repr=False)
    times: Sequence[float] = attrs.field(repr=False)
    rank: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def summary(self) -> MetricSummary:
        """All of it in short."""
        return MetricSummary(
            last=as_json(self.last),
            step=self.steps[-1],
            min=self.min,
            max=self.max,
            count=len(self),
            rank=self.rank,
        )

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
    """What is known in short of each metric, while points come: of several processes the first one's."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(
        self,
        points: Iterable[Sequence[Any]],  # beginning with the number of their header
        names: Mapping[int, Sequence[str]] | Sequence[Sequence[str]],  # what the values are called, by header
        *,
        rank: int = 0,  # which of several processes logged them
    ) -> None:
        """Further points, in the form and the order that they have in the file."""
        for number, group in groupby(points, key=itemgetter(0)):
            _, _, steps, *columns = zip(*group, strict=True)
            for name, values in zip(names[number], columns, strict=True):
                known = self._known.get(name)
                if known is None:
                    if len(self._known) == MOST:
                        continue
                    known = self._known[name] = _Known(rank, {rank})
                elif rank != known.rank:
                    known.ranks.add(rank)
                    if rank > known.rank:
                        continue
                    known = self._known[name] = _Known(rank, known.ranks)
                known.add(values, steps[-1])

    def by_name(self, most: int = MOST) -> dict[str, MetricSummary]:
        """The metrics that came first, ``most`` at most."""
        return {
            name: MetricSummary(
                last=k.last,
                step=k.step,
                min=k.min,
                max=k.max,
                count=k.count,
                rank=k.rank,
                ranks=len(k.ranks),
            )
            for name, k in islice(self._known.items(), most)
        }


class _Known:
    """The fields of a summary, which may change."""

    __slots__ = ("count", "last", "max", "min", "rank", "ranks", "step")

    def __init__(self, rank: int, ranks: set[int]) -> None:
        self.rank = rank
        self.ranks = ranks
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


def header(names: Sequence[str], rank: int = 0) -> bytes:
    """The line that comes before points with these values, of one of several processes."""
    fields = {"version": VERSION, "names": list(names), **({"rank": rank} if rank else {})}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def as_json(value: MetricValue) -> MetricValue:
    """A value as JSON has it."""
    return finite(value) if isinstance(value, float) else value


def from_json(value: MetricValue) -> MetricValue:
    """The value that :func:`as_json` gave this for."""
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


def read_by_rank(path: Path) -> dict[int, dict[str, Curve]]:
    """The metrics in a file, by rank and name, in the order in which they came first; none without a file.

    A line that is torn or strange is left out.
    """
    heads, tables = _read(path)
    parts: dict[tuple[int, str], list[_Columns]] = {}  # of each metric: places, times, steps and values
    for number, (places, times, steps, *columns) in tables.items():
        rank, names = heads[number]
        for name, values in zip(names, columns, strict=True):
            parts.setdefault((rank, name), []).append([places, times, steps, values])
    found: dict[int, dict[str, Curve]] = {}
    for (rank, name), columns in parts.items():
        found.setdefault(rank, {})[name] = _curve(name, rank, columns)
    return dict(sorted(found.items()))


def first_of(metrics: Mapping[int, Mapping[str, Curve]]) -> dict[str, Curve]:
    """Of each metric, by rank and name, the curve of the first rank that has logged it."""
    found: dict[str, Curve] = {}
    for curves in metrics.values():
        for name, curve in curves.items():
            found.setdefault(name, curve)
    return found


def summaries_of(metrics: Mapping[int, Mapping[str, Curve]]) -> dict[str, MetricSummary]:
    """The summary of each metric over all ranks, by name."""
    logged = Counter(name for curves in metrics.values() for name in curves)
    return {
        name: attrs.evolve(curve.summary, ranks=logged[name]) for name, curve in first_of(metrics).items()
    }


class _Head(NamedTuple):
    rank: int
    names: list[str]


def _read(path: Path) -> tuple[list[_Head], dict[int, _Columns]]:
    """The headers; and for each of them columns: places in the file, times, steps, values."""
    heads: list[_Head] = []
    tables: dict[int, _Columns] = {}
    place = 0
    for block in _blocks(path):
        points: dict[int, list[list[Any]]] = {}
        for line in block:
            if isinstance(line, dict):
                heads.append(_head(line))
            elif _is_point(line, heads):
                points.setdefault(line[0], []).append(line)
                line[0] = place
                place += 1
        for number, rows in points.items():
            table = tables.setdefault(number, [[] for _ in rows[0]])
            for column, values in zip(table, zip(*rows, strict=True), strict=True):
                column.extend(values)
    return heads, tables


def _is_point(line: Any, heads: Sequence[_Head]) -> bool:
    if not isinstance(line, list) or len(line) < 4 or type(line[0]) is not int:
        return False
    number, time, step, *values = line
    return (
        0 <= number < len(heads)
        and len(values) == len(heads[number].names)
        and _is_number(time)
        and (step is None or _is_number(step))
        and all(type(value) in _TEXTS or type(value) is float or _is_number(value) for value in values)
    )


def _is_number(value: object) -> bool:
    """Whether it is a finite number that can be reckoned with."""
    return type(value) in _NUMBERS and -_LARGEST <= value <= _LARGEST  # type: ignore


def _head(line: Mapping[str, Any]) -> _Head:
    """What a header says; no names: it is strange, and so are the points that refer to it."""
    rank, names = line.get("rank", 0), line.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return _Head(0, [])
    strange = len(set(names)) != len(names) or type(rank) is not int or rank < 0
    return _Head(0, []) if strange else _Head(rank, names)


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


def _curve(name: str, rank: int, parts: Sequence[_Columns]) -> Curve:
    """A metric from the columns of those headers that have it."""
    columns = parts[0]
    if len(parts) > 1:
        rows = sorted(row for part in parts for row in zip(*part, strict=True))
        columns = [list(column) for column in zip(*rows, strict=True)]
    _, times, steps, values = columns
    if any(type(value) is str for value in values):
        values = list(map(from_json, values))
    return Curve(name=name, values=values, steps=steps, times=times, rank=rank)


def _finite(values: Iterable[MetricValue]) -> list[float]:
    """The numbers among them that are finite; true and false are none."""
    return [v for v in values if type(v) in _NUMBERS and math.isfinite(v)]  # type: ignore


_LONGEST = 40
"""Characters of a text that are shown."""


def told(values: Mapping[str, MetricValue], step: float | None = None) -> str:
    """Some metrics in a line: ``loss 0.231, accuracy 0.91 (step 120)``."""
    text = ", ".join(f"{name} {value_text(value)}" for name, value in values.items())
    return text if step is None else f"{text} (step {value_text(step)})"


def newest(metrics: Mapping[str, MetricSummary]) -> dict[str, MetricValue]:
    """The newest value of each metric; the name says whose it is, where it is not rank 0's."""
    return {name + of_rank(summary.rank): summary.last for name, summary in metrics.items()}


def of_rank(rank: int) -> str:
    """`` (rank 1)``; empty for rank 0, which goes without saying."""
    return f" (rank {rank})" if rank else ""


def value_text(value: MetricValue) -> str:
    """A value: numbers with four figures, or as integers; a long text is cut, and cannot move the cursor."""
    value = from_json(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else f"{value:g}"
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    line = "".join(c if c.isprintable() else "?" for c in " ".join(value.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
