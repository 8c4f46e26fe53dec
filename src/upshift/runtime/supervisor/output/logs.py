"""The logs of an attempt: what the step's processes print, as bytes, in order.

One process has one log. Several have one each, and their whole lines, by rank, in the log of the attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from upshift.model.settings.sizes import format_size
from upshift.model.spec import Code, Rank, TaskSpec
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.masking import Mask, Masking
from upshift.runtime.storage import unpacking
from upshift.runtime.storage.files import hand_on
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.output.frames import ProgressBars, last_frames
from upshift.runtime.supervisor.output.losses import Loss, Losses
from upshift.runtime.usercode.tracebacks import Places

QUIET = 0.02
"""Seconds between two notices that the log has grown."""
FRAME = 0.25
"""Seconds between two frames of a progress bar that are kept while it moves."""
LONGEST_LINE = 1 << 20
"""Bytes of a line of one of several processes, at most: what is longer is broken there."""


class LogFile:
    """A file that grows at its end, and says so.

    It is only there if something was written. When it cannot be written (the disk is full), the step goes
    on. What it prints then is lost, until there is room again: a line in the file says how much.
    """

    def __init__(self, loop: Loop, path: Path, grew: Callable[[int], None], loss: Loss) -> None:
        self.size = 0
        self._sent = 0
        self._loop = loop
        self._path = path
        self._grew = grew  # told the size, at most every QUIET seconds
        self._loss = loss
        self._last = b"\n"
        self._file: int | None = None
        self._notice: Timer | None = None

    def append(self, data: bytes) -> None:
        """Write this at the end."""
        if not data:
            return
        self._write(data)
        if self._notice is None:
            self._grew(self.size)
            self._notice = self._loop.after(QUIET, self._tell)

    def close(self) -> None:
        """Nothing more comes."""
        if self._notice is not None:
            self._notice.cancel()
        if self._loss.missing:
            self._write(b"")
        if self._file is not None:
            try:
                os.close(self._file)
            except OSError as error:  # what an NFS client could not send
                self._loss.add(self.size - self._sent, error)
            self._file = None

    def hand_on(self) -> None:
        """Have other machines see what was written."""
        if self._file is None or self._sent == self.size:
            return
        try:
            hand_on(self._file)
        except OSError as error:
            self._loss.add(self.size - self._sent, error)
        self._sent = self.size

    def _write(self, data: bytes) -> None:
        rest = self._mark() + data
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            while rest:
                written = os.write(self._file, rest)
                self.size += written
                self._last, rest = rest[written - 1 : written], rest[written:]
        except OSError as error:
            self._loss.add(min(len(data), len(rest)), error)
        else:
            self._loss.over()

    def _mark(self) -> bytes:
        """What is to be read where something is missing."""
        if not self._loss.missing:
            return b""
        begun = b"" if self._last == b"\n" else b"\n"
        size = format_size(self._loss.missing)
        return begun + f"upshift: {size} of output are missing here: {self._loss.why}\n".encode()

    def _tell(self) -> None:
        self._notice = None
        self._grew(self.size)


class Log:
    """What one process prints, on its way to files. Of progress bars only some frames are kept, and the last.

    Secrets are masked before anything else is done with what was printed. Code that came as a package is
    named by its place in the project.
    """

    def __init__(
        self,
        loop: Loop,
        *sinks: Callable[[bytes], None],
        mask: Mask | None = None,
        code: Code | None = None,
    ) -> None:
        self._loop = loop
        self._sinks = sinks
        self._mask = mask
        self._passes: list[Masking | Places] = [Masking(mask)] if mask is not None else []
        if code is not None and code.package is not None:
            self._passes.append(Places(code, unpacking.place()))
        self._frames = ProgressBars()
        self._whole = True
        self._frame: Timer | None = None

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        for one in self._passes:
            data = one.feed(data)
        self._take(data)

    def remark(self, line: str) -> None:
        """Add a line of Upshift's own. It may have words of the step's in it."""
        line = line if self._mask is None else self._mask.text(line)
        self._take(f"upshift: {line}\n".encode() if self._whole else f"\nupshift: {line}\n".encode())

    def close(self) -> None:
        """Nothing more comes: let go of what was held back, once."""
        data = b""
        for one in self._passes:
            data = one.feed(data) + one.end()
        self._passes = []
        self._take(data)
        self._write(self._frames.end())
        if self._frame is not None:
            self._frame.cancel()

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

    def _write(self, data: bytes) -> None:
        if data:
            for sink in self._sinks:
                sink(data)


class RankLines:
    """Whole lines of one of several processes, each with the prefix that tells whose it is.

    Of a line that is drawn again and again only what it says in the end goes on.
    """

    def __init__(self, rank: int, sink: Callable[[bytes], None]) -> None:
        self._prefix = f"[rank {rank}] ".encode()
        self._sink = sink
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what goes to the log of that process."""
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if not end and len(self._rest) < LONGEST_LINE:
            return
        whole, self._rest = (self._rest[:end], self._rest[end:]) if end else (self._rest, bytearray())
        self._write(bytes(whole))

    def close(self) -> None:
        """Nothing more comes: a line that has not ended ends here."""
        if self._rest:
            self._write(bytes(self._rest))
            self._rest.clear()

    def _write(self, lines: bytes) -> None:
        text = last_frames(lines.removesuffix(b"\n"))
        self._sink(self._prefix + text.replace(b"\n", b"\n" + self._prefix) + b"\n")


class TaskLog:
    """The log of an attempt. Each of several processes has one of its own beside it."""

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        *,
        grew: Callable[[int], None],
        losses: Losses,
        mask: Mask | None,
    ) -> None:
        self.path = store.log_path(spec.task, spec.attempt)
        self._loop = loop
        self._spec = spec
        self._store = store
        self._mask = mask
        self._grew = grew
        self._losses = losses
        self._file = LogFile(loop, self.path, grew, losses.of("log", self.path))
        self._files = [self._file]
        self._lines: list[RankLines] = []
        self._own = Log(loop, self._file.append, mask=mask, code=spec.code)

    @property
    def size(self) -> int:
        """Bytes of the attempt's log."""
        return self._file.size

    def of(self, rank: Rank | None) -> Log:
        """What takes the output of a process; None: the only one."""
        if rank is None:
            return self._own
        path = self._store.rank_log_path(self._spec.task, self._spec.attempt, rank.rank)
        # What the first one draws is shown while it does so, though no whole line has come of it yet.
        drawn = self._drawn if rank.rank == 0 else lambda size: None
        file = LogFile(self._loop, path, drawn, self._losses.of("log", path, rank.rank))
        lines = RankLines(rank.rank, self._file.append)
        self._files.append(file)
        self._lines.append(lines)
        return Log(self._loop, file.append, lines.feed, mask=self._mask, code=self._spec.code)

    def _drawn(self, size: int) -> None:
        self._grew(self._file.size)

    def remark(self, line: str) -> None:
        """Add a line of Upshift's own."""
        self._own.remark(line)

    def hand_on(self) -> None:
        """Have other machines see what was written."""
        for file in self._files:
            file.hand_on()

    def settle(self) -> None:
        """Nothing more comes of the processes: a line of one of several that has not ended ends here."""
        for lines in self._lines:
            lines.close()

    def close(self) -> None:
        """Nothing more comes, and nothing is remarked."""
        self._own.close()
        for file in self._files:
            file.close()
