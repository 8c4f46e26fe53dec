"""The event loop of a supervisor: descriptors that become readable, and times that come."""

from __future__ import annotations

import contextlib
import copy
import heapq
import itertools
import os
import selectors
import time
from collections.abc import Callable

Callback = Callable[[], None]
Failed = Callable[[Exception], None]

LONGEST_WAIT = 86_400.0
"""Seconds; the system takes no wait of more than 24 days."""


class Timer:
    """A call that is due at some time; :meth:`cancel` takes it back."""

    __slots__ = ("call",)

    def __init__(self, call: Callback) -> None:
        self.call: Callback | None = call

    def cancel(self) -> None:
        self.call = None


class _Pace:
    """When the calls of a turn began; None: it waits."""

    since: float | None = None


class Loop:
    """Single-threaded. Nothing is done but in answer to an event."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._failed: Failed | None = None
        self._pace = _Pace()

    @property
    def held_up(self) -> float:
        """Seconds that what is done in this turn has taken up to now; 0 while it waits. For other threads."""
        since = self._pace.since
        return 0.0 if since is None else time.monotonic() - since

    def confined(self, failed: Failed) -> Loop:
        """This loop for one of many who use it: what its calls raise goes to ``failed``, and on it goes."""
        part = copy.copy(self)  # what is watched, and when calls are due, is the same for all
        part._failed = failed
        return part

    def watch(self, descriptor: int, call: Callback) -> None:
        """Call whenever the descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, self._confined(call))

    def watch_writable(self, descriptor: int, call: Callback) -> None:
        """Call whenever the descriptor can be written."""
        self._selector.register(descriptor, selectors.EVENT_WRITE, self._confined(call))

    def forget(self, descriptor: int) -> None:
        """Watch the descriptor no more, and close it."""
        self.unwatch(descriptor)
        os.close(descriptor)

    def unwatch(self, descriptor: int) -> None:
        """Watch the descriptor no more, and leave it open."""
        self._selector.unregister(descriptor)

    def after(self, seconds: float, call: Callback) -> Timer:
        """Call once, after this many seconds."""
        timer = Timer(self._confined(call))
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), timer))
        return timer

    def turn(self) -> None:
        """Wait for what comes next, and do it."""
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        wait = None
        if self._timers:
            wait = min(max(0.0, self._timers[0][0] - time.monotonic()), LONGEST_WAIT)
        self._pace.since = None
        come = self._selector.select(wait)
        self._pace.since = time.monotonic()
        for key, _ in come:
            # An earlier callback of this very turn may have stopped watching this one.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()

    def _confined(self, call: Callback) -> Callback:
        failed = self._failed
        if failed is None:
            return call

        def confined() -> None:
            try:
                call()
            except Exception as error:
                failed(error)

        return confined

    def abandon(self) -> None:
        """Close every descriptor that is watched: in a forked child, or where nobody turns this any more."""
        for key in list(self._selector.get_map().values()):
            with contextlib.suppress(OSError):
                os.close(key.fd)
        self._selector.close()
