"""What is read of an attempt beside its records: its usage over time, the end of its log."""

from __future__ import annotations

import contextlib
import re

from upshift.errors import StoreError
from upshift.runs.history import Attempt, Run
from upshift.runtime.storage.log_text import last_frames
from upshift.runtime.storage.series import Series, read_series
from upshift.runtime.storage.store import open_store

TAIL = 16_384
"""Bytes of the end of a log."""
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


class Evidence:
    """The files of a run's attempts. What is not there, or cannot be read, is empty.

    Parameters
    ----------
    run
        The run whose store they are in; attempts of earlier runs in that store are found as well.
    """

    def __init__(self, run: Run) -> None:
        self._store = open_store(run.row.store)
        self._read: tuple[Attempt | None, int, Series | None] = None, 0, None

    def series(self, attempt: Attempt, node: int = 0) -> Series | None:
        """Its usage of a node over time."""
        known, number, _ = self._read
        if known is not attempt or number != node:  # else it has just been read for another part of the page
            self._read = attempt, node, None
            with contextlib.suppress(OSError):
                path = self._store.series_path(attempt.row.task, attempt.number, node)
                self._read = attempt, node, read_series(path)
        return self._read[2]

    def content(self, digest: str, size: int | None = None) -> bytes | None:
        """A blob; None: it is not there, or damaged."""
        with contextlib.suppress(StoreError):
            return bytes(self._store.read(digest, size))
        return None

    def tail(self, attempt: Attempt, rank: int | None = None) -> tuple[str, bool]:
        """The end of its log, or of one of its ranks', without colours, and whether that is not all of it."""
        path = self._store.log_path(attempt.row.task, attempt.number)
        if rank is not None:
            path = self._store.rank_log_path(attempt.row.task, attempt.number, rank)
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - TAIL))
                content = file.read(TAIL)
        except OSError:
            return "", False
        more = size > TAIL
        if more:
            content = content.partition(b"\n")[2] or content
        text = last_frames(content).decode("utf-8", "replace")
        return _COLOURS.sub("", text).replace("\x1f", "\n").rstrip("\n"), more
