"""What a notebook shows, in the colours of the page around it: how far a run is, and runs as objects.

A cell that runs a pipeline has one short block, redrawn in place; what steps print stays below it. A run,
step, task, attempt or pipeline that a cell ends with is drawn in the same form: a :class:`Box`.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import attrs
from markupsafe import Markup

from upshift.model.graph import Graph
from upshift.model.plain import words
from upshift.model.spec.task import TaskId
from upshift.report import ImageChange, TaskChange
from upshift.report.human import about, count, duration, moment
from upshift.report.page import asset, environment
from upshift.report.terminal import Page, cleaned, printed
from upshift.report.terminal.progress import Redrawn
from upshift.report.terminal.tally import Clock, StepTally, ending
from upshift.report.views.charts import Cell, Table, texts
from upshift.report.views.graph import Picture, outline, picture
from upshift.report.views.groups import four_records, grouped, took
from upshift.report.views.records import RECORDS, side_by_side
from upshift.report.views.run import result_of
from upshift.report.views.steps import alike, item_of
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run
from upshift.runs.history.steps import Step
from upshift.runs.history.tasks import Task
from upshift.runs.history.values import SHOWN, Rows, cell_text, measured
from upshift.runtime.storage.metrics import value_text

_FAILURES = 3
"""Failures that are shown at most; of a run that goes on also …"""
_STEPS, _WARNINGS = 5, 10
"""… steps that run, and notices."""
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
    table = _table_of(run.steps, "Steps")
    failed = alike(task for step in run.steps for task in step.tasks if task.status == "failed")
    return Box(
        head=run.pipeline,
        status=run.row.status,
        facts=[
            *_lasted(run),
            f"started {moment(run.started)}",
            f"on {run.target}",
            f"run {run.id}",
            *run.tags,
        ],
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
    return Box(
        head=str(task.row.task),
        status="reused" if task.cached else task.status,
        facts=[*([] if task.seconds is None else [duration(task.seconds)]), task.why],
        failures=[_failure(task, 1)] if task.status == "failed" and task.attempts else [],
        params={name: words(value) for name, value in task.plain_inputs.items()},
        results={name: value_text(value) for name, value in task.metrics.items()},
        table=_records(task.attempts[-1]) if task.attempts else None,
    )


@drawn.register
def _attempt(attempt: Attempt) -> Box:
    error = attempt.error
    return Box(
        head=f"{attempt.row.task}, attempt {attempt.number}",
        status=attempt.status,
        facts=[*_lasted(attempt), attempt.node or ""],
        failures=[] if error is None else [f"{error.reason}: {error.message}"],
        results={name: value_text(curve.values[-1]) for name, curve in attempt.metrics.items()},
        table=_records(attempt),
    )


def _lasted(whole: Attempt | Run) -> list[str]:
    seconds = took(whole)
    return [] if seconds is None else [duration(seconds)]


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


PAUSE = 0.3
"""Seconds, at least, between two drawings."""
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")

Show = Callable[[Mapping[str, str]], None]
"""Shows a block, as text by MIME type, in place of the one before."""


class NotebookProgress(Redrawn):
    """Progress as a block of HTML; the error that the cell ends with has the traceback."""

    shows = False

    def __init__(self, show: Show, output: TextIO, clock: Clock = time.monotonic) -> None:
        super().__init__(output, Page(), clock, pause=PAUSE)
        self._show_block = show
        self._warnings: dict[str, None] = {}
        self._failures: list[str] = []
        self._failed = 0
        self._end: tuple[str, float] | None = None

    def image_changed(self, change: ImageChange) -> None:
        with self._lock:
            self._tally.image(change)
            if change.status == "failed":
                self._warn(ending(change))
        self._show()

    def notice(self, text: str, *, task: TaskId | None = None) -> None:
        with self._lock:
            self._warn(self._announcer.notice(text, task.step if task else None))
        self._show()

    def output(self, task: TaskId, text: str) -> None:
        self._output.write(printed(str(task), text))

    def run_ended(self, run: str, status: str, seconds: float) -> None:
        self._end = (status, seconds)
        self.close()

    def _tell_of(self, change: TaskChange) -> None:
        if change.retry_in is not None:
            self._warn(self._announcer.failure(change))
        elif change.status == "failed":
            self._failed += 1
            self._failures.append(_failed(change))
        self._warn(self._announcer.verdict(change))

    def _as_drawn(self, line: str) -> str:
        return _COLOURS.sub("", cleaned(line))

    def _warn(self, text: str | None) -> None:
        if text is not None:
            self._warnings[text] = None

    def _show(self) -> None:
        if self._tally.run:
            super()._show()

    def _draw(self) -> None:
        self._drawn = self._tally.clock()
        with self._lock:
            box = self._box()
        said = " · ".join(filter(None, (f"{box.head} {box.status}".strip(), *box.facts)))
        self._show_block({"text/html": html_of(box), "text/plain": said})

    def _box(self) -> Box:
        tally, now = self._tally, self._tally.clock()
        steps = list(tally.steps.values())
        going_on = not self._over.is_set()
        total = sum(step.total or 1 for step in steps)
        status, seconds = self._end or ("running", now - tally.began)
        lasted = duration(seconds) if self._end else f"{seconds:.0f} s" if seconds < 60 else duration(seconds)
        running = [step for step in steps if step.status == "running"] if going_on else []
        lines = [_line(step, now) for step in running[:_STEPS]]
        if going_on:
            lines += [f"{name}: {said}" for name, (_, said) in tally.images.items()]
            for name, drawn in list(tally.unfinished.items())[:_STEPS]:
                lines += [f"{name} │ {line}" for line in drawn]
        failures = self._failures[:_FAILURES]
        if self._failed > _FAILURES:
            failures.append(f"… and {count(self._failed - _FAILURES, 'more failure')}")
        return Box(
            head=tally.pipeline,
            status=status,
            facts=[lasted, _counts(steps), f"on {tally.target}", f"run {tally.run}"],
            done=sum(step.ended for step in steps) / total if going_on and total else None,
            lines=lines,
            warnings=[shortened(text) for text in list(self._warnings)[:_WARNINGS]],
            failures=[shortened(text) for text in failures],
        )


def _counts(steps: list[StepTally]) -> str:
    """``3 steps, 8 tasks, 2 reused``; while it runs ``1 of 3 steps``."""
    over = sum(step.over for step in steps)
    if over < len(steps):
        return f"{over:,} of {count(len(steps), 'step')}"
    tasks, reused = (
        sum(step.total or len(step.statuses) for step in steps),
        sum(step.reused for step in steps),
    )
    told = [count(len(steps), "step")]
    told += [count(tasks, "task")] if tasks != len(steps) else []
    told += [f"{reused:,} reused" if reused < tasks else "all reused"] if reused else []
    return ", ".join(told)


def _line(step: StepTally, now: float) -> str:
    """How far a step is: ``fit: 12 of 40 tasks, about 30 s left, best loss 0.1 [5] (0.1–0.2)``."""
    left = step.left(now)
    told = [f"{step.done:,} of {step.total:,} tasks"] if step.mapped and step.total is not None else []
    told += [] if left is None else [f"about {about(left)} left"]
    told += filter(None, [step.best or step.metrics, step.notice])
    return f"{step.name}: {', '.join(told) or 'running'}"


def _failed(change: TaskChange) -> str:
    failure = change.failure
    return f"{change.task} failed" + (f" ({failure.reason}): {failure.in_a_line}" if failure else "")


def in_this_cell() -> Show:
    """What shows a block in the output of the cell that runs now."""
    from IPython.display import display

    shown: list[object] = []

    def show(bundle: Mapping[str, str]) -> None:
        if shown:
            shown[0].update(dict(bundle), raw=True)  # type: ignore[attr-defined]
        else:
            shown.append(display(dict(bundle), raw=True, display_id=True))  # type: ignore[no-untyped-call]

    return show
