"""Runs side by side, and artifacts: all names, the versions of one side by side, one with its lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.plain import short_type, words
from upshift.model.settings.sizes import format_size
from upshift.report.human import DASH, count, duration, moment, span
from upshift.report.terminal import (
    GAP,
    STATUS_STYLES,
    Page,
    cells,
    columns,
    cut,
    fit,
    heading,
    labelled,
    spark,
)
from upshift.report.terminal.outcome import lasts
from upshift.report.views.charts import Cell, Table
from upshift.report.views.comparing import Comparison, Row, compare, rows_of_runs
from upshift.report.views.groups import took
from upshift.runs.history.as_json import metrics_as_json, row_as_json
from upshift.runs.history.runs import RunList
from upshift.runs.history.versions import ArtifactVersion
from upshift.runtime.storage.metrics import as_json, value_text

if TYPE_CHECKING:
    from upshift.runs.history.runs import Run
    from upshift.runs.history.steps import Step
    from upshift.runs.history.tasks import Task
    from upshift.runtime.storage.metrics import Curve


_COLUMNS = 2
"""Runs that are shown as columns; of more, each is a row."""
_WIDEST = 40
"""Columns that a run takes at most."""
_MANY = 100
"""Metrics of a step that are compared."""


@attrs.frozen
class _Row:
    """A label, and for each run a text, perhaps with a curve beside it; a title has none."""

    label: str
    texts: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()


def compared(
    runs: Sequence[Run], page: Page | None = None, *, sort: str | None = None, metrics: Sequence[str] = ()
) -> str:
    """The runs side by side, for a person."""
    page = page or Page()
    if len(runs) > _COLUMNS or sort or metrics:
        runs = RunList(runs)
        runs.measure()
        found = compare(rows_of_runs(runs), "run", sort=sort, metrics=metrics or None, by_best=True)
        return f"{page.paint(title(found, _all_of(runs)), 'bold')}\n{sheet(found, page.whole)}"
    return _beside(runs, page)


def _all_of(runs: Sequence[Run]) -> str:
    """``5 runs of training``."""
    pipelines = list(dict.fromkeys(run.pipeline for run in runs))
    return f"{count(len(runs), 'run')} of {', '.join(pipelines[:3])}{', …' if len(pipelines) > 3 else ''}"


def _beside(runs: Sequence[Run], page: Page) -> str:
    """Each run as a column; what finds no room beside it follows below."""
    rows = [*_facts(runs), *_params(runs)]
    for name in _step_names(runs):
        rows += _step_rows(name, [_step(run, name) for run in runs])
    rows = _with_curves(rows)
    label = max(cells(row.label) for row in rows if row.texts)
    widths = [max(cells(row.texts[i]) for row in rows if row.texts) for i in range(len(runs))]
    widths = [min(width, _WIDEST) for width in widths]
    parts = []
    at = 0
    while at < len(runs):
        end = at + 1
        while end < len(runs) and label + sum(widths[at : end + 1]) + GAP * (end + 1 - at) <= page.width:
            end += 1
        parts.append("\n".join(_line(row, label, widths, range(at, end), page) for row in rows))
        at = end
    return "\n\n".join(parts)


def compared_json(runs: Sequence[Run]) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "runs": [row_as_json(run.row) for run in runs],
        "params": [{"name": name, "values": texts} for name, texts in _differing(runs).items()],
        "steps": [
            {"name": name, "runs": [None if step is None else _step_json(step) for step in steps]}
            for name, steps in ((name, [_step(run, name) for run in runs]) for name in _step_names(runs))
        ],
    }


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "status": step.status,
        "tasks": [
            {
                "index": task.index,
                "status": task.status,
                "cached": task.cached,
                "seconds": _seconds(task),
                "processes": task.attempts[-1].processes if task.attempts else None,
                "metrics": metrics_as_json(task.attempts[-1].metric_summaries) if task.attempts else {},
            }
            for task in step.tasks
        ],
    }


def _line(row: _Row, label: int, widths: Sequence[int], shown: range, page: Page) -> str:
    if not row.texts:
        return page.paint(row.label, "dim")
    texts = []
    for i in shown:
        style = STATUS_STYLES.get(row.statuses[i]) if row.statuses else None
        texts.append(page.paint(cut(row.texts[i], widths[i]), style))
    return columns([row.label, *texts], [label, *(widths[i] for i in shown)])


def _facts(runs: Sequence[Run]) -> list[_Row]:
    statuses = tuple(run.row.status for run in runs)
    facts = {
        "pipeline": [run.pipeline for run in runs],
        "target": [run.target for run in runs],
        "tags": [", ".join(run.tags) or DASH for run in runs],
    }
    rows = [_Row("run", tuple(run.id for run in runs))]
    rows += [_Row(name, tuple(texts)) for name, texts in facts.items() if len(set(texts)) > 1]
    rows += [
        _Row("status", statuses, statuses),
        _Row("started", tuple(moment(run.started) for run in runs)),
        _Row("took", tuple(_took(run) for run in runs)),
    ]
    return rows


def _took(run: Run) -> str:
    seconds = took(run)
    return DASH if seconds is None else duration(seconds)


def _params(runs: Sequence[Run]) -> list[_Row]:
    differing = _differing(runs)
    if not differing:
        same = "the same parameters" if any(run.param_texts for run in runs) else ""
        return [_Row(""), _Row(same)] if same else []
    rows = [_Row(""), _Row("parameters that differ")]
    return rows + [
        _Row(f"  {name}", tuple(DASH if text is None else text for text in texts))
        for name, texts in differing.items()
    ]


def _differing(runs: Sequence[Run]) -> dict[str, list[str | None]]:
    """The parameters that are not the same in all runs; None: a run has no such parameter."""
    names = dict.fromkeys(name for run in runs for name in run.param_texts)
    found = {name: [run.param_texts.get(name) for run in runs] for name in names}
    return {name: texts for name, texts in found.items() if len(set(texts)) > 1}


def _step(run: Run, name: str) -> Step | None:
    return run.by_name.get(name)  # it has no get()


def _step_names(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(step.name for run in runs for step in run.steps))


def _step_rows(name: str, steps: Sequence[Step | None]) -> list[_Row]:
    statuses = tuple("" if step is None else _status(step) for step in steps)
    texts = tuple(DASH if step is None else _how(step) for step in steps)
    metrics = [{} if step is None else _logged(step) for step in steps]
    names = list(dict.fromkeys(metric for each in metrics for metric in each))[:_MANY]
    rows = [_Row(""), _Row(name, texts, statuses)]
    sizes = tuple(DASH if step is None else _processes(step) for step in steps)
    if len(set(sizes)) > 1:
        rows.append(_Row("  processes", sizes))
    for metric in names:
        rows.append(_metric_row(f"  {metric}", [each.get(metric) for each in metrics]))
    return rows


def _status(step: Step) -> str:
    reused = len(step) > 0 and all(task.cached for task in step.tasks)
    return "reused" if reused and step.status == "completed" else step.status


def _how(step: Step) -> str:
    """The status of a step, unless it is the expected one, and its time."""
    seconds = [known for task in step.tasks if (known := _seconds(task)) is not None]
    status = _status(step)
    if not seconds:
        return status
    return span(seconds) if status == "completed" else f"{status}, {span(seconds)}"


def _processes(step: Step) -> str:
    """How many processes each of its tasks had."""
    texts = dict.fromkeys(f"{task.attempts[-1].processes or 1:,}" for task in step.tasks if task.attempts)
    return ", ".join(texts) or DASH


def _seconds(task: Task) -> float | None:
    return took(task.attempts[-1]) if task.attempts else None


def _logged(step: Step) -> Mapping[str, list[Curve]]:
    """The curves of each metric, one for each task that has it."""
    found: dict[str, list[Curve]] = {}
    for task in step.tasks:
        if task.attempts:
            for metric, curve in task.attempts[-1].metrics.items():
                found.setdefault(metric, []).append(curve)
    return found


def _metric_row(label: str, curves: Sequence[list[Curve] | None]) -> _Row:
    """The last values; each with its curve, where one task logged it and it ever changed."""
    texts = tuple(lasts([as_json(curve.last) for curve in each]) if each else DASH for each in curves)
    drawn = tuple(spark(each[0].values) if each and len(each) == 1 else "" for each in curves)
    return _Row(label, texts, curves=drawn if any(drawn) else ())


def _with_curves(rows: Sequence[_Row]) -> list[_Row]:
    """The curves beside the texts of their rows, one below the other."""
    drawn = [row.texts for row in rows if row.curves]
    widths = [max(map(cells, texts)) for texts in zip(*drawn, strict=True)]
    return [
        attrs.evolve(
            row,
            texts=tuple(
                f"{text:<{width}}  {line}".rstrip()
                for text, width, line in zip(row.texts, widths, row.curves, strict=True)
            ),
        )
        if row.curves
        else row
        for row in rows
    ]


_WIDEST_CELL, _SENTENCE = 40, 120
"""Columns that a cell takes at most, and one with a sentence."""
_LEAST = 20
"""Columns in which the beginning of a sentence is worth showing."""
_BEST = " *"
_SAME = 12
"""Values that are the same in all rows, and are told."""


def sheet(comparison: Comparison, page: Page) -> str:
    """The table of a comparison, and below it what is the same in all rows."""
    table = comparison.table()
    facts = len(table.heads) - max((len(row.facts) for row in comparison.rows), default=0)
    plain = [
        [_short(c, _WIDEST_CELL if at < facts else _SENTENCE) for at, c in enumerate(r)] for r in table.rows
    ]
    drawn = [_beside_values(comparison, plain, most) for most in (len(comparison.metrics), 1)]
    texts = next((each for each in drawn if _fits(table, each, page)), plain)
    shown = _shown(table, texts, page, _always(comparison))
    last = len(table.heads) - 1
    room = page.width - _width(table, texts, shown) - GAP
    if last not in shown and shown[-1] == last - 1 and room >= _LEAST:  # a sentence says something when cut
        texts = [[*row[:last], cut(row[last], room)] for row in texts]
        shown.append(last)
    widths = _widths(table, texts, shown)
    lines = heading([table.heads[i] for i in shown], widths, page)
    for row, cut_row in zip(table.rows, texts, strict=True):
        lines.append(columns([_painted(cut_row[i], row[i], page) for i in shown], widths))
    gone = [head for at, head in enumerate(table.heads) if at not in shown]
    notes = []
    if any(cell.mark == "best" for row in table.rows for cell in row):
        notes.append(page.paint(f"{_BEST.strip()} best", "green"))
    if gone:
        room = page.width - sum(cells(note) + 3 for note in notes)
        notes.append(page.paint(cut(f"no room for: {', '.join(gone)}", max(room, _LEAST)), "dim"))
    return "\n".join([*lines, *filter(None, [" · ".join(notes)]), *_same(comparison, page)])


def title(comparison: Comparison, what: str) -> str:
    """``5 runs, by test/accuracy, best first``."""
    name = comparison.sorted_by
    if name is None:
        return what
    order = ", best first" if comparison.best.get(name) is not None else ""
    return f"{what}, by {comparison.labels().get(name, name)}{order}"


def _same(comparison: Comparison, page: Page) -> list[str]:
    if not comparison.same or len(comparison.rows) < 2:
        return []
    items = [f"{name}={words(value)}" for name, value in comparison.same.items()]
    if len(items) > _SAME:
        items[_SAME:] = [f"and {count(len(items) - _SAME, 'more value')}"]
    label = f"the same in all {comparison.noun}s: "
    lines = labelled(label, items, max(page.width - len(label), 20))
    return [page.paint(f"{first or ' ' * len(label)}{line}", "dim") for first, line in lines]


def _short(cell: Cell, width: int = _WIDEST_CELL) -> str:
    return cut(cell.text, width) + (_BEST if cell.mark == "best" else "")


def _beside_values(comparison: Comparison, rows: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """The cells, with its curve beside each value of the first metrics, one below the other."""
    drawn = [list(row) for row in rows]
    for at, name in enumerate(comparison.metrics[:most], 1 + len(comparison.given)):
        curves = [spark(row.curves.get(name, ())) for row in comparison.rows]
        if any(curves):
            width = max(cells(row[at]) for row in rows)
            for row, curve in zip(drawn, curves, strict=True):
                row[at] = f"{row[at]}{' ' * (width - cells(row[at]))}  {curve}".rstrip()
    return drawn


def _painted(text: str, cell: Cell, page: Page) -> str:
    if cell.mark == "best":
        value = _short(cell)
        return page.paint(value, "green") + text[len(value) :]
    return page.paint(text, STATUS_STYLES.get(cell.status or ""))


def _always(comparison: Comparison) -> set[int]:
    """The columns that stay, however narrow the page is: the name, and what the rows are sorted by."""
    names = [*comparison.given, *comparison.metrics]
    return {0} | {1 + at for at, name in enumerate(names) if name == comparison.sorted_by}


def _shown(table: Table, rows: Sequence[Sequence[str]], page: Page, always: set[int]) -> list[int]:
    shown = sorted(always)
    for at in range(len(table.heads)):
        more = sorted({*shown, at})
        if _width(table, rows, more) > page.width:
            break
        shown = more
    return shown


def _fits(table: Table, rows: Sequence[Sequence[str]], page: Page) -> bool:
    return _width(table, rows, range(len(table.heads))) <= page.width


def _width(table: Table, rows: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    return sum(_widths(table, rows, shown)) + GAP * (len(shown) - 1)


def _widths(table: Table, rows: Sequence[Sequence[str]], shown: Sequence[int]) -> list[int]:
    return [max([cells(table.heads[i]), *(cells(row[i]) for row in rows)]) for i in shown]


_DIGEST = 19
"""Characters of a digest that are worth reading."""
_HEADS = ("name", "version", "tags", "type", "size", "made", "run")


def names_table(found: Sequence[ArtifactVersion], page: Page) -> str:
    """The newest version of each name."""
    if not found:
        return "No values. Run a pipeline: upshift run FILE"
    rows = [
        (
            one.name,
            str(one.version),
            ", ".join(one.tags) or DASH,
            short_type(one.type),
            format_size(one.bytes),
            DASH if one.made is None else moment(one.made),
            one.run,
        )
        for one in found
    ]
    natural = [max(map(cells, column)) for column in zip(_HEADS, *rows, strict=True)]
    least = [min(width, 8) for width in natural]
    widths = fit(natural, page.whole.width - GAP * (len(natural) - 1), least)
    lines = heading(_HEADS, widths, page)
    lines += [columns([cut(c, width) for c, width in zip(row, widths, strict=True)], widths) for row in rows]
    return "\n".join(lines)


def versions_table(found: Sequence[ArtifactVersion], page: Page, *, sort: str | None = None) -> str:
    """The versions of one name, with the inputs in which they differ and what was logged."""
    if not found:
        return "No versions."
    comparison = compare([_row(one) for one in found], "version", sort=sort)
    what = title(comparison, f"{found[0].name}, {count(len(found), 'version')}")
    return f"{page.paint(what, 'bold')}\n{sheet(comparison, page.whole)}"


def _row(one: ArtifactVersion) -> Row:
    maker = one.maker
    return Row(
        name=str(one.version),
        status="completed",
        given={} if maker is None else maker.plain_inputs,
        metrics={} if maker is None else maker.metrics,
        seconds=None if maker is None else maker.seconds,
        facts={"tags": ", ".join(one.tags), "size": format_size(one.bytes), "run": f"{one.run} {one.task}"},
    )


def lineage(one: ArtifactVersion, page: Page) -> str:
    """One version: what it is, and which run made it, from what and with which code."""
    maker = one.maker
    facts: dict[str, str | list[str]] = {
        "tags": ", ".join(one.tags),
        "value": f"{one.type}, {format_size(one.bytes)}",
        "made": "" if one.made is None else moment(one.made),
        "by": f"{one.task} of run {one.run}" + ("" if maker else ", which was removed"),
        "inputs": [f"{n}={words(v)}" for n, v in maker.flat_inputs.items()] if maker else "",
        "metrics": [f"{n}={value_text(v)}" for n, v in maker.metrics.items()] if maker else "",
        "code": "" if one.code is None else one.code[:_DIGEST],
    }
    lines = [page.paint(f"{one.name}@{one.version}", "bold")]
    for name, text in facts.items():
        if text:
            for label, line in labelled(name, text, page.width - 11):
                lines.append(f"  {page.paint(f'{label:<8}', 'dim')} {line}")
    return "\n".join(lines)
