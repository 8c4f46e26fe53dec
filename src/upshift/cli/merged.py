"""Logs of several tasks on one stream, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from upshift.report.terminal.streams import cleaned, label
from upshift.runtime.storage.log_text import last_frames

_LONGEST = 1 << 20
"""Bytes of a line without end after which it is printed as it is."""


class Merged:
    """Writes the bytes of logs to a stream; of lines that were drawn again and again the last frame.

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
        """Write a whole log; whether it ends with a line feed is as it is, unless lines have names."""
        self.grow(name, path)
        self.finish(name, path, newline=self._named)

    def grow(self, name: str, path: Path) -> bool:
        """Write the lines that the log has got since the last call; False: there are none."""
        grown = False
        with open(path, "rb") as log:
            log.seek(self._positions.get(path, 0))
            while chunk := log.read(_LONGEST):
                grown = True
                self._positions[path] = log.tell()
                whole, end, rest = (self._rests.pop(path, b"") + chunk).rpartition(b"\n")
                rest = last_frames(rest)
                if len(rest) > _LONGEST:
                    whole, end, rest = whole + end + rest, b"\n", b""
                self._rests[path] = rest
                if end:
                    self._write(name, last_frames(whole), end)
        return grown

    def finish(self, name: str, path: Path, *, newline: bool = True) -> None:
        """Write what is left of a log that does not end with a line feed."""
        rest = self._rests.pop(path, b"")
        if rest.strip():  # a bar that was wiped out leaves blanks
            self._write(name, rest, b"\n" if newline else b"")

    def _write(self, name: str, lines: bytes, end: bytes) -> None:
        if self._named:
            prefix = label(name, screen=self._screen).encode()
            lines = b"\n".join([prefix + line for line in lines.split(b"\n")])
        if self._screen:  # bytes that are no UTF-8 stay as they are
            lines = cleaned(lines.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        self._stream.flush()
        self._stream.buffer.write(lines + end)
        self._stream.buffer.flush()
