"""A terminal that remembers what stands on it: enough of one to see what a user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b.|[\r\n]|[^\x1b\r\n]+", re.DOTALL)


class Screen:
    """What stands on a terminal of this width, scrolled-off lines included.

    Understands line feed, carriage return, cursor-up-to-start (``F``), erase (``J``, ``K``) and
    colours; anything else fails the test.
    """

    def __init__(self, width: int = 100) -> None:
        self.width = width
        self.rows = [""]
        self.row = 0
        self.column = 0

    def feed(self, text: str) -> None:
        """What was written to the terminal."""
        for match in _SEQUENCE.finditer(text):
            piece = match[0]
            if piece == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [""] * (self.row + 1 - len(self.rows))
            elif piece == "\r":
                self.column = 0
            elif piece.startswith("\x1b"):
                self._control(match[1], match[2], piece)
            else:
                line = self.rows[self.row]
                self.rows[self.row] = (
                    line[: self.column].ljust(self.column) + piece + line[self.column + len(piece) :]
                )
                self.column += len(piece)
                assert self.column <= self.width, f"wraps: {self.rows[self.row]!r}"

    def _control(self, number: str | None, kind: str | None, piece: str) -> None:
        if kind == "F":
            self.row, self.column = self.row - int(number or 1), 0
            assert self.row >= 0, "the cursor left the top"
        elif kind == "J":
            self.rows[self.row] = self.rows[self.row][: self.column]
            del self.rows[self.row + 1 :]
        elif kind == "K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        else:
            assert kind == "m", f"not understood: {piece!r}"

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line.rstrip() for line in self.rows).rstrip("\n")


def on_terminal(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    width: int = 100,
    height: int = 30,
    stdout: int | None = None,
    cwd: Path | None = None,
    watch: Callable[[bytes], object] | None = None,
) -> tuple[int, str]:
    """Run a command on a terminal of its own.

    Parameters
    ----------
    command, env
        What to run, and its environment.
    width, height
        Of the terminal.
    stdout
        A descriptor for its stdout; None: the terminal, as for stderr.
    cwd
        Its working folder.
    watch
        Called with everything that was written so far, whenever that is more.

    Returns
    -------
    tuple of int and str
        The exit code, and everything that was written to the terminal.
    """
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env=dict(env),
            cwd=cwd,
        )
    finally:
        os.close(theirs)
    written = bytearray()
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
            if watch is not None:
                watch(bytes(written))
    except OSError:  # EIO: nobody has the other end any more
        pass
    finally:
        os.close(ours)
    return process.wait(), written.decode(errors="replace").replace("\r\n", "\n")
