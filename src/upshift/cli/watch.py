"""Showing a run while it goes on, and stopping it in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from upshift.report.display import make_progress
from upshift.report.progress import Progress


@contextmanager
def shown(*, live: bool = True, run_id_file: str | None = None) -> Iterator[Progress]:
    """A progress for one run, whose id it notes in a file; whatever happens, the terminal is left in order.

    SIGTERM, which a CI or a container sends before it kills, counts as Ctrl-C meanwhile.
    """
    progress = make_progress(live=live)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield progress if run_id_file is None else cast(Progress, _Noting(progress, run_id_file))
    finally:
        signal.signal(signal.SIGTERM, before)
        progress.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


class _Noting:
    """A progress that writes the id of the run into a file as soon as there is one."""

    def __init__(self, progress: Progress, file: str) -> None:
        self._progress = progress
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)

    def run_started(self, run: str, pipeline: str, target: str, steps: list[str]) -> None:
        with open(self._file, "w", encoding="utf-8") as file:
            file.write(run)
        self._progress.run_started(run, pipeline, target, steps)
