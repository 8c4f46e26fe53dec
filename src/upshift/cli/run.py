"""``upshift run``."""

from __future__ import annotations

import click


@click.command()
@click.argument("file", metavar="FILE[:PIPELINE]")
@click.option(
    "-p", "--param", "params", metavar="NAME=VALUE", multiple=True,
    help="A parameter of the pipeline, read by its annotation; JSON for lists and dictionaries. Repeatable.",
)  # fmt: skip
@click.option(
    "--params-file", metavar="FILE", help="Parameters from a JSON or TOML file; --param goes first."
)
@click.option(
    "--on", "target", metavar="TARGET", help="Where to run: a target of the configuration, or 'local'."
)
@click.option(
    "--strict/--best-effort", "strict", default=None,
    help="Refuse what cannot be granted in full, or run with what there is and say so. "
    "Default: best effort on this machine, strict elsewhere.",
)  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Run every task, whatever earlier runs have done already.")
@click.option(
    "--keep-going/--stop-on-failure", "keep_going", default=None,
    help="After a failure, still run what does not depend on it, or stop. "
    "Default: as the pipeline has it, else stop.",
)  # fmt: skip
@click.option(
    "-t", "--tag", "tags", metavar="TAG", multiple=True, help="A tag to find the run by. Repeatable."
)
@click.option(
    "--debug", metavar="STEP",
    help="Run this step, or one task 'train[3]' of it, in this process: breakpoint() works in it, and the "
    "debugger opens where it raises. It runs though earlier results are there, and its own is not reused.",
)  # fmt: skip
def run(
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    target: str | None,
    strict: bool | None,
    no_cache: bool,
    keep_going: bool | None,
    tags: tuple[str, ...],
    debug: str | None,
) -> int:
    """Run a pipeline.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    """
    from upshift.worker.pools import quiet_pools

    quiet_pools()  # before the user's module can start native threads, which would make forking unsafe
    from upshift.authoring.loading import load_pipeline
    from upshift.authoring.parameters import parse_params
    from upshift.cli.watch import shown
    from upshift.engine import RunOptions

    pipeline = load_pipeline(file)
    arguments = parse_params(pipeline, list(params), params_file)
    options = RunOptions(
        target=target, strict=strict, reuse=not no_cache, keep_going=keep_going, tags=tags, debug=debug
    )
    with shown(live=debug is None) as progress:
        pipeline.run(arguments, options=options, progress=progress)
    return 0
