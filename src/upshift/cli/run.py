"""The commands that run a pipeline, plan its run, resume it and cancel it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import click

from upshift.cli import echo, echo_json
from upshift.cli import shared_options as shared

if TYPE_CHECKING:
    from upshift.report import Progress
    from upshift.report.views.plan import Plan


@click.command(cls=shared.PipelineCommand)
@shared.takes_pipeline
@shared.keep_going("Default: as the pipeline has it, else stop.")
@shared.takes_how
@click.option("--branch", metavar="NAME", help="The branch of the @project of a flow that the run is on.")
@click.option("--production", is_flag=True, help="The run belongs to the production of that project.")
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

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several.
    """
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
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


@click.command(cls=shared.PipelineCommand)
@shared.takes_pipeline
@click.option("--show", "scripts", is_flag=True, help="Print the scripts that the steps' targets would get.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --show, including the scripts.")
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

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several.
    Exits as the run would: with 2 if it would be refused, with 1 if a step is bound to fail.
    """
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    from upshift.authoring.running import plan as plan_run
    from upshift.engine import RunOptions

    options = RunOptions(target=target, strict=strict, reuse=not no_cache)
    found = plan_run(pipeline, arguments, options=options, announce=shared.announce, scripts=scripts)
    print_plan(found, as_json=as_json, scripts=scripts)


def print_plan(found: Plan, *, as_json: bool = False, scripts: bool = False) -> None:
    """Print a plan, and exit as its run would."""
    if as_json:
        from upshift.report.views.plan import plan_as_json

        echo_json(plan_as_json(found))
    else:
        from upshift.report.terminal import Page
        from upshift.report.terminal.plan import show_plan, show_scripts

        page = Page.of_stdout()
        echo(show_scripts(found, page) if scripts else show_plan(found, page=page))
    if found.problem:
        raise found.problem


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--same-code", is_flag=True,
    help="Use the code that was recorded when the run started. Default: the current code.",
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
    """Finish a run; completed steps are not run again.

    The run keeps the options that it was started or last resumed with, unless you give others.
    """
    shared.before_users_code()
    from upshift.authoring.resume import resume_run

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


@click.command()
@click.argument("run", metavar="RUN")
def cancel(run: str) -> None:
    """Stop a run; completed steps are kept."""
    from upshift.engine import ownerless
    from upshift.model.configuration import load_configuration

    echo(ownerless.cancel(run, load_configuration()))


@contextmanager
def shown(*, live: bool = True, run_id_file: str | None = None) -> Iterator[Progress]:
    """A progress for one run, which is closed in any case, so that the terminal is left in order.

    SIGTERM, which CI systems and containers send before SIGKILL, counts as Ctrl-C.
    """
    from upshift.report import make_progress

    progress = make_progress(live=live)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield progress if run_id_file is None else cast("Progress", _Noting(progress, run_id_file))
    finally:
        signal.signal(signal.SIGTERM, before)
        progress.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


class _Noting:
    """A progress that writes the id of the run into a file once it is known."""

    def __init__(self, progress: Progress, file: str) -> None:
        self._progress = progress
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        with open(self._file, "w", encoding="utf-8") as file:
            file.write(run)
        self._progress.run_started(run, pipeline, target, steps)
