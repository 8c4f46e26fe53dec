"""A step of a run, or one of its tasks, as the user writes it: ``train``, ``train[3]``; and its logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from upshift.store.history import Attempt, Run, Step, Task

_STEP = re.compile(r"(?P<name>.+?)(?:\[(?P<index>\d+)\])?")


def selected(run: Run, step: str | None) -> tuple[list[Step], int | None]:
    """The steps that are meant, all of them if none is named; and the index of the task that is.

    Raises
    ------
    NotFound
        The run has no such step or task.
    """
    from upshift.errors import NotFound

    if step is None:
        return run.steps, None
    if step in run:  # whatever the name looks like
        return [run[step]], None
    match = _STEP.fullmatch(step)
    assert match is not None
    index = None if match["index"] is None else int(match["index"])
    chosen = run[match["name"]]
    if index is not None and all(task.index != index for task in chosen.tasks):
        size = len(chosen)
        fix = f"{chosen.name!r} is not a mapped step."
        if chosen.mapped:
            fix = (
                f"Its tasks: {chosen.name}[0] to {chosen.name}[{size - 1}]."
                if size
                else "It has no tasks yet."
            )
        raise NotFound(f"run {run.id} has no task {step!r}", fix=fix)
    return [chosen], index


def log_files(
    run: Run, steps: list[Step], index: int | None, attempt: int | None
) -> Iterator[tuple[str, Path]]:
    """The names of the tasks that printed something, each with the file that has it.

    Raises
    ------
    NotFound
        One task was asked for, and it has no such attempt.
    """
    from upshift.errors import NotFound
    from upshift.store.store import open_store

    store = open_store(run.row.store)
    for step in steps:
        for task in step.tasks:
            if index is not None and task.index != index:
                continue
            chosen = _attempt(task, attempt)
            if chosen is not None:
                path = store.log_path(chosen.row.task, chosen.number)
                if path.exists():
                    yield str(task.row.task), path
            elif attempt is not None and (index is not None or not step.mapped) and len(steps) == 1:
                there = ", ".join(str(a.number) for a in task.attempts) or "none"
                raise NotFound(f"{task.row.task} has no attempt {attempt}", fix=f"Its attempts: {there}.")


def _attempt(task: Task, number: int | None) -> Attempt | None:
    if number is None:
        return task.attempts[-1] if task.attempts else None
    return next((a for a in task.attempts if a.number == number), None)
