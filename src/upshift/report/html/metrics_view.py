"""What steps logged, as charts: a line for each task, a band where there are many; runs over each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from upshift.report.html.charts import Chart, Line, chart
from upshift.report.html.curves import FINE
from upshift.report.html.elements import Html, join, name, tag
from upshift.report.html.groups import Group
from upshift.report.html.scales import TIME, amount
from upshift.report.human import TIMES, count
from upshift.runs.history import Attempt
from upshift.runtime.storage.metrics import Curve

_MOST_LINES = 8
_MOST_TASKS = 200
"""Tasks of a step whose metrics are read."""
_MOST_CHARTS = 60
_LARGEST = 1e150
"""Numbers beyond this are not drawn: charts reckon with differences and products."""


@attrs.frozen
class Logged:
    """One metric of one task, with a name for its line; of which run, or rank, where there are several."""

    label: str
    curve: Curve
    run: str = ""
    noun: str = "task"


def logged(group: Group, *, prefix: str = "") -> dict[str, list[Logged]]:
    """By metric, what the tasks of a group logged at their last attempts; of a single one each of its ranks.

    Parameters
    ----------
    group
        The tasks.
    prefix
        What the names of the lines begin with: a run's id, where there are several.
    """
    found: dict[str, list[Logged]] = {}
    for task in group.tasks[:_MOST_TASKS]:
        if not task.attempts:
            continue
        if not group.many and not prefix:
            return _by_rank(task.attempts[-1])
        label = " ".join(filter(None, (prefix, str(task.row.task) if group.many else "")))
        for metric, curve in task.attempts[-1].metrics.items():
            found.setdefault(metric, []).append(Logged(label, curve, prefix))
    return found


def _by_rank(attempt: Attempt) -> dict[str, list[Logged]]:
    found: dict[str, list[Logged]] = {}
    for metric, first in attempt.metrics.items():
        curves = [of[metric] for of in attempt.metrics_by_rank.values() if metric in of]
        several = len(curves) > 1 or first.rank > 0
        found[metric] = [Logged(f"rank {c.rank}" if several else "", c, noun="rank") for c in curves]
    return found


def metrics_view(found: Mapping[str, Sequence[Logged]]) -> Html:
    """The charts of those metrics that are numbers, and a table of the others and of single values."""
    charts = [drawn for metric, lines in found.items() if (drawn := _chart(metric, lines))]
    others = {metric: lines for metric, lines in found.items() if not _is_curve(lines)}
    more = len(charts) - _MOST_CHARTS
    return join(
        tag("div", {"class": "charts"}, charts[:_MOST_CHARTS]) if charts else None,
        tag("p", {"class": "quiet"}, f"… and {count(more, 'metric')} more: upshift show")
        if more > 0
        else None,
        _table(others) if others else None,
    )


def _is_curve(lines: Iterable[Logged]) -> bool:
    return any(len(_numbers(line.curve)) > 1 for line in lines)


def _numbers(curve: Curve) -> list[float]:
    return [v for v in map(_drawn, curve.values) if math.isfinite(v)]


def _drawn(value: object) -> float:
    """A value as a chart draws it; NaN: it cannot, since it is none, or not even its square is a number."""
    if not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        return math.nan
    return float(value) if abs(value) > 1 / _LARGEST else 0.0


def _table(found: Mapping[str, Sequence[Logged]]) -> Html:
    """The last values, of several runs beside each other."""
    runs = list(dict.fromkeys(line.run for lines in found.values() for line in lines))
    head = [tag("th", {"scope": "col"}, name(run)) for run in ("", *runs)] if len(runs) > 1 else []
    rows = [
        tag(
            "tr",
            None,
            tag("th", {"scope": "row"}, name(metric)),
            [tag("td", None, name(_last([line for line in lines if line.run == run]))) for run in runs],
        )
        for metric, lines in found.items()
    ]
    return tag(
        "table",
        {"class": "plain"},
        tag("thead", None, tag("tr", None, head)) if head else None,
        tag("tbody", None, rows),
    )


def _last(lines: Sequence[Logged]) -> str:
    """The last value of each task, or rank; of many their range."""
    values = [line.curve.last for line in lines]
    texts = [amount(v, "") if isinstance(v, float) else str(v) for v in values]
    texts = [
        f"{text} ({line.label})" if line.noun == "rank" and line.label else text
        for text, line in zip(texts, lines, strict=True)
    ]
    if len(texts) <= _MOST_LINES:
        return ", ".join(texts)
    numbers = [v for v in values if isinstance(v, (int, float))]
    between = (
        f" {amount(min(numbers), '')} … {amount(max(numbers), '')}" if len(numbers) == len(values) else ""
    )
    return f"{len(texts):,} {TIMES}{between}"


def _chart(metric: str, lines: Sequence[Logged]) -> Html:
    if not _is_curve(lines):
        return Html("")
    counted = all(math.isfinite(_drawn(step)) for line in lines for step in line.curve.steps)
    drawn = [_line(line, counted) for line in lines]
    strange = sum(1 for line in drawn for y in line.ys if y is not None and not math.isfinite(y))
    notes = [f"{count(strange, 'value')} not drawn: not finite, or too large"] if strange else []
    if len(drawn) > _MOST_LINES:
        notes.insert(0, f"mean of {count(len(drawn), lines[0].noun)}")
        drawn = [_mean(drawn)]
    return join(
        chart(
            Chart(
                title=metric,
                unit="",
                lines=drawn,
                across="step" if counted else TIME,
                from_zero=False,
                grid=FINE,
                last=True,
                note=" · ".join(notes),
            )
        )
    )


def _line(logged: Logged, counted: bool) -> Line:
    curve = logged.curve
    along = curve.steps if counted else curve.times
    points = sorted(
        (
            (float(x or 0.0), _drawn(v))
            for x, v in zip(along, curve.values, strict=True)
            if isinstance(v, (int, float))
        ),
        key=lambda point: point[0],
    )
    return Line(logged.label, [x for x, _ in points], [y for _, y in points])


def _mean(lines: Sequence[Line]) -> Line:
    """All lines as one: at each x the mean, with a band from the least to the most."""
    found: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.xs, line.ys, strict=True):
            if y is not None and math.isfinite(y):
                found.setdefault(x, []).append(y)
    xs = sorted(found)
    return Line(
        "",
        xs,
        [sum(found[x]) / len(found[x]) for x in xs],
        lows=[min(found[x]) for x in xs],
        highs=[max(found[x]) for x in xs],
    )
