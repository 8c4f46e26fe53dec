"""``upshift plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from upshift.cli import shared_options as shared
from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.report.planned import Plan


@click.command(cls=shared.PipelineCommand)
@shared.takes_pipeline
@click.option("--show", "scripts", is_flag=True, help="Print the scripts that the steps' targets would get.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; with --show the scripts are in it.")
def plan(
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    params_from: str | None,
    target: str | None,
    strict: bool | None,
    no_cache: bool,
    scripts: bool,
    as_json: bool,
) -> None:
    """Show what a run would do; nothing runs.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    Exits as the run would: with 2 where it would be refused, with 1 where a step is bound to fail.
    """
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    from upshift.authoring.running import plan as plan_run
    from upshift.engine import RunOptions

    options = RunOptions(target=target, strict=strict, reuse=not no_cache)
    found = plan_run(pipeline, arguments, options=options, announce=shared.announce, scripts=scripts)
    show(found, as_json=as_json, scripts=scripts)


def show(found: Plan, *, as_json: bool = False, scripts: bool = False) -> None:
    """Print a plan, and end as its run would."""
    if as_json:
        import json

        from upshift.report.planned import plan_as_json

        echo(json.dumps(plan_as_json(found), indent=2))
    else:
        from upshift.report.terminal.layout import Page
        from upshift.report.terminal.plan import show_plan, show_scripts

        page = Page.of_stdout()
        echo(show_scripts(found, page) if scripts else show_plan(found, page=page))
    if found.problem:
        raise found.problem
