"""What steps logged, as charts: one line per task, rank or run; of very many lines the mean and the range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from upshift.model.spec.telemetry import MetricValue
from upshift.report.human import TIMES, amount, between, count
from upshift.report.views.charts import Cell, Chart, Line, Parts, Table
from upshift.report.views.groups import Group
from upshift.runs.history.attempts import Attempt
from upshift.runtime.storage.metrics import Curve

MOST_TASKS = 200
"""Tasks of a step whose curves are read."""
MOST_LINES = 60
"""Lines of a chart; more become their mean, and a band from the least to the most."""
_MOST_CHARTS = 60
_POINTS, _FEWEST, _MOST = 12_000, 60, 600
"""Points of a chart, and of one of its lines."""
_FIGURES = 6
_NAMED = 8
"""Values of a metric without a curve that are told one by one."""
_LARGEST = 1e150
"""Numbers beyond this are not drawn: charts reckon with differences and products."""


@attrs.frozen(kw_only=True)
class Logged:
    """One metric of one task, rank or run; ``task`` is its place among those of its step."""

    label: str = ""
    curves: Sequence[Curve]
    noun: str = "task"
    task: int | None = None


@attrs.frozen(kw_only=True)
class Metrics:
    """The charts of what a step logged, and a table of single values and texts."""

    step: str
    anchor: str
    charts: Sequence[Chart]
    left_out: int = 0
    values: Table | None = None


def metrics_of(group: Group) -> Metrics | None:
    """What the tasks of a group logged at their last attempts, of a single one each of its ranks."""
    return _metrics(group, _by_task(group) if group.many else _by_rank(group.attempts))


def metrics_of_runs(runs: Mapping[str, Sequence[Group]]) -> list[Metrics]:
    """The metrics of several runs over each other, a line for each, by the names of the lines."""
    steps: dict[str, Group] = {}
    found: dict[str, dict[str, list[Logged]]] = {}
    for label, groups in runs.items():
        for group in groups:
            steps.setdefault(group.name, group)
            of_run: dict[str, list[Curve]] = {}
            for attempt in group.attempts[:MOST_TASKS]:
                for metric, curve in attempt.metrics.items():
                    of_run.setdefault(metric, []).append(curve)
            for metric, curves in of_run.items():
                logged = Logged(label=label, curves=curves, noun="run")
                found.setdefault(group.name, {}).setdefault(metric, []).append(logged)
    return [shown for name, group in steps.items() if (shown := _metrics(group, found.get(name, {})))]


def _by_task(group: Group) -> dict[str, list[Logged]]:
    found: dict[str, list[Logged]] = {}
    for number, task in enumerate(group.tasks[:MOST_TASKS]):
        for metric, curve in task.attempts[-1].metrics.items() if task.attempts else ():
            logged = Logged(label=str(task.row.task), curves=[curve], task=number)
            found.setdefault(metric, []).append(logged)
    return found


def _by_rank(attempts: Sequence[Attempt]) -> dict[str, list[Logged]]:
    found: dict[str, list[Logged]] = {}
    for attempt in attempts:
        for metric, first in attempt.metrics.items():
            curves = [of[metric] for of in attempt.metrics_by_rank.values() if metric in of]
            several = len(curves) > 1 or first.rank > 0
            labels = [f"rank {curve.rank}" if several else "" for curve in curves]
            found[metric] = [
                Logged(label=label, curves=[curve], noun="rank")
                for label, curve in zip(labels, curves, strict=True)
            ]
    return found


def _metrics(group: Group, found: Mapping[str, Sequence[Logged]]) -> Metrics | None:
    charts = [chart_of(metric, lines) for metric, lines in found.items() if _is_curve(lines)]
    single = {metric: lines for metric, lines in found.items() if not _is_curve(lines)}
    if group.many:  # the table of its tasks has a column for each number
        single = {
            metric: lines for metric, lines in single.items() if lines[0].noun == "run" or _texts(lines)
        }
    if not charts and not single:
        return None
    return Metrics(
        step=group.title,
        anchor=group.anchor,
        charts=charts[:_MOST_CHARTS],
        left_out=max(len(charts) - _MOST_CHARTS, 0),
        values=_values(single) if single else None,
    )


def _values(found: Mapping[str, Sequence[Logged]]) -> Table:
    """The last values, with a column for each run where there are several."""
    every = (line for lines in found.values() for line in lines)
    runs = list(dict.fromkeys(line.label for line in every if line.noun == "run"))
    rows = []
    for metric, lines in found.items():
        each = [[line for line in lines if line.label == run] for run in runs] or [list(lines)]
        rows.append([Cell(text=metric), *(Cell(text=_last(same)) for same in each)])
    return Table(title="Values", heads=("metric", *(runs or ["last value"])), rows=rows)


def chart_of(metric: str, found: Sequence[Logged]) -> Chart:
    """The chart of one metric: over the steps that were counted, else over time."""
    counted = all(
        math.isfinite(_drawn(step)) for line in found for curve in line.curves for step in curve.steps
    )
    lines = [_line(logged, counted, len(found)) for logged in found]
    last = [values[-1] for logged in found if (values := _numbers(logged.curves))]
    notes = [f"last {between(last, _figure)}"] if last else []
    if len(lines) > MOST_LINES:
        notes.append(f"mean of {count(len(lines), found[0].noun)}")
        lines = [_mean(lines, "", None)]
    elif len(lines) > 1:
        notes.append(count(len(lines), found[0].noun))
    strange = sum(not math.isfinite(_drawn(v)) for line in found for c in line.curves for v in c.values)
    if strange:
        notes.append(f"{count(strange, 'value')} not drawn: not finite, or too large")
    return Chart(
        title=metric,
        unit="",
        lines=lines,
        across="step" if counted else "s",
        from_zero=False,
        summary=" · ".join(notes),
    )


def _line(logged: Logged, counted: bool, lines: int) -> Line:
    most = min(max(_POINTS // lines, _FEWEST), _MOST)
    each = [_points(curve, counted) for curve in logged.curves]
    if len(each) > 1:
        whole = [Line(x=[x for x, _, _ in points], y=[y for _, _, y in points]) for points in each]
        return _mean(whole, logged.label, logged.task)
    (points,) = each
    parts = Parts([x for x, _, _ in points], most)
    seconds = [round(t, 3) for t in parts.means([t for _, t, _ in points])] if counted else None
    line = parts.line(logged.label, [y for _, _, y in points], _FIGURES, times=seconds, task=logged.task)
    return line if lines == 1 else attrs.evolve(line, low=None, high=None)


def _points(curve: Curve, counted: bool) -> list[tuple[float, float, float]]:
    """Place, seconds and value of each number, ascending."""
    along = curve.steps if counted else curve.times
    found = zip(along, curve.times, curve.values, strict=True)
    points = [(_drawn(x), float(t), _drawn(v)) for x, t, v in found if isinstance(v, (int, float))]
    return sorted(points, key=lambda point: point[0])


def _mean(lines: Sequence[Line], label: str, task: int | None) -> Line:
    """All lines as one: at each x the mean, with a band from the least to the most."""
    found: dict[float, list[float]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            if y is not None and math.isfinite(y):
                found.setdefault(x, []).append(y)
    xs = sorted(found)
    most = [max(found[x]) for x in xs]
    low = Parts(xs, _MOST).line("", [min(found[x]) for x in xs], _FIGURES)
    high = Parts(xs, _MOST).line("", most, _FIGURES)
    mean = Parts(xs, _MOST).line(label, [sum(found[x]) / len(found[x]) for x in xs], _FIGURES, task=task)
    return attrs.evolve(mean, low=low.low or low.y, high=high.high or high.y)


def _is_curve(lines: Iterable[Logged]) -> bool:
    """Whether there is something to draw: a line that is flat everywhere is a value."""
    each = (_numbers([curve]) for line in lines for curve in line.curves)
    return any(len(set(values)) > 1 for values in each)


def _numbers(curves: Iterable[Curve]) -> list[float]:
    return [v for curve in curves for v in map(_drawn, curve.values) if math.isfinite(v)]


def _texts(lines: Sequence[Logged]) -> bool:
    return any(isinstance(curve.last, (str, bool)) for line in lines for curve in line.curves)


def _drawn(value: object) -> float:
    """A value as a chart draws it; NaN: it cannot, since it is none, or not even its square is a number."""
    if not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        return math.nan
    return float(value) if abs(value) > 1 / _LARGEST else 0.0


def _last(lines: Sequence[Logged]) -> str:
    """The last value of each task, or rank; of many their range."""
    values = [curve.last for line in lines for curve in line.curves]
    if len(values) > _NAMED:
        numbers = [v for v in values if isinstance(v, (int, float))]
        spread = f" {between(numbers, _figure)}" if len(numbers) == len(values) else ""
        return f"{len(values):,} {TIMES}{spread}"
    return ", ".join(
        _words(curve.last) + (f" ({line.label})" if line.label and line.noun == "rank" else "")
        for line in lines
        for curve in line.curves
    )


def _words(value: MetricValue) -> str:
    return str(value) if isinstance(value, (str, bool)) else _figure(value)


def _figure(value: float) -> str:
    return amount(value, "")
