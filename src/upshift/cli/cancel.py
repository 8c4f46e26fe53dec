"""``upshift cancel``."""

from __future__ import annotations

import click

from upshift.cli.output import echo


@click.command()
@click.argument("run", metavar="RUN")
def cancel(run: str) -> None:
    """Stop a run; what is done is kept."""
    from upshift.engine import cancelling
    from upshift.model.configuration import load_configuration

    echo(cancelling.cancel(run, load_configuration()))
