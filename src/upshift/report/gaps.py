"""What is not on record of an attempt, in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from upshift.model.settings.sizes import format_size
from upshift.model.spec.telemetry import Gap
from upshift.report.human import duration
from upshift.runs.history import Attempt, Task
from upshift.runtime.launch.whereabouts import listed

TOLD = 20
"""Sentences that are told of the tasks of a run, or of a step."""


def of_tasks(tasks: Iterable[Task]) -> Iterator[tuple[str, str]]:
    """What is not on record of these tasks: the task or its attempt, and a sentence; not of reused ones."""
    lines = [
        (f"{task.row.task}{_which(task, attempt)}", sentence)
        for task in tasks
        if not task.cached
        for attempt in task.attempts
        for sentence in in_words(attempt.gaps)
    ]
    yield from lines[:TOLD]
    if len(lines) > TOLD:
        yield "", f"… and {len(lines) - TOLD:,} more"


def in_words(gaps: Iterable[Gap]) -> Iterator[str]:
    """A sentence for each file that is not whole; one for the logs of all ranks."""
    found = list(gaps)
    ranks = [gap for gap in found if gap.rank is not None]
    for gap in found:
        if gap.rank is None:
            yield _sentence(gap.name, [gap])
    if ranks:
        logs = "the logs of" if len(ranks) > 1 else "the log of"
        yield _sentence(f"{logs} {listed([gap.rank for gap in ranks if gap.rank is not None])}", ranks)


def _which(task: Task, attempt: Attempt) -> str:
    return f", attempt {attempt.number}" if len(task.attempts) > 1 else ""


def _sentence(name: str, gaps: list[Gap]) -> str:
    since = duration(min(gap.since for gap in gaps))
    ends = [gap.until for gap in gaps if gap.until is not None]
    verb = "are" if len(gaps) > 1 else "is"
    why = f"{gaps[0].why}, in {os.path.dirname(gaps[0].path)}"
    if len(ends) == len(gaps):
        when = f"between {since} and {duration(max(ends))} after the start"
    else:
        when = f"from {since} after the start on"
    what = format_size(sum(gap.bytes or 0 for gap in gaps))
    missing = f"{what} are missing, {when}" if gaps[0].bytes is not None else f"nothing is in it {when}"
    return f"{name} {verb} not whole: {missing} ({why})"
