"""Time, and waiting for events, as the engine sees them; tests give it a clock that jumps."""

from __future__ import annotations

import math
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

    def __init__(self) -> None:
        self._ahead = -math.inf

    def now(self) -> float:
        """Seconds since the epoch; never less than before, also where the machine's clock is set back."""
        monotonic = time.monotonic()
        self._ahead = max(self._ahead, time.time() - monotonic)
        return monotonic + self._ahead

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
