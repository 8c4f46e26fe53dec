"""What processes print while their supervisor is held up.

A supervisor writes to the store: logs, metrics, how it goes. Where that takes long (a file system over the
network that does not answer), its loop stands still, the pipes of its processes fill, and whoever prints
would wait. So there is a thread that takes over then, and reads them into memory until the loop turns again.

It cannot help where the processes write to that file system themselves.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from upshift.model.settings.sizes import format_size
from upshift.runtime import forks
from upshift.runtime.loop import Loop

LATE = 0.2
"""Seconds that a turn of the loop takes before its processes are read elsewhere."""
MOST = 64 << 20
"""Bytes that are kept in memory; of what is printed beyond that, the log says how much it was."""
_CHUNK = 1 << 16


class Overflow:
    """Reads pipes for a loop, and instead of it.

    Its thread runs from :meth:`start` until nothing is left to read: nobody forks between these.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._kept: dict[int, bytearray] = {}  # by descriptor
        self._ready: dict[int, Callable[[], None]] = {}
        self._droppable: set[int] = set()
        self._dropped: dict[int, int] = {}
        self._ended: set[int] = set()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._wake = (-1, -1)

    def add(self, descriptor: int, ready: Callable[[], None], *, droppable: bool) -> None:
        """Read this one, too; ``ready`` is called by the loop when something has been kept of it."""
        with self._lock:
            self._kept[descriptor], self._ready[descriptor] = bytearray(), ready
            if droppable:
                self._droppable.add(descriptor)

    def start(self) -> None:
        """All processes have been started."""
        if self._thread is None and self._kept:
            self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._loop.watch(self._wake[0], self._hand_over)
            self._over.clear()
            self._thread = threading.Thread(target=self._run, name="upshift-overflow", daemon=True)
            self._thread.start()

    def read(self, descriptor: int) -> bytes:
        """What has come from a descriptor, as ``os.read`` gives it."""
        with self._lock:
            kept = self._kept.get(descriptor)
            if kept:
                data = bytes(kept)
                kept.clear()
                dropped = self._dropped.pop(descriptor, 0)
                if dropped:
                    words = (
                        f"upshift: {format_size(dropped)} of output are missing here: the store was held up"
                    )
                    data += (b"" if data.endswith(b"\n") else b"\n") + words.encode() + b"\n"
                return data
            return os.read(descriptor, _CHUNK)

    def forget(self, descriptor: int) -> None:
        """Read this one no more: it is about to be closed."""
        with self._lock:
            self._kept.pop(descriptor, None)
            self._ready.pop(descriptor, None)
            self._droppable.discard(descriptor)
            self._ended.discard(descriptor)
            left = bool(self._kept)
        if not left and self._thread is not None:
            self._over.set()
            forks.join(self._thread)
            self._thread = None
            self._loop.forget(self._wake[0])
            os.close(self._wake[1])

    def _run(self) -> None:
        while not self._over.wait(LATE / 2):
            while not self._over.is_set() and self._loop.held_up > LATE and self._take():
                continue

    def _take(self) -> bool:
        """Wait for one of them for a moment, and read what it has; False: nothing came."""
        with self._lock:
            watched = [descriptor for descriptor in self._kept if descriptor not in self._ended]
        poll = select.poll()
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        come = [descriptor for descriptor, _ in poll.poll(LATE * 500)]
        with self._lock:
            if self._loop.held_up <= LATE:
                return False
            for descriptor in come:
                if descriptor in self._kept:
                    self._keep(descriptor)
        return bool(come)

    def _keep(self, descriptor: int) -> None:
        full = sum(map(len, self._kept.values())) >= MOST
        if full and descriptor not in self._droppable:
            self._over.wait(LATE)  # its process waits, too: what it says is not for people
            return
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._ended.add(descriptor)
        elif full:
            self._dropped[descriptor] = self._dropped.get(descriptor, 0) + len(data)
        else:
            self._kept[descriptor] += data
            os.write(self._wake[1], b".")

    def _hand_over(self) -> None:
        os.read(self._wake[0], _CHUNK)
        with self._lock:
            ready = [self._ready[descriptor] for descriptor, kept in self._kept.items() if kept]
        for call in ready:
            call()
