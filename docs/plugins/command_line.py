"""A line ``<!-- commands -->`` becomes what each command says to ``--help``."""

from __future__ import annotations

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
    parts = []
    for name in upshift.list_commands(top):
        command = upshift.get_command(top, name)
        assert command is not None
        context = click.Context(command, parent=top, info_name=name, terminal_width=_WIDTH)
        parts.append(f"## upshift {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)
