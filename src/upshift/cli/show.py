"""``upshift show``."""

from __future__ import annotations

import click


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--tasks", is_flag=True, help="A row for each task of a mapped step, and for each rank.")
@click.option("--stacks", is_flag=True, help="Where each process was of a step that hung or was stopped.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(run: str, tasks: bool, stacks: bool, as_json: bool) -> None:
    """Show a run: steps, times, hardware asked to used, failures."""
    from upshift.runs.history import get_run

    found = get_run(run)
    if as_json:
        import json

        from upshift.runs.history import run_as_json

        click.echo(json.dumps(run_as_json(found), indent=2))
        return
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.tables import show_run

    click.echo(show_run(found, page=Page.of_stdout(), tasks=tasks, stacks=stacks))
