"""``upshift resume``."""

from __future__ import annotations

import click

from upshift.cli import shared_options as shared


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--same-code", is_flag=True,
    help="Use the code that was recorded when the run started. Default: the code as it is now.",
)  # fmt: skip
@shared.strict("Default: as before.")
@click.option(
    "--cache/--no-cache", "cache", default=None, help="Whether results of other runs may be reused."
)
@shared.keep_going("Default: as before.")
@shared.detach
@shared.debug
def resume(
    run: str,
    same_code: bool,
    strict: bool | None,
    cache: bool | None,
    keep_going: bool | None,
    detach: bool,
    debug: str | None,
) -> int:
    """Finish a run; what is done is not run again.

    It goes on with the options that it was started with, or last resumed with, where none is given here.
    """
    shared.before_users_code()
    from upshift.authoring.resume import resume_run
    from upshift.cli.watch import shown

    with shown(live=debug is None and not detach) as progress:
        resume_run(
            run,
            same_code=same_code,
            progress=progress,
            strict=strict,
            reuse=cache,
            keep_going=keep_going,
            debug=debug,
            detach=detach or None,
        )
    return 0
