"""What of an attempt could not be written down, because its files cannot grow: the disk is full, say."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from upshift.model.spec import Gap


class Losses:
    """What all files of an attempt lack. The step goes on; the first loss of each kind is told at once."""

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
            self._tell(f"{loss.gap().name} cannot be written: {loss.why} ({loss.path}); the step goes on")


class Loss:
    """What is lost of one file."""

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
