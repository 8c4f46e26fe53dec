"""``upshift compare``."""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", metavar="RUN RUN…", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def compare(runs: tuple[str, ...], as_json: bool) -> None:
    """Compare runs: parameters that differ, times, metrics."""
    from upshift.errors import UsageError
    from upshift.store.history import get_run

    if len(runs) < 2:
        raise UsageError("there is one run to compare", fix="Name two or more: upshift compare RUN RUN…")
    found = [get_run(run) for run in runs]
    from upshift.report.compare import compared, compared_json

    if as_json:
        import json

        click.echo(json.dumps(compared_json(found), indent=2))
        return
    from upshift.report.layout import Page

    click.echo(compared(found, Page.of_stdout()))
