"""What came of a run: failures, with the user's traceback and what to do, earlier attempts, outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from upshift.config.sizes import format_size
from upshift.report.human import TIMES, count
from upshift.report.layout import GAP, Page, cells, columns, cut, fit, heading, wrap
from upshift.report.verdicts import Verdicts
from upshift.spec.task import Failure

if TYPE_CHECKING:
    from upshift.store.history import Run, Task

FAILURES = 10
"""Failures of a run that are told in full."""
ATTEMPTS = 20
"""Earlier attempts of a run that are told."""


def failures(run: Run, page: Page) -> str:
    """Reason, message, the user's traceback and the remedy of each task that failed; empty: none did."""
    failed = list(_failed(run))
    if not failed:
        return ""
    parts = [_failure(name, task, failure, page) for name, task, failure in failed[:FAILURES]]
    if len(failed) > FAILURES:
        parts.append(f"… and {count(len(failed) - FAILURES, 'more failure')}: upshift show {run.id} --json")
    return "\n\n".join(parts)


def _failed(run: Run) -> Iterator[tuple[str, Task, Failure]]:
    for step in run.steps:
        for task in step.tasks:
            error = task.attempts[-1].error if task.attempts else None
            if task.status in ("failed", "cancelled") and error is not None:
                yield str(task.row.task), task, error


def _failure(name: str, task: Task, failure: Failure, page: Page) -> str:
    tries = f" after {count(len(task.attempts), 'attempt')}" if len(task.attempts) > 1 else ""
    lines = [page.paint(f"{name} {task.status}{tries} ({failure.reason})", "red")]
    lines += [f"  {line}" for line in wrap(failure.message, page.width - 2)]
    if failure.traceback:
        lines += [page.paint(f"    {line}", "dim") for line in failure.traceback.rstrip().splitlines()]
    for label, text in (("where", None if failure.traceback else failure.where), ("fix", failure.fix)):
        if text:
            first, *rest = wrap(text, page.width - 9)
            lines += [f"  {label + ':':<6} {first}", *(f"         {line}" for line in rest)]
    return "\n".join(lines)


def earlier_attempts(run: Run, page: Page) -> str:
    """What became of the attempts before the last one, of tasks that needed several; empty: none did."""
    tries = [
        (str(task.row.task), attempt)
        for step in run.steps
        for task in step.tasks
        if not task.cached
        for attempt in task.attempts[:-1]
    ]
    if not tries:
        return ""
    lines = ["earlier attempts"]
    for name, attempt in tries[:ATTEMPTS]:
        error = attempt.error
        why = f" ({attempt.reason})" if attempt.reason else ""
        if error is not None:
            why += f": {error.message.partition(chr(10))[0]}" + (f" ({error.where})" if error.where else "")
        first, *rest = wrap(f"{name}: attempt {attempt.number} {attempt.status}{why}", page.width - 4)
        lines += [f"  {page.paint(first, 'yellow')}", *(f"    {page.paint(more, 'yellow')}" for more in rest)]
    if len(tries) > ATTEMPTS:
        lines.append(f"  … and {len(tries) - ATTEMPTS:,} more: upshift show {run.id} --json")
    return "\n".join(lines)


def needs(run: Run, page: Page) -> str:
    """What each step needs, where its records say that it is not what it asked for; empty: nowhere."""
    lines = []
    for step in run.steps:
        verdicts = Verdicts()
        for task in step.tasks:
            if task.attempts and not task.cached:
                last = task.attempts[-1]
                records = {"asked": last.asked, "granted": last.granted, "seen": last.seen, "used": last.used}
                verdicts.add(str(task.row.task), records)
        line = verdicts.line()
        if line is not None:
            first, *rest = wrap(f"{step.name}: {line}", page.width - 4)
            lines += [
                f"  {page.paint(first, 'yellow')}",
                *(f"    {page.paint(more, 'yellow')}" for more in rest),
            ]
    return "\n".join(["what steps need", *lines]) if lines else ""


def outputs(run: Run, page: Page) -> str:
    """Name, type and size of what each step made."""
    rows = [row for step in run.steps for row in _made(step.name, list(step.tasks))]
    if not rows:
        return ""
    headings = ("output", "type", "size")
    natural = [max(map(cells, column)) for column in zip(headings, *rows, strict=True)]
    widths = fit(natural, page.width - 2 * GAP, least=(8, 8, natural[2]))
    lines = heading(headings, widths, page)
    lines += [columns([cut(c, width) for c, width in zip(row, widths, strict=True)], widths) for row in rows]
    return "\n".join(lines)


def _made(step: str, tasks: list[Task]) -> Iterator[tuple[str, str, str]]:
    """One row for each output; those of a mapped step's tasks together."""
    sizes: dict[str, int] = {}
    types: dict[str, dict[str, int]] = {}
    for task in tasks:
        for name, artifact in task.artifacts.items():
            sizes[name] = sizes.get(name, 0) + artifact.bytes
            kinds = types.setdefault(name, {})
            kinds[artifact.type] = kinds.get(artifact.type, 0) + 1
    for name, size in sizes.items():
        kinds = types[name]
        made = sum(kinds.values())
        kind = " | ".join(kinds) if len(kinds) <= 3 else f"{len(kinds)} types"
        mapped = made > 1 or any(task.index is not None for task in tasks)
        label = step if name == "output" else f"{step}.{name}"
        yield label, f"{made:,} {TIMES} {kind}" if mapped else kind, format_size(size)
