"""What several commands take: a pipeline with its parameters, and how it is to be run."""

from __future__ import annotations

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
_PIPELINE = (
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
        "--on", "target", metavar="TARGET", help="Where to run: a target of the configuration, or 'local'."
    ),
    strict("Default: best effort on this machine, strict elsewhere."),
    click.option("--no-cache", is_flag=True, help="Run every task, whatever earlier runs have done already."),
)  # fmt: skip


def takes_pipeline(command: C) -> C:
    """The command takes ``file``, ``params``, ``params_file``, ``target``, ``strict`` and ``no_cache``."""
    return _with(_PIPELINE, command)


def named_pipeline(
    file: str, params: Sequence[str], params_file: str | None
) -> tuple[Pipeline[Any, Any], dict[str, object]]:
    """The pipeline that is named, and the values of its parameters.

    Raises
    ------
    UpshiftError
        The file, the pipeline in it, or a parameter is not what it should be.
    """
    from upshift.worker.pools import quiet_pools

    quiet_pools()  # before the user's module can start native threads, which would make forking unsafe
    from upshift.authoring.loading import load_pipeline
    from upshift.authoring.parameters import parse_params

    pipeline = load_pipeline(file)
    return pipeline, parse_params(pipeline, list(params), params_file)


def _with(options: Sequence[Callable[[Any], Any]], command: C) -> C:
    for option in reversed(options):  # the help shows them in the order in which they stand here
        command = option(command)
    return command
