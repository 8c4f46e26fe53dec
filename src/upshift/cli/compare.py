"""``upshift compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from upshift.cli import shared_options as shared
from upshift.cli.output import echo
from upshift.model.checks import MOST_RUNS

if TYPE_CHECKING:
    from upshift.runs.history.runs import Run


@click.command()
@click.argument("runs", metavar="[RUN]…", nargs=-1)
@click.option(
    "--last",
    metavar="N",
    type=click.IntRange(min=1, max=MOST_RUNS),
    help="Also the newest N runs, oldest first.",
)
@click.option("--pipeline", metavar="NAME", help="With --last: only runs of this pipeline.")
@click.option("--tag", metavar="TAG", help="With --last: only runs with this tag.")
@shared.metrics("Show this metric, and sort by the first one. Default: all metrics.")
@shared.sort("a parameter", "Default: by the first metric whose name tells what is best.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def compare(
    runs: tuple[str, ...],
    last: int | None,
    pipeline: str | None,
    tag: str | None,
    metrics: tuple[str, ...],
    sort: str | None,
    as_json: bool,
) -> None:
    """Compare runs: parameters that differ, times, metrics.

    Two runs are shown side by side. More are rows of one table.
    """
    found = _found(runs, last, pipeline, tag)
    from upshift.report.terminal.compare import compared, compared_json

    if as_json:
        import json

        echo(json.dumps(compared_json(found), indent=2))
        return
    from upshift.report.terminal.layout import Page

    echo(compared(found, Page.of_stdout(), sort=sort, metrics=metrics))


def _found(runs: tuple[str, ...], last: int | None, pipeline: str | None, tag: str | None) -> list[Run[Any]]:
    from upshift.errors import UsageError
    from upshift.runs.history.runs import get_run, list_runs

    for option, value in (("--pipeline", pipeline), ("--tag", tag)):
        if value is not None and last is None:
            raise UsageError(f"{option} says of which runs --last takes the newest", fix="Add --last N.")
    found = [get_run(run) for run in runs]
    if last is not None:
        found += reversed(list_runs(pipeline=pipeline, tag=tag, limit=last))
    if len(found) < 2:
        there = "one run" if found else "no run"
        raise UsageError(
            f"there is {there} to compare",
            fix="Name two or more, or compare the newest: upshift compare --last 2.",
        )
    return found
