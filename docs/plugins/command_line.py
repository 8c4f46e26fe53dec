"""A line ``<!-- commands -->`` becomes what each command says to ``--help``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from upshift.cli import upshift

PLACE = "<!-- commands -->"
_WIDTH = 84


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    return markdown.replace(PLACE, _commands()) if PLACE in markdown else markdown


def _commands() -> str:
    top = click.Context(upshift, info_name="upshift", help_option_names=["-h", "--help"])
    return "\n".join(_below(upshift, top))


def _below(group: click.Group, outer: click.Context) -> Iterator[str]:
    """The commands of a group; of a group among them its own, too."""
    for name in group.list_commands(outer):
        command = group.get_command(outer, name)
        assert command is not None
        context = click.Context(command, parent=outer, info_name=name, terminal_width=_WIDTH)
        yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            yield from _below(command, context)
