"""The files of an attempt: its usage over time, and the end of its log."""

from __future__ import annotations

import contextlib
import re

import attrs

from upshift.errors import StoreError
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run
from upshift.runtime.storage.series import Series, read_series
from upshift.runtime.storage.store import open_store
from upshift.runtime.supervisor.output.frames import last_frames

TAIL = 16_384
"""Bytes of the end of a log."""
_COLOURS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@attrs.frozen(kw_only=True)
class Log:
    """The end of what somebody printed; ``more``: that is not all of it."""

    text: str = ""
    more: bool = False

    def last(self, lines: int) -> Log:
        """The last lines of the log, at most this many."""
        found = self.text.splitlines()
        return self if len(found) <= lines else Log(text="\n".join(found[-lines:]), more=True)


class Evidence:
    """The files of a run's attempts, also of earlier runs in its store. What cannot be read is empty."""

    def __init__(self, run: Run) -> None:
        self._store = open_store(run.row.store)
        self._read: tuple[Attempt | None, int, Series | None] = None, 0, None

    def series(self, attempt: Attempt, node: int = 0) -> Series | None:
        """The usage of an attempt over time, on one node."""
        known, number, _ = self._read
        if known is not attempt or number != node:  # else it has just been read for another part of the view
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

    def log(self, attempt: Attempt, rank: int | None = None, *, most: int = TAIL) -> Log:
        """The end of its log, or of one of its ranks', without colours."""
        path = self._store.log_path(attempt.row.task, attempt.number)
        if rank is not None:
            path = self._store.rank_log_path(attempt.row.task, attempt.number, rank)
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - most))
                content = file.read(most)
        except OSError:
            return Log()
        if size > most:
            content = content.partition(b"\n")[2] or content
        text = last_frames(content).decode("utf-8", "replace")
        return Log(text=_COLOURS.sub("", text).replace("\x1f", "\n").rstrip("\n"), more=size > most)
