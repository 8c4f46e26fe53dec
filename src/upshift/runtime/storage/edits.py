"""Source files as they were when a step's code was looked at, and whether they are that still.

What a step reaches is looked at once, when the pipeline is composed. A task that imports a module later,
or starts a process that does, may meet another version of it: its result must not stand for the first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from upshift.runtime.storage.digest import digest_of

RECORD = "sources.json"
"""The record of a run with the stamps of its source files."""

Stamp = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, digest of the content."""


class Sources:
    """The source files of one run, looked at again and again."""

    def __init__(self, stamps: Mapping[str, Stamp]) -> None:
        self._stamps = dict(stamps)
        self._edited: dict[str, None] = {}

    def edited(self) -> tuple[str, ...]:
        """The files that have, or had meanwhile, another content than at first."""
        for file in list(self._stamps):
            size, time, digest = self._stamps[file]
            try:
                status = os.stat(file)
                if (status.st_size, status.st_mtime_ns) == (size, time):
                    continue
                with open(file, "rb") as stream:
                    same = digest_of(stream.read()) == digest
            except OSError:
                same = False
            if same:
                self._stamps[file] = (status.st_size, status.st_mtime_ns, digest)
            else:
                del self._stamps[file]
                self._edited[file] = None
        return tuple(self._edited)
