"""Runs, or tasks of one step, as rows of a table: parameters, metrics, and which is best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import UsageError, suggestion
from upshift.model.plain import UNKNOWN, words
from upshift.report.human import DASH, duration
from upshift.report.views.charts import Cell, Table
from upshift.report.views.groups import took
from upshift.runs.history.runs import Run
from upshift.runs.history.steps import Step
from upshift.runs.history.tasks import Task
from upshift.runs.history.values import best_of, mode_of, number
from upshift.runtime.storage.metrics import value_text

TIME = "time"
_MOST = 200
"""Rows whose curves are read."""


@attrs.frozen(kw_only=True)
class Row:
    """A run, or a task."""

    name: str  # name, status: its id or name, and how it ended
    status: str
    given: Mapping[str, Any]  # parameters or inputs in plain form, by dotted name
    metrics: Mapping[str, Any]  # last values; of several tasks a list
    seconds: float | None = None  # how long it took; None: it is not over
    facts: Mapping[str, str] = attrs.field(factory=dict)  # what else is told of it, by title
    curves: Mapping[str, Sequence[object]] = attrs.field(factory=dict)
    """Values of each metric in the order of the calls, where one task logged it."""


@attrs.frozen(kw_only=True)
class Comparison:
    """Rows in an order, with the columns that are worth showing."""

    noun: str  # what a row is: ``"run"``, ``"task"``
    rows: Sequence[Row]  # the best first, or in the order of their sorting
    given: Sequence[str]
    """Names of the columns: of ``given`` those that are not the same in all rows."""
    metrics: Sequence[str]
    same: Mapping[str, Any]  # what is the same in all rows, by name
    sorted_by: str | None  # the name of the column that the rows are sorted by; None: by none
    best: Mapping[str, float | None]
    """For each metric the best value of the rows; None: nobody knows which that is."""

    def labels(self) -> dict[str, str]:
        """Short names of the columns: without what no two names need to be told apart."""
        return short_names([*self.given, *self.metrics], keep=self.metrics)

    def brief(self, row: Row) -> dict[str, str]:
        """A row in words, by the name of the column; of several tasks only the best value of a metric."""
        given = {name: plainly(row.given[name]) if name in row.given else DASH for name in self.given}
        metrics = {name: told(name, row.metrics.get(name), brief=True) for name in self.metrics}
        return {**given, **metrics}

    def table(self, title: str = "") -> Table:
        """The rows as cells."""
        labels = self.labels()
        facts = list(dict.fromkeys(name for row in self.rows for name in row.facts))
        statuses = {row.status for row in self.rows} not in ({"completed"}, {"reused"})
        ends = ("status",) * statuses
        heads = (self.noun, *(labels[name] for name in (*self.given, *self.metrics)), *ends, TIME, *facts)
        return Table(
            title=title,
            heads=heads,
            rows=[list(self._cells(row, facts, statuses)) for row in self.rows],
            numeric=range(1 + len(self.given), 1 + len(self.given) + len(self.metrics)),
        )

    def _cells(self, row: Row, facts: Sequence[str], statuses: bool) -> Iterator[Cell]:
        yield Cell(text=row.name)
        for name in self.given:
            value = row.given.get(name, None)
            yield Cell(text=plainly(value) if name in row.given else DASH, value=number(value))
        for name in self.metrics:
            value = _single(name, row.metrics.get(name))
            best = value is not None and value == self.best[name] and len(self.rows) > 1
            yield Cell(text=told(name, row.metrics.get(name)), value=value, mark="best" if best else None)
        if statuses:
            yield Cell(text=row.status, status=row.status)
        yield Cell(text=DASH if row.seconds is None else duration(row.seconds), value=row.seconds)
        yield from (Cell(text=row.facts.get(name, DASH)) for name in facts)


def compare(
    rows: Iterable[Row],
    noun: str,
    *,
    sort: str | None = None,  # a metric, the best first; a parameter, an input or ``time``, the least first
    metrics: Sequence[str] | None = None,  # in this order; None: all, in the order of their logging
    given: Sequence[str] | None = None,  # parameters or inputs; None: what is not the same in all rows
    by_best: bool = False,  # sort by the first metric that has a best, where nothing is said
) -> Comparison:
    """Put rows side by side; a name may be cut to its end: ``lr`` for ``config.optimizer.lr``."""
    every = list(rows)
    logged = dict.fromkeys(name for row in every for name in row.metrics)
    known = dict.fromkeys(name for row in every for name in row.given)
    chosen = list(logged) if metrics is None else [_known(name, logged, "metric") for name in metrics]
    if sort is None and by_best:
        sort = next((name for name in chosen if mode_of(name)), None)
    if sort is not None and sort != TIME:
        sort = _known(sort, [*logged, *known], "metric, parameter or input")
    if sort is not None:
        every.sort(key=lambda row: _place(row, sort))
    if sort in logged:
        chosen = [sort, *(name for name in chosen if name != sort)]
    differing = differing_in([row.given for row in every])
    same = {name: every[0].given[name] for name in known if name not in differing}
    if given is not None:
        differing = [_known(name, known, "parameter") for name in given]
        differing += [sort] if sort in known and sort not in differing else []
    return Comparison(
        noun=noun,
        rows=every,
        given=differing,
        metrics=chosen,
        same=same,
        sorted_by=sort,
        best={name: _best(name, every) for name in chosen},
    )


def differing_in(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names whose values are not the same in all of these."""
    names = dict.fromkeys(name for one in given for name in one)
    return [name for name in names if len({repr(one.get(name, UNKNOWN)) for one in given}) > 1]


