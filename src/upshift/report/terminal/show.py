"""One run, or one of its tasks, as text: ``upshift show``.

Each step is a block. On its left: name, status and time, and below them why its tasks ran or were
reused. On its right the four records, one line for each kind of hardware, so that asked, granted, seen
and used of the same thing stand in one line. Where the page is too narrow for that, they stand below
each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

import attrs

from upshift.model.plain import words
from upshift.report.human import DASH, TIMES, ago, count, duration, moment, span
from upshift.report.terminal import (
    GAP,
    STATUS_STYLES,
    Page,
    cells,
    columns,
    fit,
    heading,
    labelled,
    outcome,
    pad,
    wrap,
)
from upshift.report.terminal.compare import sheet, title
from upshift.report.views.comparing import Row, compare, rows_of_tasks
from upshift.report.views.groups import records_of, took
from upshift.report.views.records import RECORDS, SHORT
from upshift.report.views.steps import remarks
from upshift.runs.catalog.rows import Detached
from upshift.runs.lease import silent_for

if TYPE_CHECKING:
    from upshift.model.spec.task import TaskId
    from upshift.runs.history.runs import Run
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task

_NAMED = 3
"""Tasks that are named where they still run."""
_LEFT = (8, 9, 8)
"""Least widths of name, status and time."""
_ROOMY = 100
_NAME = 24
"""Columns that names take at most; a longer one has a line of its own …"""
_NARROW_NAME = 14
"""… and on a page of less than 100 columns."""


def show_run(
    run: Run,
    *,
    page: Page | None = None,
    tasks: bool = False,  # a table of those of each mapped step, and a row for what each rank logged
    sort: str | None = None,  # what these tables are sorted by; None: the order of the tasks
    stacks: bool = False,  # of processes that hung, or were stopped, below the failures
) -> str:
    """Everything about a run, for a person: header, steps with their four records, failures,
    metrics, cards, outputs.
    """
    page = page or Page()
    parts = (
        _header(run, page),
        steps_table(run, page),
        tasks_tables(run, page, sort=sort) if tasks else "",
        outcome.needs(run, page),
        outcome.earlier_attempts(run, page),
        outcome.failures(run, page),
        outcome.gaps(run, page),
        outcome.stacks(run, page) if stacks else "",
        outcome.metrics_table(run, page, ranks=tasks),
        outcome.cards_table(run, page),
        outcome.outputs(run, page),
    )
    return "\n\n".join(filter(None, parts))


def _header(run: Run, page: Page) -> str:
    seconds = took(run)
    lasted = "" if seconds is None else f", took {duration(seconds)}"
    facts: dict[str, str | list[str]] = {
        "target": run.target,
        "started": f"{moment(run.started)} ({ago(run.started)}){lasted}",
        "by": run.user or "",
        "tags": ", ".join(run.tags),
        "params": [f"{name}={text}" for name, text in run.param_texts.items()],
    }
    status = run.row.status
    engine = Detached.of(run.row)
    if engine is not None:
        where = f"a process of {engine.host}" if engine.target is None else f"a job of {engine.target}"
        lost = f"lost: {engine.lost}" if engine.lost else f"{where}, {engine.name}"
        facts["engine"] = f"{lost}; upshift logs {run.id} --engine"
    if status == "running" and (silent := silent_for(run.id, run.row.store)) is not None:
        known = facts.get("engine")
        facts["engine"] = f"no word from it for {duration(silent)}" + (f"; {known}" if known else "")
    if run.status == "cancelled":
        facts["next"] = f"upshift resume {run.id} continues from the last completed step" + _still(run)
    title = f"run {run.id} · {run.pipeline} · {page.paint(status, STATUS_STYLES.get(status))}"
    if cells(title) > page.width:
        title = title.replace(" · ", "\n  ", 1)
    lines = [
        f"  {page.paint(f'{name:<8}', 'dim')} {line}"
        for fact, text in facts.items()
        if text
        for name, line in labelled(fact, text, page.width - 11)
    ]
    return "\n".join([title, *lines])


def _still(run: Run) -> str:
    """Which tasks of an interrupted run have not ended."""
    if not run.going_on:
        return ""
    names = list(map(str, run.going_on[:_NAMED]))
    more = f" and {len(run.going_on) - _NAMED:,} more" if len(run.going_on) > _NAMED else ""
    return f"; {', '.join(names)}{more} still run{'' if len(run.going_on) > 1 else 's'}, which it waits for"


@attrs.frozen
class Block:
    """One row of the table: a step, or one of its tasks."""

    name: str  # name, status, time: as shown. Several tasks took from the shortest to the longest time.
    status: str
    time: str
    remark: str  # why it ran or was reused, and the like
    records: Sequence[tuple[str, str, str, str]]
    """A line for each kind of hardware: asked, granted, seen, used."""


def steps_table(run: Run, page: Page, *, only: Collection[TaskId] | None = None) -> str:
    """The table; ``only``: these tasks, each in a row of its own, instead of one row for a mapped step."""
    blocks = [block for step in run.steps for block in _blocks(step, only)]
    if not blocks:
        return "No steps: the pipeline called none."
    if run.going_on:
        names = {str(task) for task in run.going_on} | {task.step for task in run.going_on}
        blocks = [
            attrs.evolve(b, status="running")
            if b.status == "cancelled" and b.name.partition(f" {TIMES}")[0] in names
            else b
            for b in blocks
        ]
    if run.interrupted:
        blocks = [attrs.evolve(b, status=run.row.status) if b.status == "cancelled" else b for b in blocks]
    left, right = _widths(blocks, page.width)
    if sum(left) + sum(right) + GAP * (len(left) + len(right) - 1) <= page.width:
        lines = heading(("step", "status", "time", *RECORDS), [*left, *right], page)
        for block in blocks:
            lines += _lines(block, left, right, page)
    else:
        lines = [line for block in blocks for line in _stacked(block, page)]
    if any(cell.endswith(SHORT) for block in blocks for row in block.records for cell in row):
        lines.append(page.paint(f"{SHORT.strip()} less than was asked for", "yellow"))
    return "\n".join(lines)


def _blocks(step: Step, only: Collection[TaskId] | None) -> list[Block]:
    tasks = step.tasks
    if only is not None:
        chosen = [task for task in tasks if task.row.task in only]
        return [_block(step, str(task.row.task), task.status, [task]) for task in chosen]
    if not step.mapped or not tasks:
        return [_block(step, step.name, step.status, tasks)]
    return [_block(step, f"{step.name} {TIMES}{len(tasks):,}", step.status, tasks)]


def _block(step: Step, name: str, status: str, tasks: Sequence[Task]) -> Block:
    reused = bool(tasks) and all(task.cached for task in tasks)
    attempts = [task.attempts[-1] for task in tasks if task.attempts]
    seconds = [spent for attempt in attempts if (spent := took(attempt)) is not None]
    return Block(
        name=name,
        status="reused" if reused and status == "completed" else status,
        time=span(seconds) if seconds else "",
        remark="; ".join(remarks([step], tasks, reasons=1, further=" (--tasks)")),
        records=records_of(attempts),
    )


def _widths(blocks: Sequence[Block], page: int) -> tuple[list[int], list[int]]:
    """Widths of the left columns, and of the records; these give way by wrapping between words."""
    shown = [(block.name, block.status, block.time) for block in blocks]
    left = [max(map(cells, column)) for column in zip(*shown, strict=True)]
    left = [max(width, least) for width, least in zip(left, _LEFT, strict=True)]
    left[0] = min(left[0], _NAME if page >= _ROOMY else _NARROW_NAME)
    texts = [[name, *(row[i] for block in blocks for row in block.records)] for i, name in enumerate(RECORDS)]
    natural = [max(map(cells, column)) for column in texts]
    least = [max(cells(word) for text in column for word in text.split()) for column in texts]
    return left, fit(natural, page - sum(left) - GAP * (len(left) + len(natural) - 1), least)


def _lines(block: Block, left: Sequence[int], right: Sequence[int], page: Page) -> list[str]:
    style = "dim" if block.status == "reused" else None  # these are records of an earlier run
    beside = [line for row in block.records for line in _wrapped(row, right, page, style)]
    width = sum(left) + GAP * (len(left) - 1)
    name = page.paint(block.name, "bold")
    status = page.paint(block.status, STATUS_STYLES.get(block.status))
    above = []
    if cells(name) > left[0]:  # a name is what the user types elsewhere: it is never cut
        above, name = [name], ""
    own = [columns((name, status, block.time), left)]
    if block.remark:
        own += [page.paint(f"  {line}", "dim") for line in wrap(block.remark, width - 2)]
    height = max(len(own), len(beside))
    own += [""] * (height - len(own))
    beside += [""] * (height - len(beside))
    sides = zip(own, beside, strict=True)
    return above + [f"{pad(one, width)}{' ' * GAP}{other}".rstrip() for one, other in sides]


def _stacked(block: Block, page: Page) -> list[str]:
    """A block on a page that is too narrow for columns: the records below each other."""
    status = page.paint(block.status, STATUS_STYLES.get(block.status))
    lines = [page.paint(line, "bold") for line in wrap(block.name, page.width)]
    lines.append(f"  {status}{f' in {block.time}' if block.time else ''}")
    lines += [page.paint(f"  {line}", "dim") for line in wrap(block.remark, page.width - 2) if line]
    for name, column in zip(RECORDS, zip(*block.records, strict=True), strict=False):
        texts = [text for text in column if text != DASH]
        short = "yellow" if any(text.endswith(SHORT) for text in texts) else None
        for label, line in zip(
            chain((name,), repeat("")), wrap(", ".join(texts) or DASH, page.width - 11), strict=False
        ):
            lines.append(f"  {label:<8} {page.paint(line, short)}")
    return lines


def _wrapped(row: Sequence[str], widths: Sequence[int], page: Page, style: str | None) -> list[str]:
    wrapped = [
        [page.paint(line, "yellow" if cell.endswith(SHORT) else style) for line in wrap(cell, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    return [columns([c[i] if i < len(c) else "" for c in wrapped], widths) for i in range(height)]


_NAMED = 3
"""Failures of a step whose messages stand in its rows."""


def tasks_tables(run: Run, page: Page, *, sort: str | None = None) -> str:
    """The tasks of each mapped step, with the inputs that differ and what they logged; or nothing."""
    return "\n\n".join(tasks_table(step, page, sort=sort) for step in run.steps if step.mapped and step.tasks)


def tasks_table(step: Step, page: Page, *, sort: str | None = None) -> str:
    """The tasks of one step, sorted by an input or a metric of theirs."""
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
        return error.in_a_line if error.reason == task.status else f"{error.reason}: {error.in_a_line}"
    return task.why


def show_task(run: Run, task: Task, page: Page) -> str:
    """Everything about one task: inputs, records, what it logged, showed and made, and why it failed."""
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
        outcome.metrics_table(run, page, ranks=True, only=only),
        outcome.cards_table(run, page, only=only),
        outcome.outputs(run, page, only=only),
    )
    return "\n\n".join(filter(None, parts))
