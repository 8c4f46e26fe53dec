"""Logs of several tasks on one stream, line by line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TextIO

from upshift.report.streams import label

_LONGEST = 1 << 20
"""Bytes of a line without end after which it is printed as it is."""


class Merged:
    """Writes the bytes of logs to a stream, as they are.

    Parameters
    ----------
    stream
        Where to write.
    named
        Whether each line begins with the name of its task.
    """

    def __init__(self, stream: TextIO, *, named: bool) -> None:
        self._stream = stream
        self._named = named
        self._screen = stream.isatty()
        self._rests: dict[Path, bytes] = {}
        self._positions: dict[Path, int] = {}

    def copy(self, name: str, path: Path) -> None:
        """Write a whole log."""
        if self._named:
            self.grow(name, path)
            self.finish(name, path)
            return
        self._stream.flush()
        with open(path, "rb") as log:
            shutil.copyfileobj(log, self._stream.buffer)
        self._stream.buffer.flush()

    def grow(self, name: str, path: Path) -> bool:
        """Write the lines that the log has got since the last call; False: there are none."""
        grown = False
        with open(path, "rb") as log:
            log.seek(self._positions.get(path, 0))
            while chunk := log.read(_LONGEST):
                grown = True
                self._positions[path] = log.tell()
                whole, end, rest = (self._rests.pop(path, b"") + chunk).rpartition(b"\n")
                if len(rest) > _LONGEST:
                    whole, end, rest = whole + end + rest, b"\n", b""
                self._rests[path] = rest
                if end:
                    self._write(name, whole)
        return grown

    def finish(self, name: str, path: Path) -> None:
        """Write what is left of a log that does not end with a line feed."""
        if rest := self._rests.pop(path, b""):
            self._write(name, rest)

    def _write(self, name: str, lines: bytes) -> None:
        prefix = label(name, screen=self._screen).encode() if self._named else b""
        self._stream.flush()
        self._stream.buffer.write(b"".join(prefix + line + b"\n" for line in lines.split(b"\n")))
        self._stream.buffer.flush()