def _best(name: str, rows: Sequence[Row]) -> float | None:
    values = [_single(name, row.metrics.get(name)) for row in rows]
    at = best_of(values, mode_of(name))
    return None if at is None else values[at]


def rows_of_runs(runs: Sequence[Run], *, curves: bool = True) -> list[Row]:
    """A row for each run, with the curves of its metrics if these are wanted."""
    facts = {
        name: texts
        for name, texts in {
            "pipeline": [run.pipeline for run in runs],
            "target": [run.target for run in runs],
            "tags": [", ".join(run.tags) for run in runs],
        }.items()
        if len(set(texts)) > 1
    }
    return [
        Row(
            name=run.id,
            status=run.row.status,
            given=run.flat_params,
            metrics=run.metrics,
            seconds=took(run),
            facts={name: texts[at] for name, texts in facts.items()},
            curves=_curves_of_run(run) if curves and len(runs) <= _MOST else {},
        )
        for at, run in enumerate(runs)
    ]


def rows_of_tasks(step: Step) -> list[Row]:
    """A row for each task of a step, with those of its inputs that are plain data."""
    tasks = step.tasks
    few = len(tasks) <= _MOST
    return [
        Row(
            name=str(task.row.task),
            status="reused" if task.cached and task.status == "completed" else task.status,
            given=task.plain_inputs,
            metrics=task.metrics,
            seconds=task.seconds,
            curves=_curves(task) if few else {},
        )
        for task in tasks
    ]


def short_names(names: Sequence[str], keep: Sequence[str] = ()) -> dict[str, str]:
    """Each name cut to its last parts, as long as no other one ends alike; those to ``keep`` stay whole."""
    found = {}
    for name in names:
        parts = name.split(".")
        ends = [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
        others = [other for other in names if other != name]
        free = (e for e in ends if not any(other == e or other.endswith(f".{e}") for other in others))
        found[name] = name if name in keep else next(free, name)
    return found


def told(name: str, value: Any, *, brief: bool = False) -> str:
    """A metric in words; of several tasks the best and, if not ``brief``, the range: ``0.94 (0.87–0.94)``."""
    if not isinstance(value, list):
        return DASH if value is None else value_text(value)
    numbers = sorted(known for one in value if (known := number(one)) is not None)
    if not numbers:
        return DASH
    spread = value_text(numbers[0])
    if numbers[0] != numbers[-1]:
        spread += f"{DASH}{value_text(numbers[-1])}"
    best = best_of(value, mode_of(name))
    if best is None or len(numbers) == 1:
        return spread
    return value_text(value[best]) + ("" if brief else f" ({spread})")


def plainly(value: Any) -> str:
    """A plain value in a cell: a text without quotes."""
    return value if isinstance(value, str) else words(value)


def _single(name: str, value: Any) -> float | None:
    """The number that stands for a metric: of several tasks the best, or the greatest."""
    if not isinstance(value, list):
        return number(value)
    at = best_of(value, mode_of(name) or "max")
    return None if at is None else number(value[at])


def _place(row: Row, name: str | None) -> tuple[int, float, str]:
    """Where a row stands: the best first, then numbers from the least, then texts, then what is not known."""
    if name is None or name == TIME:
        return (0, row.seconds, "") if row.seconds is not None else (2, 0.0, "")
    if name in row.metrics or name not in row.given:
        value = _single(name, row.metrics.get(name))
        return (2, 0.0, "") if value is None else (0, -value if mode_of(name) == "max" else value, "")
    value = number(row.given[name])
    return (1, 0.0, plainly(row.given[name])) if value is None else (0, value, "")


def _known(name: str, names: Iterable[str], noun: str) -> str:
    """The full name of a parameter or metric that was given in short."""
    every = list(dict.fromkeys(names))
    if name in every:
        return name
    found = [one for one in every if one.endswith((f".{name}", f"/{name}"))]
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"several are called {name!r}: {', '.join(found)}" if found else f"there is no {noun} {name!r}",
        fix="Write more of the name." if found else suggestion(name, every),
    )


def _curves(task: Task) -> dict[str, Sequence[object]]:
    metrics = task.attempts[-1].metrics if task.attempts else {}
    return {name: curve.values for name, curve in metrics.items()}


def _curves_of_run(run: Run) -> dict[str, Sequence[object]]:
    """The curves of metrics that one task logged."""
    found: dict[str, Sequence[object]] = {}
    for step in run.steps:
        if not step.mapped and step.tasks:
            found |= {
                name if name in run.metrics else f"{step.name}.{name}": v
                for name, v in _curves(step.tasks[0]).items()
            }
    return found
