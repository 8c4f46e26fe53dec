"""``upshift resume``."""

from __future__ import annotations

import click


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--same-code", is_flag=True,
    help="Use the code that was recorded when the run started. Default: the code as it is now.",
)  # fmt: skip
def resume(run: str, same_code: bool) -> int:
    """Finish a run; what is done is not run again."""
    from upshift.worker.pools import quiet_pools

    quiet_pools()  # before the user's module can start native threads, which would make forking unsafe
    from upshift.authoring.resume import resume_run
    from upshift.cli.watch import shown
    from upshift.engine import RunOptions

    with shown() as progress:
        resume_run(run, same_code=same_code, options=RunOptions(), progress=progress)
    return 0
