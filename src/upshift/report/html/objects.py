"""Runs, steps, tasks and pipelines as a notebook draws them, in the colours of the page around them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from upshift.model.graph import Graph
from upshift.model.plain import words
from upshift.report.html.page import asset, environment
from upshift.report.human import count, duration, moment
from upshift.report.views.charts import Cell, Table, texts
from upshift.report.views.failures import alike, item_of
from upshift.report.views.graph import Picture, outline, picture
from upshift.report.views.groups import four_records, grouped
from upshift.report.views.records import RECORDS, side_by_side
from upshift.report.views.run import result_of
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run
from upshift.runs.history.steps import Step
from upshift.runs.history.tabular import SHOWN, Rows, cell_text, measured
from upshift.runs.history.tasks import Task
from upshift.runtime.storage.metrics import value_text

_FAILURES = 3
_MOST = 300
"""Letters of a message."""


@attrs.frozen(kw_only=True)
class Box:
    """What is drawn of an object, from top to bottom."""

    head: str = ""
    status: str = ""
    facts: Sequence[str] = ()
    done: float | None = None  # how far it is, from 0 to 1; None: there is no bar
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()
    failures: Sequence[str] = ()
    code: str = ""
    params: Mapping[str, str] = attrs.field(factory=dict)
    results: Mapping[str, str] = attrs.field(factory=dict)
    table: Table | None = None
    more: str = ""
    graph: Picture | None = None


def html_of(box: Box) -> str:
    """The box as HTML that brings its style with it, and changes nothing around it."""
    style = Markup(asset("notebook.css").partition("*/")[2])
    page = environment().get_template("notebook.html")
    return "\n".join(filter(None, page.render(view=box, paged=False, style=style).splitlines()))


@functools.singledispatch
def drawn(shown: Any) -> Box:
    """What is drawn of an object."""
    raise TypeError(f"{shown!r} is not drawn")


def drawn_definition(kind: str, name: str, code: str, where: str, text: str, graph: Graph | None) -> Box:
    """What is drawn of a step or pipeline that is only defined: its call, and the graph that it makes."""
    return Box(
        head=name,
        facts=[kind, where],
        lines=[text] if text else [],
        code=code,
        graph=None if graph is None else outline(graph),
    )


@drawn.register
def _run(run: Run) -> Box:
    took = [] if run.ended is None else [duration((run.ended - run.started).total_seconds())]
    table = _table_of(run.steps, "Steps")
    failed = alike(task for step in run.steps for task in step.tasks if task.status == "failed")
    return Box(
        head=run.pipeline,
        status=run.row.status,
        facts=[*took, f"started {moment(run.started)}", f"on {run.target}", f"run {run.id}", *run.tags],
        failures=[_failure(tasks[0], len(tasks), item_of(run, tasks[0])) for tasks in failed[:_FAILURES]],
        params=run.param_texts,
        results={value.name: value.text for value in result_of(run)} | _metrics(run.metrics),
        table=table,
        graph=picture(grouped(run, run.graph), run.graph) if run.steps else None,
    )


@drawn.register
def _step(step: Step) -> Box:
    seconds = step.seconds
    return Box(
        head=step.name,
        status="reused" if step.reused == len(step) > 0 else step.status,
        facts=["" if seconds is None else duration(seconds), count(len(step), "task")],
        results=_metrics(step.metrics),
        **_rows(step.tasks, "Tasks"),
    )


@drawn.register
def _task(task: Task) -> Box:
    took = [] if task.seconds is None else [duration(task.seconds)]
    return Box(
        head=str(task.row.task),
        status="reused" if task.cached else task.status,
        facts=[*took, task.why],
        failures=[_failure(task, 1)] if task.status == "failed" and task.attempts else [],
        params={name: words(value) for name, value in task.plain_inputs.items()},
        results={name: value_text(value) for name, value in task.metrics.items()},
        table=_records(task.attempts[-1]) if task.attempts else None,
    )


@drawn.register
def _attempt(attempt: Attempt) -> Box:
    started, ended = attempt.started, attempt.ended
    took = [] if started is None or ended is None else [duration((ended - started).total_seconds())]
    error = attempt.error
    return Box(
        head=f"{attempt.row.task}, attempt {attempt.number}",
        status=attempt.status,
        facts=[*took, attempt.node or ""],
        failures=[] if error is None else [f"{error.reason}: {error.message}"],
        results={name: value_text(curve.values[-1]) for name, curve in attempt.metrics.items()},
        table=_records(attempt),
    )


@drawn.register
def _list(rows: Rows) -> Box:  # type: ignore[type-arg]
    return Box(head="" if rows else "nothing", **_rows(rows, "Rows"))


def _rows(rows: Rows[Any], title: str) -> dict[str, Any]:
    more = f"… and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    return {"table": _table_of(rows, title), "more": more}


def _table_of(items: Rows[Any], title: str) -> Table:
    heads, rows = items.shown()
    cells = [[_cell(head, row.get(head)) for head in heads] for row in rows]
    numeric = [at for at in range(len(heads)) if any(row[at].value is not None for row in cells)]
    return Table(title=title, heads=heads, rows=cells, numeric=numeric)


def _cell(head: str, value: Any) -> Cell:
    status = str(value) if head == "status" else None
    figure = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return Cell(text=cell_text(value), value=figure, status=status)


def _records(attempt: Attempt) -> Table | None:
    rows = side_by_side([four_records(attempt)])
    return Table(title="Records", heads=RECORDS, rows=[texts(row) for row in rows]) if rows else None


def _metrics(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Last values; of a mapped step the best one, where its name tells which that is, and the ends."""
    found = measured(metrics)
    told: dict[str, str] = {}
    for name, value in metrics.items():
        best, low, high = (found.get(f"metrics.{name}{end}") for end in ("", ".min", ".max"))
        if not isinstance(value, list):
            told[name] = value_text(value)
        elif low is not None and high is not None:
            ends = value_text(low) if low == high else f"{value_text(low)} to {value_text(high)}"
            told[name] = ends if best is None or low == high else f"best {value_text(best)} ({ends})"
    return told


def _failure(task: Task, alike: int, item: str = "") -> str:
    error = task.attempts[-1].error if task.attempts else None
    what = f"{task.row.task}{item and f' with {item}'} failed" + (
        f", and {alike - 1:,} like it" if alike > 1 else ""
    )
    if error is None:
        return what
    said = shortened(f"{what} ({error.reason}): {error.message}")
    return f"{said}\n{error.where}" if error.where else said


def shortened(text: str) -> str:
    """A text whose middle can be read elsewhere."""
    return text if len(text) <= _MOST else f"{text[: _MOST - 60]} … {text[-50:]}"
