"""``upshift runs``."""

from __future__ import annotations

import click

from upshift.model.checks import MOST_RUNS

SCREENFUL = 50


@click.command()
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline.")
@click.option("--user", metavar="USER", help="Only runs that this user started.")
@click.option("--tag", metavar="TAG", help="Only runs with this tag.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1, max=MOST_RUNS - 1),
    help="At most N. Default: 50, and all of them as JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def runs(pipeline: str | None, user: str | None, tag: str | None, limit: int | None, as_json: bool) -> None:
    """List runs, newest first."""
    from upshift.model.configuration import load_configuration
    from upshift.runs.catalog import no_pipeline, open_catalog
    from upshift.runs.standing import standing

    shown = limit or (None if as_json else SCREENFUL)
    catalog = open_catalog(load_configuration())
    try:
        # One more than is shown tells whether there are more.
        rows = catalog.runs(pipeline=pipeline, user=user, tag=tag, limit=shown and shown + 1)
        if pipeline is not None and not rows and not catalog.runs(pipeline=pipeline, limit=1):
            raise no_pipeline(pipeline, catalog)
        rows = standing(rows, catalog)
    finally:
        catalog.close()
    more, rows = rows[shown:] if shown else [], rows[:shown]
    if as_json:
        import json

        from upshift.runs.history import row_as_json

        click.echo(json.dumps([row_as_json(row) for row in rows], indent=2))
        return
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.tables import runs_table

    click.echo(runs_table(rows, page=Page.of_stdout()))
    if more:
        click.echo(f"These are the newest {shown}; there are more: --limit N", err=True)
