"""``upshift logs``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from upshift.store.history import Attempt, Run, Step, Task


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="[STEP[INDEX]]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run, or the step, is over.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Default: the last one.")
def logs(run: str, step: str | None, follow: bool, attempt: int | None) -> None:
    """Print what the steps of a run printed.

    STEP is a step, or one task of a mapped step, as in 'train[3]'. Of a task whose result was reused this is
    what the original printed. Lines of several tasks begin with the task's name.
    """
    from upshift.cli.merged import Merged
    from upshift.cli.selection import selected
    from upshift.store.history import get_run

    found = get_run(run)
    steps, index = selected(found, step)
    single = step is not None and (index is not None or not steps[0].mapped)
    merged = Merged(sys.stdout, named=not single)
    if follow and (found.interrupted or found.status in ("pending", "running")):
        from upshift.cli.follow import follow as follow_run

        follow_run(found, [s.name for s in steps], index, attempt, merged)
        return
    for name, path in log_files(found, steps, index, attempt):
        merged.copy(name, path)
    if attempt is None:
        _tell_of_others(found, [task for s in steps for task in s.tasks if index in (None, task.index)])


def _tell_of_others(run: Run, tasks: list[Task]) -> None:
    """Say how to see what earlier attempts printed, where there were any."""
    tried = [task for task in tasks if len(task.attempts) > 1]
    if not tried:
        return
    first, *others = tried
    name = str(first.row.task)
    who = f"{name} had {len(first.attempts)} attempts"
    if others:
        who = f"{len(tried):,} tasks had several attempts"
    click.echo(
        f"{who}; the last one is shown. "
        f"To see another: upshift logs {run.id} {shlex.quote(name)} --attempt {first.attempts[0].number}",
        err=True,
    )


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
