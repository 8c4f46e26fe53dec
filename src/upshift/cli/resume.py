"""``upshift resume``."""

from __future__ import annotations

import click


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--same-code", is_flag=True,
    help="Use the code that was recorded when the run started. Default: the code as it is now.",
)  # fmt: skip
@click.option(
    "--strict/--best-effort", "strict", default=None,
    help="Refuse what cannot be granted in full, or run with what there is and say so.",
)  # fmt: skip
@click.option(
    "--cache/--no-cache", "cache", default=None, help="Whether results of other runs may be reused."
)
@click.option(
    "--keep-going/--stop-on-failure", "keep_going", default=None,
    help="Whether what does not depend on a failed step still runs.",
)  # fmt: skip
@click.option(
    "--debug", metavar="STEP",
    help="Run this step, or one task 'train[3]' of it, in this process, under a debugger.",
)  # fmt: skip
def resume(
    run: str,
    same_code: bool,
    strict: bool | None,
    cache: bool | None,
    keep_going: bool | None,
    debug: str | None,
) -> int:
    """Finish a run; what is done is not run again.

    It goes on with the options that it was started with, or last resumed with, where none is given here.
    """
    from upshift.worker.pools import quiet_pools

    quiet_pools()  # before the user's module can start native threads, which would make forking unsafe
    from upshift.authoring.resume import resume_run
    from upshift.cli.watch import shown

    with shown(live=debug is None) as progress:
        resume_run(
            run,
            same_code=same_code,
            progress=progress,
            strict=strict,
            reuse=cache,
            keep_going=keep_going,
            debug=debug,
        )
    return 0
