"""How a run that did not complete is reported to whoever started it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from upshift.errors import RunCancelled, RunFailed
from upshift.model.spec.launch import Stack
from upshift.model.spec.task import Failure, TaskId
from upshift.report.human import count
from upshift.report.ranks import on_rank, worth_a_look
from upshift.runs.history import Run


def raise_unless_completed(
    run: Run,
    status: str,
    first: tuple[TaskId, Failure, int] | None,
    *,
    failed: int,
    log: Path | None,
    stacks: Sequence[Stack],
    shown: bool,
) -> None:
    """Raise what a run with this status deserves.

    Parameters
    ----------
    run
        The run.
    status
        Its status.
    first
        The task that failed first, why, and in which attempt.
    failed
        How many tasks failed.
    log
        What that attempt printed, if it printed anything.
    stacks
        Where its processes were, if it had several.
    shown
        Whether the user has been shown its traceback already.

    Raises
    ------
    RunCancelled, RunFailed
    """
    go_on = f"upshift resume {run.id} goes on from what is done."
    if status == "cancelled":
        raise RunCancelled(f"run {run.id} was cancelled", run=run, fix=go_on)
    if status == "completed":
        return
    if first is None:
        raise RunFailed(f"run {run.id} failed", run=run, fix=f"See upshift show {run.id}.")
    task, failure, attempt = first
    tried = f" in attempt {attempt}" if attempt > 1 else ""
    why = failure.traceback.rstrip() if failure.traceback and not shown else None
    advice = [failure.fix] if failure.fix else []
    if log is not None:
        alone = "" if failure.rank is None else f" (that rank alone: --rank {failure.rank})"
        advice.append(f"upshift logs {run.id} {task.step} shows what it printed{alone}; the file is {log}")
    if worth_a_look(failure, stacks):
        advice.append(f"upshift show {run.id} --stacks shows where each rank was, call by call")
    if failed > 1:
        advice.append(f"upshift show {run.id} tells of the {count(failed - 1, 'more task')} that failed")
    advice.append(go_on)
    raise RunFailed(
        f"step {task} failed{on_rank(failure)}{tried} ({failure.reason}): {failure.message}",
        run=run,
        where=failure.where,
        why=why,
        fix="\n".join(advice),
    )
