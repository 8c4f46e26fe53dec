"""Samples as SVG paths: no more points than pixels, and so few characters that an hour takes kilobytes.

A path is both the picture and the data: places on a grid of whole numbers, from which the page's script
computes the values again that it shows beside the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import attrs

MOST = 480
"""Points of a line; more samples than these become a mean, with a band from the least to the most."""
GRID = 10_000
"""Whole numbers along each side."""
FINE = 10_000_000
"""The grid of counts and values that are shown to more than three figures."""


@attrs.frozen
class Point:
    """One place of a line: a sample, or what several samples have in common."""

    x: float
    y: float
    low: float
    high: float


def thin(
    xs: Sequence[float],
    ys: Sequence[float | None],
    lows: Sequence[float | None] | None = None,
    highs: Sequence[float | None] | None = None,
    *,
    most: int = MOST,
) -> list[Point | None]:
    """At most ``most`` points; None: the line has a gap, since somebody did not know the value.

    Parameters
    ----------
    xs, ys
        The samples, ascending.
    lows, highs
        The least and the most at each x; default: ``ys``.
    most
        Parts that the xs are divided into, where there are more samples than that.
    """
    lows, highs = lows or ys, highs or ys
    if len(xs) <= most:
        return list(map(_sample, xs, ys, lows, highs))
    first = xs[0]
    scale = most / ((xs[-1] - first) or 1.0)
    parts: dict[int, list[int]] = {}
    for at, x in enumerate(xs):
        parts.setdefault(min(int((x - first) * scale), most - 1), []).append(at)
    points: list[Point | None] = []
    for number, part in parts.items():
        known = [y for at in part if (y := ys[at]) is not None and math.isfinite(y)]
        if known:
            low = min(known) if lows is ys else min(y for at in part if (y := lows[at]) is not None)
            high = max(known) if highs is ys else max(y for at in part if (y := highs[at]) is not None)
            points.append(Point(first + (number + 0.5) / scale, sum(known) / len(known), low, high))
        else:
            points.append(None)
    return points


@attrs.frozen
class Frame:
    """What part of the plane is drawn, and on which grid across.

    Parameters
    ----------
    left, right, bottom, top
        Values at the edges.
    grid
        Whole numbers along each side.
    """

    left: float
    right: float
    bottom: float
    top: float
    grid: int = GRID

    def across(self, x: float) -> int:
        """Where ``x`` is, from the left."""
        return round((x - self.left) / ((self.right - self.left) or 1.0) * self.grid)

    def down(self, y: float) -> int:
        """Where ``y`` is, from the top."""
        return round((self.top - y) / ((self.top - self.bottom) or 1.0) * self.grid)


def line(points: Iterable[Point | None], frame: Frame) -> str:
    """The path of the points."""
    return "".join(_path([(frame.across(p.x), frame.down(p.y)) for p in piece]) for piece in _pieces(points))


def band(points: Iterable[Point | None], frame: Frame) -> str:
    """The path around the least and the most: along the most, and back; empty where there is one value."""
    pieces = list(_pieces(points))
    if not any(p.low < p.high for piece in pieces for p in piece):
        return ""
    edges = [
        [(frame.across(p.x), frame.down(p.high)) for p in piece]
        + [(frame.across(p.x), frame.down(p.low)) for p in reversed(piece)]
        for piece in pieces
    ]
    return "".join(_path(edge) + "z" for edge in edges)


def _sample(x: float, y: float | None, low: float | None, high: float | None) -> Point | None:
    if y is None or low is None or high is None or not math.isfinite(y):
        return None
    return Point(x, y, low, high)


def _pieces(points: Iterable[Point | None]) -> Iterator[list[Point]]:
    piece: list[Point] = []
    for point in points:
        if point is not None:
            piece.append(point)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _path(places: Sequence[tuple[int, int]]) -> str:
    (x, y), *others = places
    parts = [f"M{x} {y}l"]
    if not others:
        return f"M{x} {y}l0 0"  # a round cap makes a dot of it
    for to_x, to_y in others:
        parts.append(f"{to_x - x} {to_y - y} ")
        x, y = to_x, to_y
    return "".join(parts).replace(" -", "-").rstrip()
