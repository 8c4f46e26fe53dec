"""A step of a run: its status and the reason, its four records in brief, its tasks in full; what failed.

A failure has its cause, the end of its log, and what to run next; tasks that failed alike are told of once.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from upshift.model.plain import UNKNOWN, words
from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, because, count, counted, duration, short_image, span
from upshift.report.views.attempts import (
    TAIL,
    AttemptView,
    Evidence,
    FailureView,
    LogView,
    attempt_view,
    failure_view,
    log_view,
    stacks_view,
)
from upshift.report.views.comparing import differing_in, plainly, short_names
from upshift.report.views.groups import Group, Rows, records_of, since, took
from upshift.report.views.records import RECORDS, SAME, SHORT
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run
from upshift.runs.history.steps import Step
from upshift.runs.history.tasks import Task
from upshift.runs.history.values import best_of, mode_of, number

_TAIL_OF_MANY = 4096
"""Bytes of the end of the log of one of many tasks."""
_EARLIER = 3
"""Attempts before the last ones that are told at once."""


@attrs.frozen(kw_only=True)
class TaskView:
    """A task in full: its last attempt, and those before it."""

    task: str
    status: str
    attempts: Sequence[AttemptView]


@attrs.frozen(kw_only=True)
class StepView:
    """A step: how it stands, its four records, and its tasks in full."""

    anchor: str
    name: str
    title: str
    many: bool
    total: int
    ended: int
    status: str
    took: str
    seconds: float | None
    # what was asked, granted, seen and used, each in a line; ``short``: less was granted than asked
    # for
    brief: Sequence[str]
    short: bool
    records: Rows
    facts: Sequence[str]  # shares of its tasks, attempts, why it ran or was reused, why not
    earlier: Sequence[str]  # what became of attempts before the last ones
    verdict: str | None  # what its records say together
    tasks: Sequence[TaskView]


def step_view(group: Group, evidence: Evidence) -> StepView:
    """The view of a step, or of all calls of one function."""
    counts, total = group.statuses, len(group.tasks)
    full = _in_full(group.tasks)
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
        facts=list(remarks(group.steps, group.tasks)),
        earlier=_earlier(group),
        verdict=group.verdict,
        tasks=[_task(group, group.tasks[number], evidence, tail) for number in full],
    )


def remarks(
    steps: Sequence[Step], tasks: Sequence[Task], *, reasons: int = 3, further: str = ""
) -> Iterator[str]:
    """What there is to say of tasks of a step: their statuses, attempts, why they ran, or why not."""
    statuses = Counter("reused" if task.cached else task.status for task in tasks)
    if len(statuses) > 1:
        yield ", ".join(f"{number:,} {status}" for status, number in statuses.items())
    most = max((len(task.attempts) for task in tasks if not task.cached), default=0)
    if most > 1:
        yield f"{'up to ' if len(tasks) > 1 else ''}{count(most, 'attempt')}"
    yield from _why(tasks, reasons, further)
    yield from _circumstances([task.attempts[-1] for task in tasks if task.attempts])
    untouched = any(task.status == "cancelled" and not task.attempts for task in tasks)
    if untouched or any(not step.tasks and step.status == "cancelled" for step in steps):
        yield f"not run: {steps[0].hindrance}"


def _why(tasks: Sequence[Task], most: int, further: str) -> Iterator[str]:
    """Why the tasks ran, were reused or skipped; the commonest reasons."""
    found = counted(task.why for task in tasks if task.why)
    if len(found) == 1 and found.total() == len(tasks):
        yield from found
        return
    yield from (f"{number:,} of {len(tasks):,}: {reason}" for reason, number in found.most_common(most))
    if len(found) > most:
        yield count(len(found) - most, "other reason") + further


def _circumstances(attempts: Sequence[Attempt]) -> Iterator[str]:
    """What they ran in, what they went without, and what they wait for or have waited for."""
    images = list(dict.fromkeys(attempt.image for attempt in attempts if attempt.image is not None))
    if images:
        others = f" and {count(len(images) - 1, 'other')}" if len(images) > 1 else ""
        yield f"in image {short_image(images[0])}{others}"
    if any(a.status == "completed" and a.seen and a.seen.details.get("missed_by") for a in attempts):
        # A framework did not see the GPUs granted, and the step went on because the user said so.
        yield "it was made without its GPU" if len(attempts) == 1 else "made without the GPUs granted"
    waits = [attempt.waits for attempt in attempts if attempt.waits is not None]
    waited = [attempt.waited for attempt in attempts if attempt.waited is not None]
    if waits:
        yield (f"{len(waits):,} of {len(attempts):,}: " if len(attempts) > 1 else "") + waits[0]
    elif waited:
        yield f"waited {span(waited)}"


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
        why = because(attempt.status, attempt.reason)
        told = f": {attempt.error.message.partition(chr(10))[0]}" if attempt.error else ""
        lines.append(f"{task.row.task}: attempt {attempt.number} {attempt.status}{why}{told}")
    more = len(tries) - _EARLIER
    return [*lines, f"… and {count(more, 'earlier attempt')} more"] if more > 0 else lines


_FEW = 50
"""Tasks of a step that are all shown in full."""
_FAILED, _SLOWEST, _LARGEST = 8, 3, 1
"""Of more, so many of those that failed, took longest and needed most memory."""
_INPUTS = 8
"""Inputs that have a column …"""
_METRICS = 12
"""… and metrics."""
_LONGEST = 300
"""Letters of a message in the table."""


@attrs.frozen(kw_only=True)
class Column:
    """One column; its values are in the order of the tasks."""

    title: str
    # ``"text"`` or ``"status"``: the values are places in the texts of the table. ``"number"``,
    # ``"bytes"``, ``"duration"`` or ``"s"``, seconds since the run started: they are numbers
    kind: str
    values: Sequence[float | None]  # one per task; None: not known
    of: str = ""  # ``"input"`` or ``"metric"``, of the task
    best: int | None = None  # the place of the best value of a metric; None: its name does not tell


@attrs.frozen(kw_only=True)
class TaskTable:
    """Columns of all tasks of a step."""

    anchor: str
    step: str
    title: str
    columns: Sequence[Column]  # what is known of each task
    texts: Sequence[str]  # those that columns and records refer to by their place, each once
    # rows of asked, granted, seen, used, as texts; and which of the rows each task has
    rows: Sequence[Sequence[int]]
    records: Sequence[Sequence[int]]
    summary: str
    full: Sequence[int]  # the places of those tasks that are shown in full


def task_table(group: Group) -> TaskTable:
    """The table."""
    texts: dict[str, int] = {}

    def number_of(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def column(
        title: str, kind: str, value: Callable[[Task, Attempt | None], float | str | None], of: str = ""
    ) -> Column:
        values: list[float | None] = []
        for task in group.tasks:
            found = value(task, task.attempts[-1] if task.attempts else None)
            values.append(number_of(found) if isinstance(found, str) else found)
        best = best_of(values, mode_of(title)) if of == "metric" and len(values) > 1 else None
        return Column(title=title, kind=kind, values=values, of=of, best=best)

    columns = [
        column("task", "text", lambda task, _: _label(group, task)),
        *(column(label, kind, _input(name, kind), "input") for name, label, kind in _inputs(group)),
        column("status", "status", lambda task, _: "reused" if task.cached else task.status),
        *(column(name, "number", _last(name), "metric") for name in _metrics(group)),
        column("started", "s", lambda _, attempt: _started(attempt, group.run)),
        column("took", "duration", lambda _, attempt: _seconds(attempt)),
        column("CPU, mean", "number", lambda _, attempt: _cpu(attempt)),
        column("memory, peak", "bytes", lambda _, attempt: None if attempt is None else memory_peak(attempt)),
        column("attempts", "number", lambda task, _: len(task.attempts)),
        column("why", "text", _note),
    ]
    rows: dict[tuple[str, ...], int] = {}
    records = [
        [rows.setdefault(row, len(rows)) for row in records_of(task.attempts[-1:])] for task in group.tasks
    ]
    return TaskTable(
        anchor=group.anchor,
        step=group.name,
        title=group.title,
        columns=[each for each in columns if _tells(each)],
        rows=[[number_of(cell) for cell in row] for row in rows],
        texts=list(texts),
        records=records,
        summary=_summary(group),
        full=_in_full(group.tasks),
    )


def _in_full(tasks: Sequence[Task]) -> list[int]:
    """Places of the tasks that are shown in full: all, if there are few; else failures and extremes."""
    tried = [number for number, task in enumerate(tasks) if task.attempts]
    if len(tasks) <= _FEW:
        return tried
    chosen = [number for number in tried if tasks[number].status == "failed"][:_FAILED]
    chosen += [number for number in tried if tasks[number].status == "running"][:_FAILED]
    chosen += sorted(tried, key=lambda number: took(tasks[number].attempts[-1]) or 0.0)[-_SLOWEST:]
    chosen += sorted(tried, key=lambda number: memory_peak(tasks[number].attempts[-1]) or 0)[-_LARGEST:]
    return sorted(set(chosen))


def memory_peak(attempt: Attempt) -> int | None:
    """Bytes that it used at most; None: not known."""
    used = attempt.used
    if used is None:
        return None
    peak = used.details.get("memory_peak", used.memory)
    return peak if isinstance(peak, int) else None


def _tells(column: Column) -> bool:
    """Whether a column has more to say than that all is as usual."""
    if column.title == "attempts":
        return bool(set(column.values) - {0, 1})
    return column.title != "why" or len(set(column.values)) > 1


def _label(group: Group, task: Task) -> str:
    return f"{task.index}" if len(group.steps) == 1 and task.index is not None else str(task.row.task)


def _started(attempt: Attempt | None, run: Run) -> float | None:
    if attempt is None or attempt.started is None or attempt.run != run.id:
        return None
    return round(since(attempt.started, run), 3)


def _seconds(attempt: Attempt | None) -> float | None:
    seconds = took(attempt) if attempt is not None else None
    return None if seconds is None else round(seconds, 3)


def _cpu(attempt: Attempt | None) -> float | None:
    if attempt is None or attempt.used is None:
        return None
    mean = attempt.used.details.get("cpu_mean", attempt.used.cpu_count)
    return float(f"{mean:.3g}") if isinstance(mean, (int, float)) else None


def _inputs(group: Group) -> list[tuple[str, str, str]]:
    """The inputs that tell the tasks apart: name, short name, and whether they are numbers or texts."""
    given = [task.plain_inputs for task in group.tasks]
    names = differing_in(given)[:_INPUTS]
    labels = short_names(names)
    return [
        (name, labels[name], "number" if all(number(one.get(name)) is not None for one in given) else "text")
        for name in names
    ]


def _input(name: str, kind: str) -> Callable[[Task, Attempt | None], float | str | None]:
    """How to find an input of a task."""

    def value(task: Task, _: Attempt | None) -> float | str | None:
        plain = task.plain_inputs.get(name, UNKNOWN)
        if plain is UNKNOWN:
            return None
        return number(plain) if kind == "number" else plainly(plain)

    return value


def _metrics(group: Group) -> list[str]:
    """The metrics that are numbers, in the order in which tasks logged them first."""
    found: dict[str, None] = {}
    for attempt in group.attempts:
        numbers = (name for name, summary in attempt.metric_summaries.items() if summary.min is not None)
        found.update(dict.fromkeys(numbers))
        if len(found) >= _METRICS:
            break
    return list(found)[:_METRICS]


def _last(metric: str) -> Callable[[Task, Attempt | None], float | None]:
    """How to find the last value of a metric."""

    def last(_: Task, attempt: Attempt | None) -> float | None:
        summary = attempt.metric_summaries.get(metric) if attempt is not None else None
        value = summary.last if summary is not None else None
        finite = isinstance(value, (int, float)) and math.isfinite(value)
        return float(f"{value:.6g}") if finite else None

    return last


def _note(task: Task, attempt: Attempt | None) -> str:
    """Why it failed, else why it ran or was reused."""
    if attempt is not None and attempt.error is not None and task.status != "completed":
        text = attempt.error.message.partition("\n")[0]
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return task.why


def _summary(group: Group) -> str:
    """How time and memory are distributed, in words."""
    peaks = [float(peak) for attempt in group.attempts if (peak := memory_peak(attempt)) is not None]
    spread = (("time", group.seconds, duration), ("memory", peaks, format_size))
    return " · ".join(_spread(title, sorted(values), words) for title, values, words in spread if values)


def _spread(title: str, ordered: Sequence[float], words: Callable[[float], str]) -> str:
    median, most = ordered[len(ordered) // 2], ordered[-1]
    ninth = ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)]
    return f"{title}: median {words(median)}, 9 of 10 below {words(ninth)}, most {words(most)}"


_NAMED = 12
"""Tasks that failed alike and are named."""
_COMPARED = 50
"""Tasks among which an item is told apart …"""
"""… by at most so many inputs."""
_LINES = 15
"""Lines of its log that are shown with a failure."""


@attrs.frozen(kw_only=True)
class TaskFailure:
    """A task that failed, with the end of its log, those that failed alike, and what to run next."""

    task: str
    item: str  # of a mapped step, the inputs that tell it from other tasks
    anchor: str
    status: str
    reason: str
    failure: FailureView
    log: LogView
    stacks: Sequence[tuple[str, str]]
    more_stacks: int
    alike: str
    commands: Sequence[tuple[str, str]]


def alike(tasks: Iterable[Task]) -> list[list[Task]]:
    """The tasks that failed, grouped by reason and place; cancelled ones last."""
    found: dict[tuple[str, str, str], list[Task]] = {}
    for task in tasks:
        error = task.attempts[-1].error if task.attempts else None
        if task.status in ("failed", "cancelled") and error is not None and _is_told(task.attempts[-1]):
            found.setdefault((task.row.task.step, error.reason, error.where or error.message), []).append(
                task
            )
    return sorted(found.values(), key=lambda same: same[0].status != "failed")


def failures(run: Run, groups: Sequence[Group], evidence: Evidence) -> Iterator[TaskFailure]:
    """A view of each kind of failure."""
    anchors = {step.name: group.anchor for group in groups for step in group.steps}
    for task, *others in alike(task for group in groups for task in group.tasks):
        yield _failure(run, task, others, anchors[task.row.task.step], evidence)


def item_of(run: Run, task: Task) -> str:
    """Which item a task of a mapped step has, by the inputs in which it differs from others; or nothing."""
    step = run[task.row.task.step]
    if not step.mapped:
        return ""
    given = [task.plain_inputs, *(other.plain_inputs for other in step.tasks[:_COMPARED])]
    names = differing_in(given)[:_INPUTS]
    labels = short_names(names)
    return ", ".join(f"{labels[name]}={words(given[0][name])}" for name in names if name in given[0])


def named(tasks: Sequence[Task]) -> str:
    """The names of tasks that failed like another one."""
    names = ", ".join(str(task.row.task) for task in tasks[:_NAMED])
    return names + (f" and {len(tasks) - _NAMED:,} more" if len(tasks) > _NAMED else "")


def _is_told(attempt: Attempt) -> bool:
    """Whether there is something to tell: nothing went wrong in one that was cancelled while it waited."""
    return attempt.error is None or not (attempt.error.reason == "cancelled" and attempt.used is None)


def _failure(run: Run, task: Task, others: Sequence[Task], anchor: str, evidence: Evidence) -> TaskFailure:
    attempt, name = task.attempts[-1], str(task.row.task)
    failure = failure_view(attempt)
    assert failure is not None
    reason = "" if attempt.reason in (None, task.status) else attempt.reason
    tries = f" after {count(len(task.attempts), 'attempt')}" if len(task.attempts) > 1 else ""
    stacks, more_stacks = stacks_view(attempt)
    log = log_view(run, task, attempt, evidence.log(attempt).last(_LINES))
    commands = [("everything it printed", log.command)]
    if attempt.reason != "cancelled":
        commands.append(("run it again under a debugger", f"upshift replay {run.id} {shlex.quote(name)}"))
    return TaskFailure(
        task=name,
        item=item_of(run, task),
        anchor=anchor,
        status=task.status,
        reason=f"{reason}{tries}",
        failure=failure,
        log=log,
        stacks=stacks,
        more_stacks=more_stacks,
        alike=named(others),
        commands=commands,
    )
