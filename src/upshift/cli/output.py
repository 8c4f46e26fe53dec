"""What a command says, on its way to stdout or stderr."""

from __future__ import annotations

import sys

import click

from upshift.report.terminal.streams import cleaned


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print a text; names, tags and messages of users and steps in it give a terminal no commands."""
    said = str(text)
    stream = sys.stderr if err else sys.stdout
    click.echo(cleaned(said) if stream.isatty() else said, err=err, nl=nl)
