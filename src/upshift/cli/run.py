"""``upshift run``."""

from __future__ import annotations

import click

from upshift.cli import options as shared


@click.command(cls=shared.PipelineCommand)
@shared.takes_pipeline
@shared.keep_going("Default: as the pipeline has it, else stop.")
@click.option(
    "-t", "--tag", "tags", metavar="TAG", multiple=True, help="A tag to find the run by. Repeatable."
)
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
    tags: tuple[str, ...],
    debug: str | None,
) -> int:
    """Run a pipeline.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    """
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    from upshift.cli.watch import shown
    from upshift.engine import RunOptions

    options = RunOptions(
        target=target, strict=strict, reuse=not no_cache, keep_going=keep_going, tags=tags, debug=debug
    )
    with shown(live=debug is None) as progress:
        pipeline.run(arguments, options=options, progress=progress)
    return 0
