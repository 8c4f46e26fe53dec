"""A step of a run, or one of its tasks, as the user writes it: ``train``, ``train[3]``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from upshift.store.history import Run, Step

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
