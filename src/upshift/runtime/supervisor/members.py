"""The processes of a task, each as its supervisor knows it, and their pipes."""

from __future__ import annotations

import abc
import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

from upshift.model.settings.sizes import format_size
from upshift.model.spec import Failure, Rank, from_json
from upshift.runtime import children, proc
from upshift.runtime.confine import Spawned
from upshift.runtime.launch import stacks
from upshift.runtime.loop import Loop
from upshift.runtime.messages import HEEDS, Lines, Outcome, Seen
from upshift.runtime.proc import Consumed
from upshift.runtime.supervisor.logs import Log

_CHUNK = 1 << 16


class Member(abc.ABC):
    """One process of a task, wherever it runs. Bytes of it come in through three ``feed`` methods."""

    pid: int
    """Its id on the host that it runs on."""

    def __init__(self, rank: Rank | None, *, log: Log, told: Callable[[Member, list[bytes]], None]) -> None:
        self.rank = rank
        self.log = log
        self.host = os.uname().nodename
        self.outcome: Outcome | None = None
        self.code: int | None = None
        self.consumed = Consumed()
        self.explained: Failure | None = None  # of one on another node: what only its supervisor can know
        self.heard = 0.0  # when anything last came from it, by the monotonic clock
        self.spied = ""  # the stacks that a debugger read from outside
        self.asked = False  # for its stacks
        self.unheard = ""  # its node, from which nothing has come since it was asked last
        self.state = ""  # when it was asked last: proc(5)
        self.heeds = False  # whether it handles SIGTERM itself
        self._told = told
        self._lines = Lines()
        self._sight = bytearray()

    @property
    def number(self) -> int:
        """Its rank; 0 where it is the only one."""
        return 0 if self.rank is None else self.rank.rank

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self.code is not None

    @property
    def returned(self) -> bool:
        """Whether its call of the step has returned."""
        return self.outcome is not None and self.outcome.failure is None

    def feed_log(self, data: bytes) -> None:
        """Take what the process has printed."""
        self.heard = time.monotonic()
        self.log.feed(data)

    def feed_messages(self, data: bytes) -> None:
        """Take what the process says."""
        self.heard = time.monotonic()
        lines = self._lines.take(data)
        self.heeds = self.heeds or HEEDS in lines
        self._told(self, lines)

    def feed_sight(self, data: bytes) -> None:
        """Take what the process has found, or the stacks that it wrote."""
        self._sight += data

    def sight(self) -> tuple[Seen | None, str]:
        """What it found at its start, None if it was killed before it looked; and the stacks it wrote."""
        text, _, stack = bytes(self._sight).partition(b"\n")
        if not text:
            return None, ""
        try:
            return from_json(Seen, text), stack.decode(errors="replace")
        except (ValueError, RecursionError):  # the step has read it, and written something else
            return None, ""

    @abc.abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the process and the group that it leads, if it still runs.

        To the process alone, if it is SIGTERM, and it has said that it sees to that itself.
        """

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill it, and whatever descends from it."""

    def ask(self) -> None:
        """Ask it for its stacks, and drop those that it wrote before; :meth:`sight` has the new ones soon."""
        self.asked = True
        end = self._sight.find(b"\n") + 1
        if end:
            del self._sight[end:]

    def cpu_seconds(self) -> float | None:
        """CPU time that it and what it started have taken up to now; None: not known."""
        return None

    @abc.abstractmethod
    def drain(self) -> None:
        """Take what it has printed and said up to now."""

    def hush(self) -> None:
        """Take what it has printed up to now, and nothing more of that."""
        self.log.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Nothing more is taken from it."""


class LocalMember(Member):
    """A process that this supervisor has started itself."""

    def __init__(
        self,
        born: Spawned,
        rank: Rank | None,
        *,
        loop: Loop,
        log: Log,
        told: Callable[[Member, list[bytes]], None],
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(rank, log=log, told=told)
        self.pid = born.pid
        self._overflow = overflow
        self.baseline = born.baseline
        self._loop = loop
        self._sightings = born.seen
        os.set_blocking(born.seen, False)
        self._log, self._messages = born.log, born.messages
        self._resting: set[int] = set()
        self._feeds = {born.log: self.feed_log, born.messages: self.feed_messages}
        for descriptor in self._feeds:
            os.set_blocking(descriptor, False)
            ready = partial(self._ready, descriptor)
            loop.watch(descriptor, ready)
            if overflow is not None:
                overflow.add(descriptor, ready, droppable=descriptor == born.log)

    def signal(self, number: int) -> None:
        if not self.ended:
            alone = self.heeds and number == signal.SIGTERM
            self._send(number, alone=alone)
            if number == signal.SIGTERM:  # which one that is stopped would not hear of
                self._send(signal.SIGCONT, alone=alone)

    def _send(self, number: int, *, alone: bool) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone
            if not alone:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
                    return
            os.kill(self.pid, number)  # also where it was forked just now, and leads no group yet

    def kill(self) -> None:
        if not self.ended:
            proc.kill(reversed(proc.tree(self.pid)))
        self.signal(signal.SIGKILL)

    def ask(self) -> None:
        self.sight()
        super().ask()
        if not self.ended and stacks.ask(self.pid) and self._sightings not in self._feeds:
            self._feeds[self._sightings] = self.feed_sight
            self._loop.watch(self._sightings, partial(self._ready, self._sightings))
        stat = proc.stat(self.pid)
        self.state = stat.state if stat is not None else ""

    def cpu_seconds(self) -> float | None:
        found = [stat for pid in proc.tree(self.pid) if (stat := proc.stat(pid)) is not None]
        return sum(stat.own + stat.inherited for stat in found) / proc.TICKS if found else None

    def sight(self) -> tuple[Seen | None, str]:
        with contextlib.suppress(BlockingIOError, ValueError):
            while self._sightings >= 0 and (data := os.read(self._sightings, _CHUNK)):
                self.feed_sight(data)
        return super().sight()

    def drain(self) -> None:
        for descriptor in (self._log, self._messages):
            while descriptor in self._feeds and self._read(descriptor):
                continue  # the pipe may hold more than one read gives

    def hush(self) -> None:
        while self._log in self._feeds and self._read(self._log):
            continue
        self._forget(self._log)
        super().hush()

    def close(self) -> None:
        for descriptor in list(self._feeds):
            self._forget(descriptor)
        if self._sightings >= 0:
            os.close(self._sightings)
            self._sightings = -1

    def _ready(self, descriptor: int) -> None:
        if descriptor in self._feeds:
            self._read(descriptor)

    def _read(self, descriptor: int) -> bool:
        """Take what one read gives; False if that was nothing."""
        try:
            if self._overflow is None or descriptor == self._sightings:
                data = os.read(descriptor, _CHUNK)
            else:
                data = self._overflow.read(descriptor)
        except BlockingIOError:
            return False
        if not data:
            if descriptor == self._messages and not self.ended:  # closed by the step; it may open it again
                self._rest(descriptor)
            else:
                self._forget(descriptor)
            return False
        self._feeds[descriptor](data)
        return True

    def _rest(self, descriptor: int) -> None:
        """Nobody writes there now: look once more at the end."""
        if descriptor not in self._resting:
            self._resting.add(descriptor)
            self._loop.unwatch(descriptor)

    def _forget(self, descriptor: int) -> None:
        if self._feeds.pop(descriptor, None) is not None:
            self._rest(descriptor)
            if self._overflow is not None:
                self._overflow.forget(descriptor)
            os.close(descriptor)
        if descriptor == self._sightings:
            self._sightings = -1


LATE = 0.2
"""Seconds that a turn of the loop takes before its processes are read elsewhere."""
MOST = 64 << 20
"""Bytes that are kept in memory; of what is printed beyond that, the log says how much it was."""


class Overflow:
    """Reads pipes for a loop, and instead of it while it is held up.

    A supervisor writes to the store. Where that takes long (a file system over the network that does not
    answer), its loop stands still, the pipes of its processes fill, and whoever prints would wait. So a
    thread reads them into memory then, until the loop turns again. It cannot help where the processes write
    to that file system themselves.

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
            children.join(self._thread)
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
            with contextlib.suppress(BlockingIOError):  # the loop has not read what woke it before
                os.write(self._wake[1], b".")

    def _hand_over(self) -> None:
        os.read(self._wake[0], _CHUNK)
        with self._lock:
            ready = [self._ready[descriptor] for descriptor, kept in self._kept.items() if kept]
        for call in ready:
            call()
