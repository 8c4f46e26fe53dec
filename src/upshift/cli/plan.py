"""``upshift plan``."""

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
    "--on", "target", metavar="TARGET", help="Where it would run: a target of the configuration, or 'local'."
)
@click.option(
    "--strict/--best-effort", "strict", default=None,
    help="Refuse what cannot be granted in full, or plan with what there is and say so. "
    "Default: best effort on this machine, strict elsewhere.",
)  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Plan to run every task, whatever was done already.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    target: str | None,
    strict: bool | None,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Show what a run would do; nothing runs.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    Exits as the run would: with 2 where it would be refused, with 1 where a step is bound to fail.
    """
    from upshift.worker.pools import quiet_pools

    quiet_pools()  # as for a run, so that the user's module finds the same environment
    from upshift.authoring.loading import load_pipeline
    from upshift.authoring.parameters import parse_params
    from upshift.authoring.running import plan as plan_run
    from upshift.engine import RunOptions

    pipeline = load_pipeline(file)
    arguments = parse_params(pipeline, list(params), params_file)
    options = RunOptions(target=target, strict=strict, reuse=not no_cache)
    found = plan_run(pipeline, arguments, options=options)
    if as_json:
        import json

        from upshift.engine.plan_json import plan_as_json

        click.echo(json.dumps(plan_as_json(found), indent=2))
    else:
        from upshift.report.layout import Page
        from upshift.report.plan import show_plan

        click.echo(show_plan(found, page=Page.of_stdout()))
    if found.problem:
        raise found.problem
