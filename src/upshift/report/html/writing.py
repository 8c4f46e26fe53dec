"""The report as a file: written at once, and while the run goes on again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from upshift.errors import UsageError
from upshift.report.html.page import report_page
from upshift.runs.history.runs import Run
from upshift.runtime.storage.files import replacing

_UNFINISHED = ("pending", "running")
EVERY = 2.0
"""Seconds between two times that the report of a run that goes on is written."""


def write_page(path: Path, page: str) -> None:
    """Put a page in its place; whoever reads the file meanwhile has the one before, whole."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", fix=f"Name a file: -o {path / 'report.html'}.")
    try:
        with replacing(path) as draft:
            draft.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {path}", why=error.strerror, fix="Name another file with -o."
        ) from None


def write_until_over(
    path: Path,
    look: Callable[[], tuple[Run, Sequence[Run]]],
    wait: Callable[[float], object],
    *,
    written: Callable[[], object] = lambda: None,
    every: float = EVERY,
) -> Run:
    """Write the report of a run until the run is over; the page loads itself again as often.

    Whatever ends this, the page that is left does not go on loading itself.
    """
    run, others = look()
    try:
        write_page(path, report_page(run, others, every=every))
        written()
        while run.status in _UNFINISHED:
            wait(every)
            run, others = look()
            write_page(path, report_page(run, others, every=every))
    finally:
        if run.status in _UNFINISHED:
            write_page(path, report_page(run, others))
    return run
