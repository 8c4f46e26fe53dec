"""``upshift runs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from upshift.cli import shared_options as shared
from upshift.cli.output import echo
from upshift.model.checks import MOST_RUNS

if TYPE_CHECKING:
    from upshift.report.comparing import Comparison
    from upshift.runs.catalog.catalog import Catalog
    from upshift.runs.catalog.rows import RunRow

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
    help="Only runs that ended like this, or are at it. Repeatable.",
)
@shared.metrics("A column with the last value of a metric; of a mapped step the best one.")
@click.option(
    "-p", "--param", "params", metavar="NAME", multiple=True, help="A column with a parameter. Repeatable."
)
@shared.sort("a parameter", "Default: the newest first.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1, max=MOST_RUNS - 1),
    help="At most N. Default: 50, and all of them as JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
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
    from upshift.runs.catalog.rebuild import open_catalog
    from upshift.runs.catalog.standing import standing

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
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.tables import runs_table

    echo(runs_table(rows, page=Page.of_stdout(), more=_columns(rows, found)))
    if more:
        which = "first" if sort else "newest"
        echo(f"These are the {which} {shown}; there are more: --limit N", err=True)


def _is(row: RunRow, statuses: Sequence[str]) -> bool:
    """An interrupted run is a cancelled one, too, as in JSON."""
    return row.status in statuses or (row.status == "interrupted" and "cancelled" in statuses)


def _compared(
    rows: Sequence[RunRow], catalog: Catalog, metrics: Sequence[str], params: Sequence[str], sort: str | None
) -> Comparison | None:
    if not rows or not (metrics or params or sort):
        return None
    from upshift.report.comparing import compare, rows_of_runs
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
    import json

    from upshift.runs.history.as_json import row_as_json

    every = [row_as_json(row) for row in rows]
    if found is not None:
        by_name = {row.name: row for row in found.rows}
        for one in every:
            row = by_name[one["id"]]
            one["params"] = {name: row.given.get(name) for name in found.given}
            one["metrics"] = {name: row.metrics.get(name) for name in found.metrics}
    echo(json.dumps(every, indent=2))
