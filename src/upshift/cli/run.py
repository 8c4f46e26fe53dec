"""``upshift run``."""

from __future__ import annotations

import click

from upshift.cli import shared_options as shared


@click.command(cls=shared.PipelineCommand)
@shared.takes_pipeline
@shared.keep_going("Default: as the pipeline has it, else stop.")
@shared.takes_how
@click.option("--branch", metavar="NAME", help="The branch of the @project of a flow that the run is on.")
@click.option("--production", is_flag=True, help="The run is one of the production of that project.")
@shared.detach
@shared.debug
def run(
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    params_from: str | None,
    target: str | None,
    strict: bool | None,
    no_cache: bool,
    keep_going: bool | None,
    decorators: tuple[str, ...],
    max_workers: int | None,
    max_num_splits: int | None,
    run_id_file: str | None,
    tags: tuple[str, ...],
    branch: str | None,
    production: bool,
    detach: bool,
    debug: str | None,
) -> int:
    """Run a pipeline.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    """
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    from upshift.cli.watch import shown
    from upshift.engine import RunOptions

    options = RunOptions(
        target=target,
        strict=strict,
        reuse=not no_cache,
        keep_going=keep_going,
        tags=(*tags, *shared.tags_of_branch(pipeline, branch, production)),
        debug=debug,
        max_workers=max_workers,
        max_splits=max_num_splits,
        detach=detach,
    )
    if decorators:
        from upshift.authoring.flow.step_decorators import with_decorators

        pipeline = with_decorators(pipeline, decorators)
    with shown(live=debug is None and not detach, run_id_file=run_id_file) as progress:
        pipeline.run(arguments, options=options, progress=progress)
    return 0
