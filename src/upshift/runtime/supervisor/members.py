"""The processes of a task: each as its supervisor knows it, and all of them together.

All of them return, or the first that fails ends them all.
"""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from upshift.model.spec import Failure, Rank, from_json
from upshift.runtime import proc
from upshift.runtime.confine import Spawned
from upshift.runtime.launch import stacks
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.messages import HEEDS, Lines, Outcome, Seen
from upshift.runtime.proc import Consumed
from upshift.runtime.supervisor.logs import Log

if TYPE_CHECKING:
    from upshift.runtime.supervisor.overflow import Overflow

CHUNK = 1 << 16


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
            while self._sightings >= 0 and (data := os.read(self._sightings, CHUNK)):
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
                data = os.read(descriptor, CHUNK)
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


GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for the others, once one has failed: nothing is left to be saved."""
ANSWERING = 0.2
"""Seconds that processes are given to write where they are, before they are told to end."""
PATIENCE = 1.0
"""Seconds to see whether another process has failed before, where a failure looks like its consequence."""


class Gang:
    """Keeps the processes of a task together."""

    def __init__(self, loop: Loop, *, grace: float, follows: Callable[[Member], bool]) -> None:
        self.members: list[Member] = []
        self.failed: list[Member] = []
        self._loop = loop
        self._grace = min(grace, GRACE)
        self._follows = follows
        self._timers: list[Timer] = []
        self._ending = False

    @property
    def ended(self) -> bool:
        """Whether no process is left."""
        return all(member.ended for member in self.members)

    @property
    def returned(self) -> bool:
        """Whether all have returned."""
        return all(member.returned for member in self.members)

    @property
    def main(self) -> Member:
        """The one whose value is the step's."""
        return self.members[0]

    @property
    def culprit(self) -> Member:
        """The one that failed first, and not because another one did."""
        causes = [member for member in self.failed if not self._follows(member)]
        return next(iter((*causes, *self.failed)), self.main)

    @property
    def failing(self) -> bool:
        """Whether they end, now or in a moment, because one of several has failed by itself."""
        return bool(self.failed) and len(self.members) > 1

    def fail(self, member: Member) -> None:
        """This one has failed. The others are stopped, unless it may have been one of them."""
        if self._ending or member in self.failed:
            return
        self.failed.append(member)
        if len(self.members) == 1:
            return
        if not self._follows(member):
            self._end()
        elif len(self.failed) == 1:
            self._timers.append(self._loop.after(PATIENCE, self._end))

    @property
    def running(self) -> list[Member]:
        """The processes that have not ended, and are still in the step."""
        return [member for member in self.members if not member.ended and member.outcome is None]

    def ask(self) -> None:
        """Ask all running processes for their stacks."""
        for member in self.running:
            member.ask()

    def signal(self, number: int) -> None:
        """Send a signal to all that run."""
        for member in self.members:
            if not member.ended:
                member.signal(number)

    def kill(self) -> None:
        """Kill all that run, and what descends from them."""
        for member in self.members:
            if not member.ended:
                member.kill()

    def stopped(self) -> None:
        """Somebody stops them: what ends now fails for no reason of its own."""
        self._ending = True

    def cancel(self) -> None:
        """Do nothing any more: the attempt is over."""
        for timer in self._timers:
            timer.cancel()

    def _end(self) -> None:
        if self._ending:
            return
        self._ending = True
        if self.running and self._follows(self.culprit):  # where the others are may tell why it failed
            self.ask()
            self._timers.append(self._loop.after(ANSWERING, partial(self.signal, signal.SIGTERM)))
        else:
            self.signal(signal.SIGTERM)
        self._timers.append(self._loop.after(self._grace, self.kill))
