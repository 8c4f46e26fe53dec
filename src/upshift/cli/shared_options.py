"""Options that several commands take: a pipeline with its parameters, and how it is run."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from upshift.cli import echo

if TYPE_CHECKING:
    from upshift.authoring.pipelines import Pipeline

C = TypeVar("C", bound=Callable[..., Any])


def strict(default: str) -> Callable[[C], C]:
    """Add the option ``strict``; its default is None, which means what the text ``default`` says."""
    text = f"Refuse requests that cannot be granted in full, or continue with what is available. {default}"
    return click.option("--strict/--best-effort", "strict", default=None, help=text)


def keep_going(default: str) -> Callable[[C], C]:
    """Add the option ``keep_going``; its default is None, which means what the text ``default`` says."""
    text = f"After a failure, still run the steps that do not depend on it, or stop. {default}"
    return click.option("--keep-going/--stop-on-failure", "keep_going", default=None, help=text)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
debug = click.option(
    "--debug", metavar="STEP",
    help="Run this step, or one task 'train[3]' of it, in this process: breakpoint() works in it, and the "
    "debugger opens where it raises. The step runs even if its result could be reused, and its result is "
    "not reused.",
)  # fmt: skip
detach = click.option(
    "--detach", is_flag=True,
    help="Submit the engine itself to the target, or start it in the background of this machine, and return "
    "once it is accepted.",
)  # fmt: skip
_CONFIGS = "upshift.configs"


def _keep_configs(ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, str], ...]) -> None:
    kept = ctx.meta.setdefault(_CONFIGS, [])
    kept.extend(word for pair in value for word in (param.opts[0], *pair))


def _enter_namespace(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        os.environ["UPSHIFT_NAMESPACE"] = value  # for the processes of steps, too


_OF_FLOWS = (
    click.option(
        "--config", type=(str, str), multiple=True, metavar="NAME FILE", callback=_keep_configs,
        expose_value=False, help="The file of a Config of a flow. Repeatable.",
    ),
    click.option(
        "--config-value", type=(str, str), multiple=True, metavar="NAME JSON", callback=_keep_configs,
        expose_value=False, help="The value of a Config of a flow. Repeatable.",
    ),
)  # fmt: skip
_NAMESPACE = click.option(
    "--namespace", metavar="NAME", callback=_enter_namespace, expose_value=False,
    help="The namespace whose runs steps can see, such as user:ann; empty: everybody's runs.",
)  # fmt: skip
_GRAPH = (
    click.argument("file", metavar="FILE[:PIPELINE]"),
    *_OF_FLOWS,
    click.option(
        "-p", "--param", "params", metavar="NAME=VALUE", multiple=True,
        help="A parameter of the pipeline, converted by its annotation; JSON for lists and dictionaries. "
        "NAME.FIELD=VALUE sets one field of an object. Repeatable.",
    ),
    click.option(
        "--params-file",
        metavar="FILE",
        help="Parameters from a JSON, YAML or TOML file; --param takes precedence.",
    ),
    click.option(
        "--params-from",
        metavar="RUN",
        help="The parameters of an earlier run; --params-file and --param take precedence.",
    ),
    click.option(
        "--on", "target", metavar="TARGET",
        help="Where to run: local, docker, podman, or a target of the configuration. A step with "
        "on= runs there instead.",
    ),
)  # fmt: skip
_PIPELINE = (
    *_GRAPH,
    strict("Default: best effort on this machine, strict elsewhere."),
    click.option("--no-cache", is_flag=True, help="Run every task, without reusing results of earlier runs."),
)  # fmt: skip


def metrics(told: str) -> Callable[[C], C]:
    """Add the option ``metrics``: names of metrics, with ``told`` as help."""
    return click.option(
        "-m", "--metric", "metrics", metavar="NAME", multiple=True, help=f"{told} Repeatable."
    )


def sort(given: str, default: str = "") -> Callable[[C], C]:
    """Add the option ``sort``: the name of a metric, or of what ``given`` says."""
    told = f"Sort by a metric, the best first, by {given}, or by 'time'. {default}".rstrip()
    return click.option("--sort", metavar="NAME", help=told)


decorators = click.option(
    "--with", "decorators", metavar="NAME[:OPTION=VALUE,…]", multiple=True,
    help="A decorator for all steps, such as retry:times=3; a step's own take precedence. "
    "Repeatable.",
)  # fmt: skip
_HOW = (
    decorators,
    _NAMESPACE,
    click.option(
        "--max-workers", type=click.IntRange(min=1), metavar="N",
        help="Run at most N tasks at a time. Default: as many as there is room for.",
    ),
    click.option(
        "--max-num-splits", type=click.IntRange(min=1), metavar="N",
        help="Refuse to map a step over more than N items.",
    ),
    click.option(
        "--run-id-file", metavar="FILE", help="Write the id of the run to this file, early."
    ),
    click.option(
        "-t", "--tag", "tags", metavar="TAG", multiple=True, help="A tag to find the run by. Repeatable."
    ),
)  # fmt: skip


def seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An age, such as ``30d``, in seconds."""
    from upshift.model.settings.sizes import parse_span

    try:
        return None if value is None else parse_span(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def takes_pipeline(command: C) -> C:
    """Add all of :func:`takes_graph`, ``strict`` and ``no_cache``."""
    return with_options(_PIPELINE, command)


def takes_how(command: C) -> C:
    """Add ``decorators``, ``max_workers``, ``max_num_splits``, ``run_id_file`` and ``tags``."""
    return with_options(_HOW, command)


def takes_graph(command: C) -> C:
    """Add ``file``, ``params``, ``params_file``, ``params_from`` and ``target``."""
    return with_options(_GRAPH, command)


class PipelineCommand(click.Command):
    """A command on a pipeline, with a hint where a parameter is typed like an option or an argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        typed = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _no_option(error, typed) from None
        if ctx.args:
            raise _left_over(ctx.args[0], str(ctx.params.get("file")))
        return rest


_ALIKE = 0.75
"""Similarity, by ``difflib``, from which one name is taken for a misspelling of another."""


def _no_option(error: click.NoSuchOption, typed: Sequence[str]) -> Exception:
    from difflib import get_close_matches

    from upshift.errors import UsageError

    option = error.option_name
    if not option.startswith("--"):
        return error
    after = next((i for i, one in enumerate(typed) if one.partition("=")[0] == option), len(typed))
    value = typed[after].partition("=")[2] if after < len(typed) else ""
    value = value or "".join(one for one in typed[after + 1 : after + 2] if not one.startswith("-"))
    # Of two short names, such as --n and --on, dashes are the greater part of what is alike.
    known = {one.lstrip("-"): one for one in error.possibilities or ()}
    close = get_close_matches(option.lstrip("-"), known, n=1, cutoff=_ALIKE)
    meant = f"Did you mean {known[close[0]]}? " if close else ""
    name = option.removeprefix("--").replace("-", "_")
    if name == "pipeline" and value:
        meant = f"To name the pipeline in the file: FILE:{value}. "
    return UsageError(
        f"no such option {option!r}",
        fix=f"{meant}A parameter of the pipeline is given by -p: -p {name}={value or 'VALUE'}",
    )


def _left_over(argument: str, file: str) -> Exception:
    from upshift.errors import UsageError

    name, equals, _ = argument.partition("=")
    fix = f"Parameters of the pipeline are given by -p: -p {argument.lstrip('+')}"
    if not equals:
        file = file.partition(":")[0]
        fix = f"To name the pipeline in the file: {file}:{name}. To give a parameter: -p NAME=VALUE."
    return UsageError(f"unexpected argument {argument!r}", fix=fix)


def named_pipeline(
    file: str, params: Sequence[str], params_file: str | None, params_from: str | None
) -> tuple[Pipeline[Any, Any], dict[str, object]]:
    """Import the named pipeline, and parse its parameters."""
    before_users_code()
    from upshift.authoring.loading import load_pipeline
    from upshift.authoring.parameters import parse_params

    typed = click.get_current_context().meta.get(_CONFIGS, [])
    sys.argv[1:] = typed  # where a flow looks for its configurations, as on its own command line
    with _said_if_slow(f"importing {file.partition(':')[0]} …"):
        pipeline = load_pipeline(file)
    if typed:
        from upshift.authoring.flow.parameters import confirm_configs

        confirm_configs(pipeline, typed[1::3])
    earlier = None
    if params_from is not None:
        from upshift.runs.history.runs import get_run

        earlier = get_run(params_from).params
    return pipeline, parse_params(pipeline, list(params), params_file, earlier)


def tags_of_branch(pipeline: Pipeline[Any, Any], branch: str | None, production: bool) -> list[str]:
    """The tag for the branch of a run, if one was named."""
    if branch is None and not production:
        return []
    from upshift.authoring.flow.flow_decorators import branch_tags
    from upshift.authoring.options import identifier
    from upshift.errors import UsageError

    if (branch or production) and "project" not in getattr(pipeline, "marks", {}):
        raise UsageError(
            f"{pipeline.name} belongs to no project, and so has no branch",
            fix='Write @project(name="NAME") above the class of a flow.',
        )
    return branch_tags(identifier("--branch", branch), production)


@contextlib.contextmanager
def _said_if_slow(text: str) -> Iterator[None]:
    """Announce on a terminal what takes more than a second. Its thread ends before processes fork."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(1.0, announce, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def before_users_code() -> None:
    """Prepare this process for importing the user's modules."""
    from upshift.runtime.supervisor import forkable
    from upshift.runtime.supervisor.forkable import quiet_pools

    forkable.watch()
    quiet_pools()  # before they can start native threads, which would make forking unsafe
    del sys.argv[1:]  # a module that parses arguments would stumble over those of the command


def announce(text: str) -> None:
    """Print a line on stderr."""
    echo(text, err=True)


def with_options(options: Sequence[Callable[[Any], Any]], command: C) -> C:
    """Add options to a command, in this order."""
    for option in reversed(options):  # the help shows them in the order in which they stand here
        command = option(command)
    return command
