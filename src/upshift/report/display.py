"""Chooses how a run is shown: live on a terminal, in a notebook, or as plain lines: :func:`make_progress`."""

from __future__ import annotations

import os
import sys
from typing import Protocol, TextIO

from upshift.report import Progress
from upshift.report.terminal import shows
from upshift.report.terminal.progress import PlainProgress

_DRAWN = "│━✓✗▶·…↺■↷"


class ClosableProgress(Progress, Protocol):
    """A progress that may have a terminal to put in order."""

    def close(self) -> None:
        """Show nothing more. Needed where the run ended without telling; harmless otherwise."""


def make_progress(stream: TextIO | None = None, *, live: bool = True) -> ClosableProgress:
    """A progress for one run: live on a terminal, a block of HTML in a notebook, plain lines elsewhere.

    What steps print goes to stdout, line by line; all else to ``stream``.
    """
    if live and stream is None and _in_notebook():
        from upshift.report.notebook import NotebookProgress, in_this_cell

        return NotebookProgress(in_this_cell(), sys.stdout)
    stream = sys.stderr if stream is None else stream
    if not live or not _is_screen(stream):
        return PlainProgress(stream, sys.stdout)
    from upshift.report.terminal.live import LiveProgress

    return LiveProgress(stream, sys.stdout)


def _in_notebook() -> bool:
    """Whether this is a kernel of Jupyter's. Where IPython is not loaded it is not asked for."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _is_screen(stream: TextIO) -> bool:
    return (
        stream.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and not os.environ.get("CI")
        and shows(stream, _DRAWN)
    )
