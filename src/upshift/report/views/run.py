"""A run as plain data, in the order in which a reader wants it: what a page, a terminal or JSON can show.

::

    history ──► groups ──► view: head, failures, runs, results, metrics, tasks, steps, graph, timeline,
                  │          │   outputs
                  └──────────┴─ evidence: series, metrics and logs of the attempts that are shown in full
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import attrs

from upshift.model.graph import STATE, Collection, Constant, FromStep, Source
from upshift.model.plain import TEXT, TYPE, flat, is_opaque, words
from upshift.model.settings.sizes import format_size
from upshift.model.spec.task import Artifact
from upshift.model.spec.telemetry import Card
from upshift.report.human import TIMES, amount, duration, moment, of_tasks
from upshift.report.views.attempts import Devices, Evidence, devices_view
from upshift.report.views.charts import Cell, Chart, Table
from upshift.report.views.comparing import compare, rows_of_runs
from upshift.report.views.curves import Metrics, metrics_of, metrics_of_runs
from upshift.report.views.graph import Picture, picture
from upshift.report.views.groups import Group, Timeline, grouped, timeline, took
from upshift.report.views.records import RECORDS, SHORT
from upshift.report.views.steps import (
    StepView,
    TaskFailure,
    TaskTable,
    failures,
    memory_peak,
    step_view,
    task_table,
)
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run
from upshift.runtime.storage.artifacts import described

_FAILURES = 20
"""Kinds of failure that are told."""


@attrs.frozen(kw_only=True)
class Fact:
    """One thing to know of a run, with a remark."""

    label: str
    text: str
    more: str = ""


@attrs.frozen(kw_only=True)
class Notice:
    """Something to know first: of which step or task, and what."""

    anchor: str
    who: str
    text: str


@attrs.frozen(kw_only=True)
class GpuProfile:
    """The accelerators of a step with ``@gpu_profile``; without any, its CPUs and its memory."""

    step: str
    anchor: str
    live: bool
    devices: Devices | None
    charts: Sequence[Chart]


@attrs.frozen(kw_only=True)
class RunView:
    """All that a reader sees of a run."""

    id: str
    pipeline: str
    status: str
    target: str
    made: str
    going_on: bool
    facts: Sequence[Fact]
    tags: Sequence[str]
    params: Mapping[str, str]
    figures: Sequence[Fact]
    notices: Sequence[Notice]
    resume: str | None
    failures: Sequence[TaskFailure]
    more_failures: int
    runs: Table | None  # a row for each, where the view is of several
    result: Sequence[ValueView]
    cards: Sequence[CardGroup]
    metrics: Sequence[Metrics]
    gpus: Sequence[GpuProfile]
    tasks: Sequence[TaskTable]
    steps: Sequence[StepView]
    graph: Picture | None
    timeline: Timeline | None
    outputs: Table | None


def run_view(run: Run, others: Sequence[Run] = (), *, now: datetime | None = None) -> RunView:
    """The view."""
    now = now or datetime.now(timezone.utc)
    groups, evidence = grouped(run, run.graph), Evidence(run)
    failed = list(failures(run, groups, evidence))
    if others:
        metrics = metrics_of_runs({each.id: grouped(each, each.graph) for each in (run, *others)})
    else:
        metrics = [shown for group in groups if (shown := metrics_of(group))]
    return RunView(
        id=run.id,
        pipeline=run.pipeline,
        status=run.row.status,
        target=run.target,
        made=moment(now),
        going_on=run.status in ("pending", "running"),
        facts=list(_facts(run, now)),
        tags=list(run.tags),
        params=dict(run.param_texts),
        figures=list(_figures(run, groups)),
        notices=list(_notices(groups)),
        resume=f"upshift resume {run.id}" if run.status in ("failed", "cancelled") else None,
        failures=failed[:_FAILURES],
        more_failures=max(len(failed) - _FAILURES, 0),
        runs=_side_by_side((run, *others)) if others else None,
        result=result_of(run),
        cards=cards_of(groups),
        metrics=metrics,
        gpus=list(_profiles(groups, evidence)),
        tasks=[task_table(group) for group in groups if group.many and group.tasks],
        steps=[step_view(group, evidence) for group in groups],
        graph=picture(groups, run.graph) if groups else None,
        timeline=timeline(run, groups, now) if groups else None,
        outputs=outputs_of(groups),
    )


def _side_by_side(runs: Sequence[Run]) -> Table:
    """The runs as rows: parameters that differ and last metrics, the best marked."""
    unique = list({run.id: run for run in runs}.values())
    return compare(rows_of_runs(unique, curves=False), "run", by_best=True).table("Runs")


# The head.


def _facts(run: Run, now: datetime) -> Iterator[Fact]:
    yield Fact(label="started", text=moment(run.started))
    if (seconds := took(run)) is not None:
        yield Fact(label="took", text=duration(seconds))
    elif run.status in ("pending", "running"):
        yield Fact(label="took", text=f"still running when this was made, {moment(now)}")
    if run.user:
        yield Fact(label="by", text=run.user)
    yield Fact(label="on", text=run.target)


def _figures(run: Run, groups: Sequence[Group]) -> Iterator[Fact]:
    tasks = [task for group in groups for task in group.tasks]
    attempts = [attempt for task in tasks for attempt in task.attempts if attempt.run == run.id]
    statuses = Counter("reused" if task.cached else task.status for task in tasks)
    shares = ", ".join(f"{number:,} {status}" for status, number in statuses.items())
    yield Fact(label="steps", text=f"{sum(len(group.steps) for group in groups):,}")
    yield Fact(label="tasks", text=f"{len(tasks):,}", more=shares if len(statuses) > 1 else "")
    cpu = math.fsum(_detail(attempt, "cpu_seconds") for attempt in attempts)
    peak = max((memory_peak(attempt) or 0 for attempt in attempts), default=0)
    if cpu:
        yield Fact(label="CPU time", text=duration(cpu))
    if peak:
        yield Fact(label="peak memory of a task", text=format_size(peak))
    gpus = [(len(a.granted.gpus or ()) if a.granted else 0, took(a) or 0.0, a) for a in attempts]
    granted = math.fsum(number * seconds for number, seconds, _ in gpus)
    if granted:
        busy = math.fsum(_detail(attempt, "gpu_mean") * seconds for _, seconds, attempt in gpus)
        more = f"{100 * busy / granted:.0f} % busy" if busy else ""
        yield Fact(label="GPU time", text=duration(granted), more=more)


def _detail(attempt: Attempt, key: str) -> float:
    value = attempt.used.details.get(key) if attempt.used else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def _notices(groups: Sequence[Group]) -> Iterator[Notice]:
    """What was granted less than was asked for, and what is not on record."""
    asked, granted = RECORDS.index("asked"), RECORDS.index("granted")
    for group in groups:
        short = [row for row in group.records if row[granted].endswith(SHORT)]
        if short:
            told = "; ".join(
                f"{row[asked]} asked, {row[granted].removesuffix(SHORT)} granted" for row in short
            )
            yield Notice(anchor=group.anchor, who=group.title, text=told)
        for who, what in of_tasks(group.tasks):
            yield Notice(anchor=group.anchor, who=who, text=what)


def _profiles(groups: Sequence[Group], evidence: Evidence) -> Iterator[GpuProfile]:
    """The devices of each step with ``@gpu_profile``; of several tasks those of the last one."""
    for group in groups:
        if group.definition.settings.profile is None or not group.attempts:
            continue
        attempt = group.attempts[-1]
        devices = devices_view(attempt, evidence.series(attempt))
        yield GpuProfile(
            step=group.title,
            anchor=group.anchor,
            live=attempt.status == "running",
            devices=devices,
            charts=devices.charts if devices else (),
        )


_MOST = 24
"""Values of a result that are told one by one."""
_LONGEST = 400
"""Letters of a value."""
_FIGURE = 24
"""Letters of a value that is told in large type."""


@attrs.frozen(kw_only=True)
class ValueView:
    """One value of the result, by name and in words; ``brief``: short enough for large type."""

    name: str
    text: str
    brief: bool


@attrs.frozen(kw_only=True)
class CardGroup:
    """What the tasks of one step have to show."""

    step: str
    anchor: str
    cards: Sequence[Card]


def result_of(run: Run) -> list[ValueView]:
    """What the pipeline returned, as far as it is there; values that are not plain data by type and size."""
    source = run.graph.output
    if source is None:
        return []
    values = _values(run, source, "") if run.graph.flow is None else _of_flow(run, source)
    return list(islice(values, _MOST))


def cards_of(groups: Sequence[Group]) -> list[CardGroup]:
    """The cards, by step."""
    found = ((group, [s.card for attempt in group.attempts for s in attempt.cards]) for group in groups)
    return [CardGroup(step=g.title, anchor=g.anchor, cards=cards) for g, cards in found if cards]


def outputs_of(groups: Sequence[Group]) -> Table | None:
    """Value or type, size and digest of what each step made; many of a kind together."""
    rows = [row for group in groups for row in _made(group)]
    heads = ("output", "value or type", "size", "digest")
    return Table(title="Outputs", heads=heads, rows=rows, numeric=(2,)) if rows else None


def _values(run: Run, source: Source, name: str) -> Iterator[ValueView]:
    if isinstance(source, Collection):
        keys = source.keys or [str(number) for number in range(len(source.items))]
        for key, item in zip(keys, source.items, strict=True):
            yield from _values(run, item, f"{name}.{key}" if name else key)
    elif isinstance(source, Constant):
        yield from _of_artifact(source.artifact, name or "result")
    else:
        yield from _of_step(run, source, name)


def _of_step(run: Run, source: FromStep, name: str) -> Iterator[ValueView]:
    own = source.node if source.output == "output" else f"{source.node}.{source.output}"
    label = name if name and not name.isdecimal() else own
    made = [task.artifacts.get(source.output) for task in run[source.node].tasks]
    found = [artifact for artifact in made if artifact is not None]
    if run[source.node].mapped:
        if found:
            yield ValueView(name=label, text=f"{len(found):,} {TIMES} {found[0].type}", brief=True)
        return
    for artifact in found:
        yield from _of_artifact(artifact, label)


def _of_flow(run: Run, source: Source) -> Iterator[ValueView]:
    """The artifacts that its last step left; parameters and constants are none of them."""
    first = run.graph.nodes[0].inputs[STATE]
    assert isinstance(first, Constant) and isinstance(source, FromStep)
    given = run.told(first.artifact)
    for task in run[source.node].tasks:
        state = task.artifacts.get(source.output)
        left = {} if state is None else run.told(state)
        for name in sorted(left, key=lambda name: is_opaque(left[name])):  # first what can be read
            if name not in given and not name.startswith("_"):
                yield from _in_words(flat(left[name], name), name)


def _of_artifact(artifact: Artifact, name: str) -> Iterator[ValueView]:
    return _in_words(flat(described(artifact)), name)


def _in_words(values: Mapping[str, Any], name: str) -> Iterator[ValueView]:
    for key, value in values.items():
        if value is not None or key:
            text = _words(value)
            text = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
            yield ValueView(name=key or name, text=text, brief=len(text) <= _FIGURE and "\n" not in text)


def _words(value: object) -> str:
    """A value in plain form, as people read it."""
    if is_opaque(value):
        assert isinstance(value, dict)
        return str(value.get(TEXT, value[TYPE])).removeprefix("<").removesuffix(">")
    if isinstance(value, float):
        return amount(value, "")
    return value if isinstance(value, str) else words(value)


def _made(group: Group) -> Iterator[list[Cell]]:
    found: dict[str, list[Artifact]] = {}
    for task in group.tasks:
        for output, artifact in task.made.items():
            found.setdefault(output, []).append(artifact)
    for output, made in found.items():
        alone = output == "output" and not group.tasks[0].in_flow
        label = group.name if alone else f"{group.name}.{output}"
        size = sum(artifact.bytes for artifact in made)
        digests = {artifact.digest for artifact in made}
        yield [
            Cell(text=label, anchor=group.anchor),
            Cell(text=_kind(group, made)),
            Cell(text=format_size(size), value=size),
            Cell(text=f"{len(digests):,} different" if group.many else digests.pop(), mark="soft"),
        ]


def _kind(group: Group, made: Sequence[Artifact]) -> str:
    kinds = list(dict.fromkeys(artifact.type for artifact in made))
    kind = " | ".join(kinds) if len(kinds) <= 3 else f"{len(kinds)} types"
    if group.many:
        return f"{len(made):,} {TIMES} {kind}"
    value = described(made[0])
    text = "" if is_opaque(value) or value is None else _words(value)
    return text if text and len(text) <= _FIGURE else kind
