"""A chart: lines over time or over a count, with bands where many samples became few points.

Everything is placed in shares of the plot, so that it fits any width without a script. The script of
the page adds what moves: the values under the pointer, and a closer look at a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from upshift.report.html.curves import GRID, Frame, Point, band, line, thin
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.scales import TIME, amount, around, ticks, time_ticks

COLOURS = 8
"""Colours that there are; the next lines have them again, with another dash."""
_TICKS_ACROSS = 6
_TICKS_UP = 4
_MUCH_HIGHER = 4.0
"""A limit that is this many times what was reached is told, and not drawn: it would flatten the line."""


@attrs.frozen
class Line:
    """One line of a chart.

    Parameters
    ----------
    label
        Its name, for people.
    xs, ys
        Of the samples, ascending; None: not known.
    lows, highs
        The least and the most at each x, where a sample stands for several values.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    lows: Sequence[float | None] | None = None
    highs: Sequence[float | None] | None = None


@attrs.frozen(kw_only=True)
class Chart:
    """What is drawn.

    Parameters
    ----------
    title
        What the values are.
    unit
        Of the values, as :func:`upshift.report.html.scales.amount` knows them.
    lines
        At least one.
    across
        Unit of the xs: seconds, or a count's name.
    span
        The first and the last x; default: those of the lines. Charts below each other share it.
    low, high
        The ends of the axis; default: as the values need it.
    from_zero
        Whether the axis begins at zero, where it has no ``low``.
    limit
        A value that must not be passed, and what it is called.
    marks
        Moments of interest, and what happened.
    last
        Whether its last values sum it up, instead of means and peaks.
    note
        What else is to be said.
    grid
        Of the paths: :data:`~upshift.report.html.curves.GRID`, or finer.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    across: str = TIME
    span: tuple[float, float] | None = None
    low: float | None = None
    high: float | None = None
    from_zero: bool = True
    limit: tuple[float, str] | None = None
    marks: Sequence[tuple[float, str]] = ()
    last: bool = False
    note: str = ""
    grid: int = GRID


def chart(shown: Chart) -> Html:
    """The chart, or nothing where no value is known."""
    curves = [(line, thin(line.xs, line.ys, line.lows, line.highs)) for line in shown.lines]
    points = [point for _, found in curves for point in found if point is not None]
    if not points:
        return Html("")
    frame = _frame(shown, points)
    summary = _summary(shown)
    caption = tag(
        "figcaption",
        None,
        tag("b", None, name(shown.title)),
        " ",
        tag("span", {"class": "numbers"}, summary),
    )
    plot = tag(
        "div",
        {
            "class": "plot",
            "tabindex": 0,
            "role": "img",
            "aria-label": f"{shown.title}: {summary}. Arrow keys tell the values.",
            "data-x": f"{frame.left!r} {frame.right!r}",
            "data-y": f"{frame.bottom!r} {frame.top!r}",
            "data-grid": frame.grid,
            "data-unit": shown.unit,
            "data-across": shown.across,
        },
        _axes(shown, frame),
        _curves(curves, shown, frame),
    )
    return tag("figure", {"class": "chart"}, caption, _legend(shown), plot)


def dress(number: int) -> str:
    """The classes of line ``number``: its colour, and its dash."""
    dash = number // COLOURS % 3
    return f"c{number % COLOURS}" + (f" d{dash}" if dash else "")


def _frame(shown: Chart, points: Sequence[Point]) -> Frame:
    values = [point.low for point in points] + [point.high for point in points]
    if shown.limit is not None and shown.limit[0] <= _MUCH_HIGHER * max(values):
        values.append(shown.limit[0])
    bottom, top = around(values, from_zero=shown.from_zero)
    ends = [x for drawn in shown.lines if drawn.xs for x in (drawn.xs[0], drawn.xs[-1])]
    left, right = shown.span or (min(ends), max(ends))
    return Frame(
        left,
        right if right > left else left + max(1.0, abs(left) / 1000),
        bottom if shown.low is None else shown.low,
        top if shown.high is None else shown.high,
        shown.grid,
    )


def _summary(shown: Chart) -> str:
    """What the values were, in words: of one line its mean and peak, of several the range of these."""
    means, peaks, last = [], [], []
    for drawn in shown.lines:
        known = [y for y in drawn.ys if y is not None and y == y]
        if known:
            means.append(sum(known) / len(known))
            peaks.append(max(known))
            last.append(known[-1])
    if shown.last:
        texts = [f"last {_range(last, shown.unit)}"]
    else:
        texts = [f"mean {_range(means, shown.unit)}", f"peak {_range(peaks, shown.unit)}"]
    if shown.limit is not None:
        texts.append(f"{shown.limit[1]} {amount(shown.limit[0], shown.unit)}")
    return " · ".join([*texts, shown.note] if shown.note else texts)


def _range(values: Sequence[float], unit: str) -> str:
    low, high = amount(min(values), unit), amount(max(values), unit)
    if low == high:
        return low
    _, space, end = high.partition(" ")
    return f"{low.removesuffix(space + end) if space else low}–{high}"


def _legend(shown: Chart) -> Html:
    if len(shown.lines) < 2:
        return Html("")
    items = [
        tag(
            "button",
            {"type": "button", "class": f"key {dress(number)}", "aria-pressed": "true", "data-line": number},
            _swatch(),
            name(drawn.label),
        )
        for number, drawn in enumerate(shown.lines)
    ]
    return tag("div", {"class": "legend", "role": "group", "aria-label": "Lines to show"}, items)


def _swatch() -> Html:
    path = tag("path", {"d": "M0 5h22", "class": "line"})
    return tag("svg", {"width": 22, "height": 10, "aria-hidden": "true"}, path)


def _axes(shown: Chart, frame: Frame) -> Html:
    rows = [
        join(
            tag("line", {"x1": "0", "x2": "100%", "y1": at, "y2": at}),
            tag("text", {"x": "-7", "y": at, "class": "up"}, amount(value, shown.unit)),
        )
        for value, at in ((v, _share(frame.down(v), frame.grid)) for v in _ups(frame))
    ]
    spread = time_ticks if shown.across == TIME else ticks
    below = {"y": "100%", "class": "across"}
    columns = [
        tag("text", {"x": _share(frame.across(x), frame.grid), **below}, _mark(x, shown, number))
        for number, x in enumerate(spread(frame.left, frame.right, _TICKS_ACROSS))
    ]
    return tag("svg", {"class": "axes", "aria-hidden": "true"}, rows, tag("g", {"class": "xs"}, columns))


def _mark(x: float, shown: Chart, number: int) -> str:
    """The text below a tick; the first one says what is counted."""
    if shown.across == TIME:
        return amount(x, TIME)
    return f"{shown.across} {amount(x, '')}" if number == 0 else amount(x, "")


def _ups(frame: Frame) -> list[float]:
    return ticks(frame.bottom, frame.top, _TICKS_UP)


def _curves(curves: Sequence[tuple[Line, Sequence[Point | None]]], shown: Chart, frame: Frame) -> Html:
    """Everything that moves when a part is looked at more closely."""
    box = {"class": "curves", "viewBox": f"0 0 {frame.grid} {frame.grid}", "preserveAspectRatio": "none"}
    drawn = []
    for number, (curve, points) in enumerate(curves):
        around_it = band(points, frame)
        drawn.append(
            tag(
                "g",
                {"class": dress(number), "data-label": curve.label, "data-line": number},
                tag("path", {"class": "band", "d": around_it}) if around_it else None,
                tag("path", {"class": "line", "d": line(points, frame)}),
            )
        )
    return tag("svg", {**box, "aria-hidden": "true"}, drawn, _moments(shown, frame))


def _moments(shown: Chart, frame: Frame) -> list[Html]:
    """The limit, and moments of interest; these have titles, which the pointer finds."""
    drawn = []
    if shown.limit is not None and shown.limit[0] <= frame.top:
        drawn.append(tag("path", {"class": "limit", "d": f"M0 {frame.down(shown.limit[0])}h{frame.grid}"}))
    for x, what in shown.marks:
        drawn.append(
            tag(
                "path",
                {"class": "mark", "d": f"M{frame.across(x)} 0v{frame.grid}"},
                tag("title", None, what),
            )
        )
    return drawn


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.4g}%"
