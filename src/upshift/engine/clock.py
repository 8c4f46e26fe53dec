"""Time, and waiting for events, as the engine sees them; tests give it a clock that jumps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from heapq import heappop, heappush
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
    """The clock of the machine."""

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


class Timers:
    """What is to be done later, the soonest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Call ``what`` after this many seconds."""
        self._count += 1
        heappush(self._waiting, (self._clock.monotonic() + seconds, self._count, what))

    @property
    def next(self) -> float | None:
        """When the first is due, in monotonic seconds; None: there is none."""
        return self._waiting[0][0] if self._waiting else None

    def ring(self) -> None:
        """Call what is due."""
        while self._waiting and self._waiting[0][0] <= self._clock.monotonic():
            heappop(self._waiting)[2]()

    def clear(self) -> None:
        """Drop everything that waits."""
        self._waiting.clear()
