"""The run, step or task that a user names, as in ``train`` or ``train[3]``, and its logs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from upshift.model.checks import shown

if TYPE_CHECKING:
    from upshift.model.configuration import Configuration
    from upshift.runs.catalog.catalog import Catalog
    from upshift.runs.catalog.rows import RunRow
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.runs import Run
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task

_STEP = re.compile(r"(?P<name>.*?)(?:\[(?P<index>[0-9]{1,18})\])?", re.DOTALL)


def selected(run: Run, step: str | None) -> tuple[list[Step], int | None]:
    """The named step, or all steps; and the index of the named task."""
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
        raise NotFound(f"run {run.id} has no task {shown(step)}", fix=fix)
    return [chosen], index


def refuse_rank(run: Run, steps: list[Step], index: int | None, rank: int) -> None:
    """Raise NotFound where no step has, or may still get, a process of this rank."""
    from upshift.errors import NotFound

    sizes = [size for step in steps for size in _world_sizes(step, index)]
    if any(size is None or rank < size for size in sizes):
        return
    most = max(filter(None, sizes), default=1)
    what = steps[0].name if len(steps) == 1 else f"run {run.id}"
    fix = f"Its ranks: 0 to {most - 1}." if most > 1 else "Each of its steps has one process, rank 0."
    raise NotFound(f"{what} has no rank {rank}", fix=fix)


def _world_sizes(step: Step, index: int | None) -> Iterator[int | None]:
    """The world sizes of the attempts of a step; None: not known yet."""
    if step.launch is None:
        yield 1
        return
    attempts = [a for task in step.tasks if index in (None, task.index) for a in task.attempts]
    yield from ((len(attempt.ranks) or None for attempt in attempts) if attempts else (None,))


def found(run: str) -> Run:
    """A run in its current state; the target of a lost detached engine is asked what became of it."""
    from upshift.model.configuration import load_configuration
    from upshift.runs.catalog.opening import open_catalog
    from upshift.runs.history.runs import get_run

    configuration = load_configuration()
    one = get_run(run, configuration)
    if one.row.status in ("pending", "running", "interrupted"):
        with contextlib.closing(open_catalog(configuration)) as catalog:
            asked = settle([one.row], catalog, configuration)
        one = get_run(one.id, configuration) if asked else one
    return one


def settle(rows: Sequence[RunRow], catalog: Catalog, configuration: Configuration) -> bool:
    """Record why detached runs lost their engines, and what other tools ended; False: there are none."""
    from upshift.runs.catalog.opening import ORCHESTRATOR
    from upshift.runs.catalog.rows import Detached

    others = [row for row in rows if ORCHESTRATOR in row.source and row.status in ("pending", "running")]
    if others:
        from upshift.engine import tool_runs  # other runs need no tool here

        tool_runs.settle(others, catalog, configuration)

    engines = [(row, Detached.of(row)) for row in rows if row.status in ("pending", "interrupted")]
    open_ = [row for row, engine in engines if engine is not None and engine.lost is None]
    if open_:
        from upshift.engine import ownerless  # other runs need no engine here

        ownerless.settle(open_, catalog, configuration)
    return bool(open_ or others)


def log_files(
    run: Run, steps: list[Step], index: int | None, attempt: int | None, rank: int | None = None
) -> Iterator[tuple[str, Path]]:
    """The tasks that printed something, each with its log; None: all tasks, the last attempt."""
    from upshift.errors import NotFound
    from upshift.runtime.storage.store import open_store

    store = open_store(run.row.store)
    for step in steps:
        for task in step.tasks:
            if index is not None and task.index != index:
                continue
            chosen = _attempt(task, attempt)
            if chosen is not None:
                path = store.log_path(chosen.row.task, chosen.number)
                if rank is not None and step.launch is not None:
                    path = store.rank_log_path(chosen.row.task, chosen.number, rank)
                if path.exists() and (not rank or step.launch is not None):
                    yield str(task.row.task), path
            elif attempt is not None and (index is not None or not step.mapped) and len(steps) == 1:
                there = ", ".join(str(a.number) for a in task.attempts) or "none"
                raise NotFound(f"{task.row.task} has no attempt {attempt}", fix=f"Its attempts: {there}.")


def chosen(
    run: Run, steps: list[str], index: int | None, attempt: int | None
) -> Iterator[tuple[Task, Attempt]]:
    """The chosen attempts, as for :func:`log_files`, by the names of the steps."""
    for step in steps:
        for task in run[step].tasks:
            one = _attempt(task, attempt)
            if one is not None and index in (None, task.index):
                yield task, one


def _attempt(task: Task, number: int | None) -> Attempt | None:
    if number is None:
        return task.attempts[-1] if task.attempts else None
    return next((a for a in task.attempts if a.number == number), None)
