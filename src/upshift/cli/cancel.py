"""``upshift cancel``."""

from __future__ import annotations

import click

from upshift.cli.output import echo


@click.command()
@click.argument("run", metavar="RUN")
def cancel(run: str) -> None:
    """Stop a run; what is done is kept."""
    from upshift.engine import control
    from upshift.model.configuration import load_configuration

    echo(control.cancel(run, load_configuration()))
