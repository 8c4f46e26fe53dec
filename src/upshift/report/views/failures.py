"""What failed in a run: each task with its cause, the end of its log, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

import attrs

from upshift.model.plain import words
from upshift.report.human import count
from upshift.report.views.attempts import Evidence, FailureView, LogView, failure_view, log_view, stacks_view
from upshift.report.views.comparing import differing_in, short_names
from upshift.report.views.groups import Group
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run
from upshift.runs.history.tasks import Task

_NAMED = 12
"""Tasks that failed alike and are named."""
_COMPARED = 50
"""Tasks among which an item is told apart …"""
_INPUTS = 8
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
