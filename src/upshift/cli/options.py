"""What several commands take: a pipeline with its parameters, and how it is to be run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from upshift.authoring.pipelines import Pipeline

C = TypeVar("C", bound=Callable[..., Any])


def strict(default: str) -> Callable[[C], C]:
    """The command takes ``strict``; None where nothing is said, which means what ``default`` tells."""
    text = f"Refuse what cannot be granted in full, or go on with what there is and say so. {default}"
    return click.option("--strict/--best-effort", "strict", default=None, help=text)


def keep_going(default: str) -> Callable[[C], C]:
    """The command takes ``keep_going``; None where nothing is said, which means what ``default`` tells."""
    text = f"After a failure, still run what does not depend on it, or stop. {default}"
    return click.option("--keep-going/--stop-on-failure", "keep_going", default=None, help=text)


debug = click.option(
    "--debug", metavar="STEP",
    help="Run this step, or one task 'train[3]' of it, in this process: breakpoint() works in it, and the "
    "debugger opens where it raises. It runs though earlier results are there, and its own is not reused.",
)  # fmt: skip
_GRAPH = (
    click.argument("file", metavar="FILE[:PIPELINE]"),
    click.option(
        "-p", "--param", "params", metavar="NAME=VALUE", multiple=True,
        help="A parameter of the pipeline, read by its annotation; JSON for lists and dictionaries. "
        "Repeatable.",
    ),
    click.option(
        "--params-file", metavar="FILE", help="Parameters from a JSON or TOML file; --param goes first."
    ),
    click.option(
        "--on", "target", metavar="TARGET",
        help="Where to run: local, docker, podman, or a target of the configuration. A step that has on= "
        "stays where that says.",
    ),
)  # fmt: skip
_PIPELINE = (
    *_GRAPH,
    strict("Default: best effort on this machine, strict elsewhere."),
    click.option("--no-cache", is_flag=True, help="Run every task, whatever earlier runs have done already."),
)  # fmt: skip


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An age that was typed, such as ``30d``, in seconds."""
    from upshift.model.settings.spans import parse_span

    try:
        return None if value is None else parse_span(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def takes_pipeline(command: C) -> C:
    """The command takes ``file``, ``params``, ``params_file``, ``target``, ``strict`` and ``no_cache``."""
    return with_options(_PIPELINE, command)


def takes_graph(command: C) -> C:
    """The command takes ``file``, ``params``, ``params_file`` and ``target``."""
    return with_options(_GRAPH, command)


def named_pipeline(
    file: str, params: Sequence[str], params_file: str | None
) -> tuple[Pipeline[Any, Any], dict[str, object]]:
    """The pipeline that is named, and the values of its parameters.

    Raises
    ------
    UpshiftError
        The file, the pipeline in it, or a parameter is not what it should be.
    """
    before_users_code()
    from upshift.authoring.loading import load_pipeline
    from upshift.authoring.parameters import parse_params

    pipeline = load_pipeline(file)
    return pipeline, parse_params(pipeline, list(params), params_file)


def before_users_code() -> None:
    """Make this process fit for modules of the user's."""
    from upshift.runtime.supervisor.starters import asked_at_import
    from upshift.runtime.supervisor.starters.pools import quiet_pools

    asked_at_import.watch()
    quiet_pools()  # before they can start native threads, which would make forking unsafe
    sys.argv[
        1:
    ] = []  # what follows the command is ours; a module that parses arguments would stumble over it


def announce(text: str) -> None:
    """Say what takes long, beside what the command prints."""
    click.echo(text, err=True)


def with_options(options: Sequence[Callable[[Any], Any]], command: C) -> C:
    """The command takes these, in this order."""
    for option in reversed(options):  # the help shows them in the order in which they stand here
        command = option(command)
    return command
