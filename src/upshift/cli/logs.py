"""``upshift logs``."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from upshift.cli.output import echo
from upshift.errors import UsageError

if TYPE_CHECKING:
    from upshift.runs.history.attempts import Attempt
    from upshift.runs.history.runs import Run
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task

_FAILURES = 5
"""Kinds of failure whose tracebacks are shown."""


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="[STEP[INDEX]]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run, or the step, is over.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Default: the last one.")
@click.option(
    "--engine", is_flag=True, help="What the engine of a detached run printed, in place of its steps."
)
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="Only this one of several processes.")
def logs(
    run: str, step: str | None, follow: bool, attempt: int | None, rank: int | None, engine: bool
) -> None:
    """Print what the steps of a run printed.

    STEP is a step, or one task of a mapped step, as in 'train[3]'. Of a task whose result was reused this is
    what the original printed. Lines of several tasks begin with the task's name, those of several processes
    of one task with their rank: with --rank they are as that process printed them. Why a step failed comes
    last, on standard error.
    """
    from upshift.cli import selection
    from upshift.cli.follow import Merged, follow_engine
    from upshift.cli.follow import follow as follow_run
    from upshift.cli.selection import log_files, refuse_rank, selected

    found = selection.found(run)
    if engine:
        if step is not None or attempt is not None or rank is not None:
            raise UsageError("--engine is about no step", fix=f"upshift logs {run} --engine")
        follow_engine(found, follow=follow)
        return
    steps, index = selected(found, step)
    if rank is not None:
        refuse_rank(found, steps, index, rank)
    single = step is not None and (index is not None or not steps[0].mapped)
    merged = Merged(sys.stdout, named=not single)
    if follow and (found.interrupted or found.status in ("pending", "running")):
        follow_run(found, [s.name for s in steps], index, attempt, merged, rank)
        found = selection.found(found.id)
        _tell_of_gaps(found, steps, index, attempt, rank)
        _tell_of_failures(found, steps, index, attempt, rank)
        return
    for name, path in log_files(found, steps, index, attempt, rank):
        merged.copy(name, path)
    _tell_of_gaps(found, steps, index, attempt, rank)
    _tell_of_failures(found, steps, index, attempt, rank)
    if attempt is None:
        _tell_of_others(found, [task for s in steps for task in s.tasks if index in (None, task.index)])


def _tell_of_gaps(
    run: Run, steps: list[Step], index: int | None, attempt: int | None, rank: int | None
) -> None:
    """Say which of the logs are not whole, and why."""
    from upshift.cli.selection import chosen
    from upshift.report.human import in_words

    for task, one in chosen(run, [step.name for step in steps], index, attempt):
        gaps = [gap for gap in one.gaps if gap.what == "log" and gap.rank == rank]
        lines = list(in_words(gaps))
        if one.status == "failed" and one.row.result is None and one.error is not None:
            lines.append(f"the log may end early: it has left no result: {one.error.in_a_line}")
        for line in lines:
            echo(f"{task.row.task}: {line}", err=True)


def _tell_of_failures(
    run: Run, steps: list[Step], index: int | None, attempt: int | None, rank: int | None
) -> None:
    """Say why attempts failed, with the traceback; those that failed alike once."""
    from upshift.cli.selection import chosen
    from upshift.report.human import count, on_rank

    alike: dict[tuple[str, str, str], list[tuple[Task, Attempt]]] = {}
    for task, one in chosen(run, [step.name for step in steps], index, attempt):
        error = one.error
        told = one.row.result is None  # with what is missing of its log
        if one.status == "failed" and error is not None and not told and rank in (None, error.rank):
            place = (task.row.task.step, error.reason, error.where or error.message)
            alike.setdefault(place, []).append((task, one))
    for (task, one), *others in list(alike.values())[:_FAILURES]:
        error = one.error
        assert error is not None
        more = f", and {count(len(others), 'other task')} alike" if others else ""
        lines = [f"{task.row.task} failed{on_rank(error)} ({error.reason}){more}: {error.in_a_line}"]
        lines += [f"    {line}" for line in (error.traceback or "").rstrip().splitlines()]
        echo("\n".join(lines), err=True)
    if len(alike) > _FAILURES:
        echo(f"… and {len(alike) - _FAILURES:,} more: upshift show {run.id}", err=True)


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
    echo(
        f"{who}; the last one is shown. "
        f"To see another: upshift logs {run.id} {shlex.quote(name)} --attempt {first.attempts[0].number}",
        err=True,
    )
