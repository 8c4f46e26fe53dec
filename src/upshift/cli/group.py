"""A click group that imports a command when it is called, and no sooner."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import click

from upshift.cli.output import exit_code_of
from upshift.errors import UsageError, nearest
from upshift.model.checks import shown


class LazyCommand(NamedTuple):
    """Where a command is, as ``module:attribute``, and its line in the group's help."""

    path: str
    summary: str


class LazyGroup(click.Group):
    """Commands by name, none of them imported until it is called."""

    def __init__(
        self,
        name: str | None = None,
        commands: MutableMapping[str, click.Command] | None = None,
        *,
        lazy: Mapping[str, LazyCommand],
        **settings: Any,
    ) -> None:
        super().__init__(name, commands, **settings)
        self.lazy = dict(lazy)  # the commands, in the order in which the help shows them

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.lazy:
            return None
        module, _, attribute = self.lazy[name].path.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.lazy:
            close = nearest(args[0], self.lazy)
            hint = f"Did you mean {close!r}? " if close else ""
            ctx.fail(f"No such command {shown(args[0])}. {hint}Commands: {', '.join(self.lazy)}.")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def call() -> Any:
            _refuse_undecodable(sys.argv[1:] if args is None else args)
            return super(LazyGroup, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return call()
        sys.exit(exit_code_of(call))


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Refuse what is not UTF-8, before any command sees it: no record could hold it."""
    for number, argument in enumerate(arguments, start=1):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(
                f"argument {number} is not UTF-8: {shown(os.fsencode(argument))}",
                why="Upshift records names and paths as UTF-8 text.",
                fix="Type it in UTF-8; a file with another name has to be renamed.",
            )
