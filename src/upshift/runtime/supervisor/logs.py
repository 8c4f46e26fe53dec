"""The logs of an attempt: what the step's processes print, as bytes, in order.

One process has one log. Several have one each, and their whole lines, by rank, in the log of the attempt.
What a file of the attempt lacks, because the disk was full, say, is counted as a loss (:class:`Losses`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from upshift.model.settings.sizes import format_size
from upshift.model.spec import Code, Gap, Rank, TaskSpec
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.masking import Mask, Masking
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.files import hand_on
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.progress_bars import ProgressBars, last_frames
from upshift.runtime.tracebacks import Places

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
        """Flush what was written, so that other machines see it."""
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
        """The line that marks where output is missing."""
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
            self._passes.append(Places(code, home_folders.code_place()))
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
        """Flush what was written, so that other machines see it."""
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


class Losses:
    """The losses in all files of an attempt, which continues. The first loss of each kind is told at once."""

    def __init__(self, origin: float, tell: Callable[[str], None]) -> None:
        self._origin = origin
        self._tell = tell
        self._known: list[Loss] = []

    def of(self, what: str, path: Path, rank: int | None = None) -> Loss:
        """What is lost of a file: nothing yet. Parameters as of :class:`~upshift.model.spec.Gap`."""
        loss = Loss(what, path, rank, losses=self)
        self._known.append(loss)
        return loss

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What is missing up to now."""
        return tuple(loss.gap() for loss in self._known if loss.why)

    def elapsed(self) -> float:
        """Seconds since the attempt started."""
        return round(time.monotonic() - self._origin, 3)

    def first(self, loss: Loss) -> None:
        """A file cannot be written."""
        if not any(one.why for one in self._known if one is not loss and one.what == loss.what):
            self._tell(f"{loss.gap().name} cannot be written: {loss.why} ({loss.path}); the step continues")


class Loss:
    """The bytes that one file lacks."""

    def __init__(self, what: str, path: Path, rank: int | None, *, losses: Losses) -> None:
        self.what = what
        self.path = path
        self.missing = 0  # bytes that should stand after what was written last
        self.why: str | None = None  # why something was lost first
        self._rank = rank
        self._losses = losses
        self._before = 0  # bytes of gaps after which it went on
        self._since = 0.0
        self._until: float | None = None

    def add(self, count: int, error: OSError) -> None:
        """Count bytes that could not be written."""
        self.missing += count
        if self.why is None:
            self.why, self._since = os.strerror(error.errno or errno.EIO), self._losses.elapsed()
            self._losses.first(self)

    def over(self) -> None:
        """The file can be written again, and says so itself where it is one for people."""
        if self.missing:
            self._before, self.missing = self._before + self.missing, 0
            self._until = self._losses.elapsed()

    def gap(self) -> Gap:
        """What is missing of the file."""
        return Gap(
            what=self.what,
            path=str(self.path),
            rank=self._rank,
            bytes=self._before + self.missing,
            since=self._since,
            until=None if self.missing else self._until,
            why=self.why or "",
        )
