"""The log of an attempt: what the step's processes print, as bytes, in order."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from upshift.worker.frames import Frames
from upshift.worker.loop import Loop, Timer
from upshift.worker.masking import Mask, Masking

CHUNK = 1 << 16
QUIET = 0.02
"""Seconds between two notices that the log has grown."""
FRAME = 0.25
"""Seconds between two frames of a progress bar that are kept while it moves."""


class Log:
    """Copies a pipe to a file, and says so. Of progress bars only some frames are kept, and the last one.

    Secrets are masked before anything else is done with what was printed.

    The file is only there if something was printed. When it cannot be written (the disk is full),
    the step goes on and the rest of its output is lost; ``problem`` says why.
    """

    def __init__(
        self,
        loop: Loop,
        pipe: int,
        path: Path,
        grew: Callable[[int], None],
        *,
        mask: Mask | None = None,
    ) -> None:
        self.size = 0
        self.problem: str | None = None
        self._loop = loop
        self._pipe = pipe
        self._path = path
        self._grew = grew
        self._file: int | None = None
        self._notice: Timer | None = None
        self._masking = Masking(mask) if mask is not None else None
        self._frames = Frames()
        self._whole = True
        self._frame: Timer | None = None
        os.set_blocking(pipe, False)
        loop.watch(pipe, self._copy)
        self._open = True

    def close(self) -> None:
        """Copy what is left in the pipe, and let go of both ends."""
        while self._open and self._read():
            continue
        self._stop()
        if self._masking is not None:
            self._take(self._masking.end())
        self._write(self._frames.end())
        for timer in (self._notice, self._frame):
            if timer is not None:
                timer.cancel()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remark(self, line: str) -> None:
        """Add a line of Upshift's own."""
        self._take(f"upshift: {line}\n".encode() if self._whole else f"\nupshift: {line}\n".encode())

    def _copy(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Copy what one read gives; False if that was nothing."""
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._stop()
            return False
        self._take(data if self._masking is None else self._masking.feed(data))
        return True

    def _take(self, data: bytes) -> None:
        self._whole = data.endswith(b"\n") if data else self._whole
        self._write(self._frames.feed(data))
        if self._frame is None and self._frames.unsettled:
            self._write(self._frames.frame())
            self._frame = self._loop.after(FRAME, self._settle)

    def _settle(self) -> None:
        self._frame = None
        self._write(self._frames.settle() + self._frames.frame())
        if self._frames.unsettled:
            self._frame = self._loop.after(FRAME, self._settle)

    def _tell(self) -> None:
        self._notice = None
        self._grew(self.size)

    def _write(self, data: bytes) -> None:
        if self.problem is not None or not data:
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            while data:
                written = os.write(self._file, data)
                self.size += written
                data = data[written:]
        except OSError as error:
            self.problem = f"the log ends here: {os.strerror(error.errno or errno.EIO)}"
        if self._notice is None:
            self._grew(self.size)
            self._notice = self._loop.after(QUIET, self._tell)

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._loop.forget(self._pipe)
