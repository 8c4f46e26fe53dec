"""Time, and waiting for events, as the engine sees them; tests give it a clock that jumps."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from typing import Any, Protocol


class Clock(Protocol):
    """What the engine knows of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""

    def wait(self, inbox: SimpleQueue[Any], deadline: float | None) -> Any | None:
        """The next thing in ``inbox``; None: ``deadline``, in monotonic seconds, came first."""


class SystemClock:
    """The real one."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        return time.monotonic()

    def wait(self, inbox: SimpleQueue[Any], deadline: float | None) -> Any | None:
        """The next thing in ``inbox``; None: ``deadline``, in monotonic seconds, came first."""
        try:
            if deadline is None:
                return inbox.get()
            return inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None
