"""Showing a run while it goes on, and stopping it in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from upshift.report.progress import Progress
from upshift.report.terminal.display import make_progress


@contextmanager
def shown(*, live: bool = True) -> Iterator[Progress]:
    """A progress for one run; whatever happens, the terminal is left in order.

    SIGTERM, which a CI or a container sends before it kills, counts as Ctrl-C meanwhile.
    """
    progress = make_progress(live=live)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield progress
    finally:
        signal.signal(signal.SIGTERM, before)
        progress.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
