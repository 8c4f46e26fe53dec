"""The tasks of a step as text: one row for each, and all that is known of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from upshift.model.plain import words
from upshift.report.comparing import Row, compare, rows_of_tasks
from upshift.report.human import TIMES, count
from upshift.report.terminal.layout import Page, labelled
from upshift.report.terminal.sheets import sheet, title

if TYPE_CHECKING:
    from upshift.runs.history import Run, Step, Task

_NAMED = 3
"""Failures of a step whose messages stand in its rows."""


def tasks_tables(run: Run, page: Page, *, sort: str | None = None) -> str:
    """The tasks of each mapped step, with the inputs that differ and what they logged; or nothing."""
    return "\n\n".join(tasks_table(step, page, sort=sort) for step in run.steps if step.mapped and step.tasks)


def tasks_table(step: Step, page: Page, *, sort: str | None = None) -> str:
    """The tasks of one step, sorted by an input or a metric of theirs.

    Raises
    ------
    UsageError
        Nothing is called what they are to be sorted by.
    """
    comparison = compare(_explained(step, rows_of_tasks(step)), "task", sort=sort)
    what = f"{step.name} {TIMES}{len(step.tasks):,}"
    return f"{page.paint(title(comparison, what), 'bold')}\n{sheet(comparison, page.whole)}"


def _explained(step: Step, rows: list[Row]) -> list[Row]:
    """With why a task failed, or ran, where that is not the same for all."""
    reasons = [_why(step, task) for task in step.tasks]
    if len(set(reasons)) < 2:
        return rows
    return [attrs.evolve(row, facts={"why": why}) for row, why in zip(rows, reasons, strict=True)]


def _why(step: Step, task: Task) -> str:
    if task.status == "cancelled" and not task.attempts:
        return f"not run: {step.hindrance}"
    error = task.attempts[-1].error if task.attempts else None
    if error is not None and task.status != "completed":
        return f"{error.reason}: {error.in_a_line}"
    return task.cache_reason or ""


def show_task(run: Run, task: Task, page: Page) -> str:
    """Everything about one task: inputs, records, what it logged, showed and made, and why it failed."""
    from upshift.report.terminal import outcome
    from upshift.report.terminal.metrics import cards_table, metrics_table
    from upshift.report.terminal.steps_table import steps_table

    only = {task.row.task}
    facts = {
        "run": f"{run.id} · {run.pipeline}",
        "inputs": [f"{name}={words(value)}" for name, value in task.flat_inputs.items()],
        "attempts": count(len(task.attempts), "attempt") if len(task.attempts) > 1 else "",
    }
    lines = [
        page.paint(str(task.row.task), "bold"),
        *(
            f"  {page.paint(f'{label:<8}', 'dim')} {line}"
            for name, text in facts.items()
            if text
            for label, line in labelled(name, text, page.width - 11)
        ),
    ]
    parts = (
        "\n".join(lines),
        steps_table(run, page, only=only),
        outcome.earlier_attempts(run, page, only=only),
        outcome.failures(run, page, only=only),
        metrics_table(run, page, ranks=True, only=only),
        cards_table(run, page, only=only),
        outcome.outputs(run, page, only=only),
    )
    return "\n\n".join(filter(None, parts))
