"""A step of a run: how it stands, why, its four records in brief, and its tasks in full."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from upshift.report.attempts import AttemptView, attempt_view
from upshift.report.evidence import TAIL, Evidence
from upshift.report.groups import Group, Rows
from upshift.report.human import DASH, count, short_image, span
from upshift.report.reasons import counted
from upshift.report.records import RECORDS, SAME, SHORT
from upshift.report.tasks import in_full
from upshift.runs.history import Attempt, Step, Task

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
    found = counted(task.cache_reason for task in tasks if task.cache_reason)
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
        why = f" ({attempt.reason})" if attempt.reason else ""
        told = f": {attempt.error.message.partition(chr(10))[0]}" if attempt.error else ""
        lines.append(f"{task.row.task}: attempt {attempt.number} {attempt.status}{why}{told}")
    more = len(tries) - _EARLIER
    return [*lines, f"… and {count(more, 'earlier attempt')} more"] if more > 0 else lines
