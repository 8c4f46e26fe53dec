"""``upshift report``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.runs.history.runs import Run


@click.command()
@click.argument("runs", metavar="RUN [RUN…]", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True),
    help="Where to write it; '-' is stdout. Default: upshift-report-RUN.html in this folder.",
)  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.option("-f", "--follow", is_flag=True, help="Write it again every two seconds until the run is over.")
def report(runs: Sequence[str], output: Path | None, opens: bool, follow: bool) -> None:
    """Write a report of a run: one HTML file that works offline.

    Graph, timeline, the four records of every attempt, charts of CPU, memory, GPUs and metrics, cards,
    failures and logs. With more runs, their metrics are drawn over those of the first.
    """
    import threading

    from upshift.report.html.page import report_page
    from upshift.report.html.writing import write_page, write_until_over
    from upshift.runs.history.runs import get_run

    def look() -> tuple[Run, Sequence[Run]]:
        run, *others = (get_run(ref) for ref in names)
        return run, others

    found = [get_run(ref) for ref in runs]
    names = [run.id for run in found]  # 'latest' may be another one soon
    if output == Path("-"):
        if opens or follow:
            raise click.UsageError("--open and --follow need a file, and -o - is stdout.")
        echo(report_page(found[0], found[1:]), nl=False)
        return
    path = output or Path(f"upshift-report-{names[0]}.html")
    if follow:
        written = functools.partial(_tell, path, opens)
        write_until_over(path, look, threading.Event().wait, written=written)
        return
    write_page(path, report_page(found[0], found[1:]))
    _tell(path, opens)
    if found[0].status in ("pending", "running"):
        echo("The run goes on: --follow writes the report until it is over.", err=True)


def _tell(path: Path, opens: bool) -> None:
    """Say where the report is, and open it."""
    import webbrowser

    echo(path)
    if not opens:
        return
    if not webbrowser.open(path.absolute().as_uri()):
        echo(f"No browser could be started; open {path.absolute()} yourself.", err=True)
