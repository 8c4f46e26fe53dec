"""The commands that show runs: ``runs``, ``show``, ``compare``, ``report`` and ``top``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from upshift.cli import echo, echo_json
from upshift.cli import shared_options as shared
from upshift.model.checks import MOST_RUNS

if TYPE_CHECKING:
    from upshift.report.views.comparing import Comparison
    from upshift.runs.catalog.catalog import Catalog
    from upshift.runs.catalog.rows import RunRow
    from upshift.runs.history.runs import Run

SCREENFUL = 50
_STATUSES = ("pending", "running", "completed", "failed", "cancelled", "interrupted")


@click.command()
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--user", metavar="USER", help="Only runs that this user started.")
@click.option("--tag", metavar="TAG", help="Only runs with this tag.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(_STATUSES),
    multiple=True,
    help="Only runs with this status. Repeatable.",
)
@shared.metrics("A column with the last value of a metric; for a mapped step, the best value.")
@click.option(
    "-p", "--param", "params", metavar="NAME", multiple=True, help="A column with a parameter. Repeatable."
)
@shared.sort("a parameter", "Default: the newest first.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1, max=MOST_RUNS - 1),
    help="List at most N runs. Default: 50, or all with --json.",
)
@shared.as_json
def runs(
    pipeline: str | None,
    user: str | None,
    tag: str | None,
    statuses: tuple[str, ...],
    metrics: tuple[str, ...],
    params: tuple[str, ...],
    sort: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    from upshift.cli.selection import settle
    from upshift.model.configuration import load_configuration
    from upshift.runs.catalog.catalog import no_pipeline
    from upshift.runs.catalog.opening import open_catalog, standing

    shown = limit or (None if as_json else SCREENFUL)
    chosen = bool(statuses or sort)  # among all runs, and not the newest ones
    configuration = load_configuration()
    catalog = open_catalog(configuration)
    try:
        # One more than is shown tells whether there are more.
        most = None if chosen or shown is None else shown + 1
        rows = catalog.runs(pipeline=pipeline, user=user, tag=tag, limit=most)
        if pipeline is not None and not rows and not catalog.runs(pipeline=pipeline, limit=1):
            raise no_pipeline(pipeline, catalog)
        rows = standing(rows, catalog)
        if settle(rows[:shown], catalog, configuration):
            rows = standing(map(catalog.run, (row.id for row in rows)), catalog)
        rows = [row for row in rows if not statuses or _is(row, statuses)]
        found = _compared(rows if sort else rows[:shown], catalog, metrics, params, sort)
    finally:
        catalog.close()
    if sort and found is not None:
        places = {row.name: place for place, row in enumerate(found.rows)}
        rows.sort(key=lambda row: places[row.id])
    more, rows = rows[shown:] if shown else [], rows[:shown]
    if as_json:
        _print_json(rows, found)
        return
    from upshift.report.human import duration
    from upshift.report.terminal import Page
    from upshift.report.terminal.catalog import runs_table
    from upshift.runs.lease import silent_for

    echo(runs_table(rows, page=Page.of_stdout(), more=_columns(rows, found)))
    for row in rows:
        if row.status == "running" and (silent := silent_for(row.id, row.store)) is not None:
            echo(f"{row.id}: no word from its engine for {duration(silent)}", err=True)
    if more:
        which = "first" if sort else "newest"
        echo(f"These are the {which} {shown}; there are more: --limit N", err=True)


def _is(row: RunRow, statuses: Sequence[str]) -> bool:
    """Whether a run has a status; an interrupted run also counts as cancelled, as in JSON."""
    return row.status in statuses or (row.status == "interrupted" and "cancelled" in statuses)


def _compared(
    rows: Sequence[RunRow], catalog: Catalog, metrics: Sequence[str], params: Sequence[str], sort: str | None
) -> Comparison | None:
    if not rows or not (metrics or params or sort):
        return None
    from upshift.report.views.comparing import compare, rows_of_runs
    from upshift.runs.history.runs import Run, RunList

    runs = RunList(Run(row, catalog) for row in rows)
    runs.measure()
    return compare(rows_of_runs(runs, curves=False), "run", sort=sort, metrics=metrics, given=params)


def _columns(rows: Sequence[RunRow], found: Comparison | None) -> dict[str, list[str]]:
    if found is None:
        return {}
    by_name = {row.name: found.brief(row) for row in found.rows}
    labels = found.labels()
    names = [*found.given, *found.metrics]
    return {labels[name]: [by_name[row.id][name] for row in rows] for name in names}


def _print_json(rows: Sequence[RunRow], found: Comparison | None) -> None:
    from upshift.runs.history.as_json import row_as_json

    every = [row_as_json(row) for row in rows]
    if found is not None:
        by_name = {row.name: row for row in found.rows}
        for one in every:
            row = by_name[one["id"]]
            one["params"] = {name: row.given.get(name) for name in found.given}
            one["metrics"] = {name: row.metrics.get(name) for name in found.metrics}
    echo_json(every)


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("step", metavar="[STEP]", required=False)
@click.option(
    "--tasks", is_flag=True, help="Show a table of the tasks of each mapped step, and a row for each rank."
)
@shared.sort("an input of the tasks")
@click.option(
    "--stacks", is_flag=True, help="Show where each process of a step was when the step hung or was stopped."
)
@shared.as_json
def show(run: str, step: str | None, tasks: bool, sort: str | None, stacks: bool, as_json: bool) -> None:
    """Show a run: steps, times, hardware from asked to used, failures.

    STEP is one of its steps, such as 'train', or one task of a mapped step, such as 'train[3]'.
    """
    from upshift.cli import selection

    found = selection.found(run)
    if as_json:
        from upshift.runs.history.as_json import run_as_json

        shown = run_as_json(found)
        if step is not None:
            (chosen,), index = selection.selected(found, step)
            shown["steps"] = [one for one in shown["steps"] if one["name"] == chosen.name]
            for one in shown["steps"]:
                one["tasks"] = [task for task in one["tasks"] if index in (None, task["index"])]
        echo_json(shown)
        return
    from upshift.report.terminal import Page
    from upshift.report.terminal.show import show_run, show_task, tasks_table

    page = Page.of_stdout()
    if step is None:
        echo(show_run(found, page=page, tasks=tasks or sort is not None, sort=sort, stacks=stacks))
        return
    (chosen,), index = selection.selected(found, step)
    if chosen.mapped and index is None:
        echo(tasks_table(chosen, page, sort=sort))
        return
    one = [task for task in chosen.tasks if task.index == index]
    echo(show_task(found, one[0], page) if one else f"{chosen.name}: {chosen.status}, no tasks")


@click.command()
@click.argument("runs", metavar="[RUN]…", nargs=-1)
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(min=1, max=MOST_RUNS),
    help="Also the newest N runs, oldest first.",
)
@click.option("--pipeline", metavar="NAME", help="With --last: only runs of this pipeline.")
@click.option("--tag", metavar="TAG", help="With --last: only runs with this tag.")
@shared.metrics("Show this metric, and sort by the first one. Default: all metrics.")
@shared.sort("a parameter", "Default: by the first metric with a name such as accuracy or loss.")
@shared.as_json
def compare(
    runs: tuple[str, ...],
    last: int | None,
    pipeline: str | None,
    tag: str | None,
    metrics: tuple[str, ...],
    sort: str | None,
    as_json: bool,
) -> None:
    """Compare runs: parameters that differ, times, metrics.

    Two runs are shown side by side, more as rows of one table.
    """
    found = _found(runs, last, pipeline, tag)
    from upshift.report.terminal.compare import compared, compared_json

    if as_json:
        echo_json(compared_json(found))
        return
    from upshift.report.terminal import Page

    echo(compared(found, Page.of_stdout(), sort=sort, metrics=metrics))


def _found(runs: tuple[str, ...], last: int | None, pipeline: str | None, tag: str | None) -> list[Run[Any]]:
    from upshift.errors import UsageError
    from upshift.runs.history.runs import get_run, list_runs

    for option, value in (("--pipeline", pipeline), ("--tag", tag)):
        if value is not None and last is None:
            raise UsageError(f"{option} selects runs for --last, which is missing", fix="Add --last N.")
    found = [get_run(run) for run in runs]
    if last is not None:
        found += reversed(list_runs(pipeline=pipeline, tag=tag, limit=last))
    if len(found) < 2:
        there = "one run" if found else "no run"
        raise UsageError(
            f"there is {there} to compare",
            fix="Name two or more, or compare the newest: upshift compare --last 2.",
        )
    return found


@click.command()
@click.argument("runs", metavar="RUN [RUN…]", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True),
    help="The file to write; '-' is stdout. Default: upshift-report-RUN.html in this folder.",
)  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the report in a browser.")
@click.option(
    "-f", "--follow", is_flag=True, help="Update the report every two seconds until the run is over."
)
def report(runs: Sequence[str], output: Path | None, opens: bool, follow: bool) -> None:
    """Write a report of a run: one HTML file that works offline.

    It has the graph, the timeline, the four records of every attempt, charts of CPU, memory, GPUs and
    metrics, cards, failures and logs. With several runs, the metrics of the others are drawn over those of
    the first.
    """
    import threading

    from upshift.report.page import report_page, write_page, write_until_over
    from upshift.runs.history.runs import get_run

    def look() -> tuple[Run, Sequence[Run]]:
        run, *others = (get_run(ref) for ref in names)
        return run, others

    found = [get_run(ref) for ref in runs]
    names = [run.id for run in found]  # 'latest' may be another one soon
    if output == Path("-"):
        if opens or follow:
            raise click.UsageError("--open and --follow need a file, and -o - is stdout.")
        echo(report_page(found[0], found[1:]), nl=False)
        return
    path = output or Path(f"upshift-report-{names[0]}.html")
    if follow:
        written = functools.partial(_tell, path, opens)
        write_until_over(path, look, threading.Event().wait, written=written)
        return
    write_page(path, report_page(found[0], found[1:]))
    _tell(path, opens)
    if found[0].status in ("pending", "running"):
        echo("The run is not over: --follow updates the report until it is.", err=True)


def _tell(path: Path, opens: bool) -> None:
    """Print where the report is, and open it."""
    import webbrowser

    echo(path)
    if not opens:
        return
    if not webbrowser.open(path.absolute().as_uri()):
        echo(f"No browser could be started; open {path.absolute()} yourself.", err=True)


@click.command()
@click.option("--once", is_flag=True, help="Print once. Without a terminal, this is the default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, once.")
def top(once: bool, as_json: bool) -> None:
    """Show running steps, with their CPU, memory and GPUs.

    The list covers all runs in the catalog. Press q to quit.
    """
    import sys

    from upshift.report.terminal import Page
    from upshift.report.terminal.top import lines
    from upshift.report.views.top import Watch
    from upshift.runs.catalog.opening import open_catalog

    watch = Watch(open_catalog())
    if as_json:
        echo_json(watch.look().as_json())
    elif once or not sys.stdout.isatty():
        echo("\n".join(lines(watch.look(), Page.of_stdout())))
    else:
        from upshift.report.terminal.top import show

        show(lambda page: lines(watch.look(wait=False), page))
