"""A run as plain data, in the order in which a reader wants it: what a page, a terminal or JSON can show.

::

    history ──► groups ──► view: head, failures, results, metrics, tasks, steps, graph, timeline, outputs
                  │          │
                  └──────────┴─ evidence: series, metrics and logs of the attempts that are shown in full
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

import attrs

from upshift.model.settings.sizes import format_size
from upshift.report.attempts import (
    AttemptView,
    Devices,
    FailureView,
    LogView,
    attempt_view,
    devices_view,
    failure_view,
    log_view,
    stacks_view,
)
from upshift.report.charts import Chart
from upshift.report.curves import Metrics, metrics_of, metrics_of_runs
from upshift.report.evidence import TAIL, Evidence
from upshift.report.gaps import of_tasks
from upshift.report.graph import Picture, picture
from upshift.report.groups import Group, Rows, grouped, took
from upshift.report.human import DASH, count, duration, moment, span
from upshift.report.reasons import counted
from upshift.report.records import RECORDS, SAME, SHORT
from upshift.report.results import CardGroup, ValueView, cards_of, outputs_of, result_of
from upshift.report.table import Table
from upshift.report.tasks import TaskTable, in_full, memory_peak, task_table
from upshift.report.timeline import Timeline, timeline
from upshift.runs.history import Attempt, Run, Task

_FAILURES = 20
"""Kinds of failure that are told."""
_NAMED = 12
"""Tasks that failed alike and are named."""
_LINES = 15
"""Lines of its log that are shown with a failure."""
_TAIL_OF_MANY = 4096
"""Bytes of the end of the log of one of many tasks."""
_REASONS = 3
_EARLIER = 3
"""Attempts before the last ones that are told at once."""


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
class TaskFailure:
    """A task that failed, with the end of its log, those that failed alike, and what to run next."""

    task: str
    anchor: str
    status: str
    reason: str
    failure: FailureView
    log: LogView
    stacks: Sequence[tuple[str, str]]
    more_stacks: int
    alike: str
    commands: Sequence[tuple[str, str]]


@attrs.frozen(kw_only=True)
class TaskView:
    """A task in full: its last attempt, and those before it."""

    task: str
    status: str
    attempts: Sequence[AttemptView]


@attrs.frozen(kw_only=True)
class StepView:
    """A step: how it stands, its four records, and its tasks in full.

    Parameters
    ----------
    brief
        What was asked, granted, seen and used, each in a line; ``short``: less was granted than asked for.
    facts
        Shares of its tasks, attempts, why it ran or was reused, why not.
    earlier
        What became of attempts before the last ones.
    verdict
        What its records say together.
    """

    anchor: str
    name: str
    title: str
    many: bool
    total: int
    ended: int
    status: str
    took: str
    seconds: float | None
    brief: Sequence[str]
    short: bool
    records: Rows
    facts: Sequence[str]
    earlier: Sequence[str]
    verdict: str | None
    tasks: Sequence[TaskView]


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
    """The view.

    Parameters
    ----------
    run
        What it is about.
    others
        Runs whose metrics are shown beside those of ``run``.
    now
        When it is looked at; default: now.

    Raises
    ------
    StoreError
        The run's graph is not in the store.
    """
    now = now or datetime.now(timezone.utc)
    groups, evidence = grouped(run, run.graph), Evidence(run)
    failures = list(_failures(run, groups, evidence))
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
        failures=failures[:_FAILURES],
        more_failures=max(len(failures) - _FAILURES, 0),
        result=result_of(run),
        cards=cards_of(groups),
        metrics=metrics,
        gpus=list(_profiles(groups, evidence)),
        tasks=[task_table(group) for group in groups if group.many and group.tasks],
        steps=[_step(run, group, evidence) for group in groups],
        graph=picture(groups, run.graph) if groups else None,
        timeline=timeline(run, groups, now) if groups else None,
        outputs=outputs_of(groups),
    )


# The head.


def _facts(run: Run, now: datetime) -> Iterator[Fact]:
    yield Fact(label="started", text=moment(run.started))
    if run.ended is not None:
        yield Fact(label="took", text=duration((run.ended - run.started).total_seconds()))
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


# What failed.


def _failures(run: Run, groups: Sequence[Group], evidence: Evidence) -> Iterator[TaskFailure]:
    """What failed, in the same place together."""
    alike: dict[tuple[str, str, str | None], list[tuple[Group, Task]]] = {}
    for group in groups:
        for task in group.tasks:
            if task.status in ("failed", "cancelled") and task.attempts and _has_failed(task.attempts[-1]):
                error = task.attempts[-1].error
                assert error is not None
                alike.setdefault((task.row.task.step, error.reason, error.where), []).append((group, task))
    for same in sorted(alike.values(), key=lambda same: same[0][1].status != "failed"):
        (group, task), *others = same
        yield _failure(run, group, task, [other for _, other in others], evidence)


def _has_failed(attempt: Attempt) -> bool:
    """Whether there is something to tell: nothing went wrong in one that was cancelled while it waited."""
    return attempt.error is not None and not (attempt.error.reason == "cancelled" and attempt.used is None)


def _failure(run: Run, group: Group, task: Task, alike: Sequence[Task], evidence: Evidence) -> TaskFailure:
    attempt, name = task.attempts[-1], str(task.row.task)
    failure = failure_view(attempt)
    assert failure is not None
    tries = f" after {count(len(task.attempts), 'attempt')}" if len(task.attempts) > 1 else ""
    stacks, more_stacks = stacks_view(attempt)
    log = log_view(run, task, attempt, evidence.log(attempt).last(_LINES))
    commands = [("everything it printed", log.command)]
    if attempt.reason != "cancelled":
        commands.append(("run it again under a debugger", f"upshift replay {run.id} {shlex.quote(name)}"))
    return TaskFailure(
        task=name,
        anchor=group.anchor,
        status=task.status,
        reason=f"{attempt.reason or ''}{tries}",
        failure=failure,
        log=log,
        stacks=stacks,
        more_stacks=more_stacks,
        alike=_listed(alike),
        commands=commands,
    )


def _listed(tasks: Sequence[Task]) -> str:
    names = ", ".join(str(task.row.task) for task in tasks[:_NAMED])
    return names + (f" and {len(tasks) - _NAMED:,} more" if len(tasks) > _NAMED else "")


# The steps.


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


def _step(run: Run, group: Group, evidence: Evidence) -> StepView:
    counts, total = group.statuses, len(group.tasks)
    facts = (_shares(group), _tries(group), *_why(group), _why_not(group))
    full = in_full(group.tasks)
    tail = _TAIL_OF_MANY if len(full) > 1 else TAIL
    return StepView(
        anchor=group.anchor,
        name=group.name,
        title=group.title,
        many=group.many,
        total=total,
        ended=total - counts.get("running", 0) - counts.get("pending", 0),
        status=group.word,
        took=span(group.seconds) if group.seconds else "",
        seconds=math.fsum(group.seconds) if group.seconds else None,
        brief=_brief(group.records),
        short=any(cell.endswith(SHORT) for row in group.records for cell in row),
        records=group.records,
        facts=[fact for fact in facts if fact],
        earlier=_earlier(group),
        verdict=group.verdict,
        tasks=[_task(group, group.tasks[number], evidence, tail) for number in full],
    )


def _task(group: Group, task: Task, evidence: Evidence, tail: int) -> TaskView:
    # The devices of a step with a profile are shown by themselves.
    apart = task.attempts[-1:] if group.definition.settings.profile is not None and not group.many else []
    attempts = [
        attempt_view(group.run, task, attempt, evidence, tail=tail, devices=attempt not in apart)
        for attempt in reversed(task.attempts)
    ]
    status = "reused" if task.cached else task.status
    return TaskView(task=str(task.row.task), status=status, attempts=attempts)


def _brief(rows: Rows) -> list[str]:
    """Each record in a line."""
    columns = [[row[at] for row in rows if row[at] != DASH] for at in range(len(RECORDS))]
    if rows and all(_saw_the_grant(*row) for row in rows):
        columns[RECORDS.index("seen")] = [SAME]
    return [" · ".join(column) for column in columns]


def _saw_the_grant(asked: str, granted: str, seen: str, used: str) -> bool:
    """Whether a step found what it was granted; which CPUs these are is told with the grant only."""
    given = granted.removesuffix(SHORT)
    return seen in (SAME, DASH, given, given.partition(" (")[0]) and granted != DASH


def _earlier(group: Group) -> list[str]:
    """What became of attempts before the last ones; the first few."""
    tries = [(t, attempt) for t in group.tasks if not t.cached for attempt in t.attempts[:-1]]
    lines = []
    for task, attempt in tries[:_EARLIER]:
        why = f" ({attempt.reason})" if attempt.reason else ""
        told = f": {attempt.error.message.partition(chr(10))[0]}" if attempt.error else ""
        lines.append(f"{task.row.task}: attempt {attempt.number} {attempt.status}{why}{told}")
    more = len(tries) - _EARLIER
    return [*lines, f"… and {count(more, 'earlier attempt')} more"] if more > 0 else lines


def _shares(group: Group) -> str:
    """How many tasks are what, where they are not all the same."""
    if len(group.statuses) < 2:
        return ""
    return ", ".join(f"{number:,} {status}" for status, number in group.statuses.items())


def _tries(group: Group) -> str:
    most = max((len(task.attempts) for task in group.tasks if not task.cached), default=0)
    return f"{'up to ' if len(group.tasks) > 1 else ''}{count(most, 'attempt')}" if most > 1 else ""


def _why(group: Group) -> list[str]:
    """Why its tasks ran, were reused or skipped; the commonest reasons."""
    reasons: Counter[str] = counted(task.cache_reason for task in group.tasks if task.cache_reason)
    if len(reasons) == 1 and reasons.total() == len(group.tasks):
        return list(reasons)
    told = [
        f"{number:,} of {len(group.tasks):,}: {reason}" for reason, number in reasons.most_common(_REASONS)
    ]
    more = len(reasons) - _REASONS
    return [*told, count(more, "other reason")] if more > 0 else told


def _why_not(group: Group) -> str:
    """Why nothing ran of what was cancelled before it began."""
    untouched = any(task.status == "cancelled" and not task.attempts for task in group.tasks)
    idle = [step for step in group.steps if not step.tasks and step.status == "cancelled"]
    return f"not run: {group.steps[0].hindrance}" if untouched or idle else ""
