"""What tasks print, line by line, while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from upshift.store.log_text import ROW, last_frames

_BLOCK = 1 << 16
_LONGEST = 1 << 20
"""A line is passed on in pieces of this many bytes, so that one without an end does not fill memory."""

_SHOWN = 1 << 12
"""Bytes of a line without an end that are shown."""


class LogReader:
    """Reads the log of an attempt from where it stopped the last time; of each line the last frame.

    Parameters
    ----------
    path
        The log. It may not be there yet.
    skip
        Whether what is there already has been shown.
    """

    __slots__ = ("_offset", "_path", "_rest")

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if skip and path.exists() else 0
        self._rest = b""

    def read(self, show: Callable[[str], None], *, size: int | None = None, end: bool = False) -> None:
        """Show the whole lines that are new, a block at a time.

        Parameters
        ----------
        show
            Takes text: whole lines, bytes that are not UTF-8 replaced.
        size
            How long the log is known to be, in bytes; nothing is read if no more than before.
        end
            Whether nothing will be added any more: what has no line end is shown as well.
        """
        if size is None or size > self._offset:
            self._read_blocks(show)
        if end and self._rest:
            if self._rest.strip():  # a bar that was wiped out leaves blanks
                show(_text(self._rest) + "\n")
            self._rest = b""

    @property
    def unfinished(self) -> str:
        """The line that has no end yet, as it stands; several, where several are drawn at once."""
        return _text(self._rest[-_SHOWN:].strip().replace(ROW, b"\n"))

    def _read_blocks(self, show: Callable[[str], None]) -> None:
        try:
            file = open(self._path, "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:  # it has printed nothing
            return
        with file:
            file.seek(self._offset)
            while block := file.read(_BLOCK):
                self._offset += len(block)
                whole, newline, rest = block.rpartition(b"\n")
                if newline:
                    show(_text(last_frames(self._rest + whole + newline)))
                    self._rest = b""
                self._rest = last_frames(self._rest + rest)
                if len(self._rest) > _LONGEST:
                    show(_text(self._rest) + "\n")
                    self._rest = b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
