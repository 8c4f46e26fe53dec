"""The devices of this machine, as a supervisor sees them: an agent for each vendor, kept alive.

Nothing is started before somebody wants to know, nor on a machine without device files. An agent that
hangs, crashes or talks nonsense is killed and started again, after a pause that grows each time; until
it answers, nothing is known of its vendor's devices but what it has said before, and the tasks go on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

import attrs

from upshift.runtime.accelerators.agent import (
    DEADLINE,
    ENDING,
    Agent,
    AgentFailed,
    AgentSilent,
    Snapshot,
    unknown,
)
from upshift.runtime.accelerators.vendor import Inventory, Reading
from upshift.runtime.accelerators.vendors import present
from upshift.runtime.loop import Loop, Timer

INTERVAL = 1.0
"""Seconds between two snapshots, unless somebody wants them more often."""
PATIENCE = 5
"""Intervals without a snapshot, after which an agent counts as hanging; :data:`LEAST` at the least."""
LEAST = 10.0
"""Seconds."""
PAUSES = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds until an agent that has failed is started again: the first time, the second, …"""

Listener = Callable[[], None]


@attrs.define
class _Watched:
    """One vendor: its agent, if one runs, and what is known of it.

    ``ending`` is readable when the agent has ended, of one that has stopped talking.
    """

    vendor: str
    agent: Agent | None = None
    inventory: Inventory | None = None
    snapshot: Snapshot | None = None
    failures: int = 0
    timer: Timer | None = None
    ending: int | None = None


class DeviceMonitor:
    """What is known of this machine's devices, kept up to date on an event loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._interval = INTERVAL
        self._watched: list[_Watched] | None = None
        self._listeners: list[Listener] = []
        self._waiting: list[Listener] = []
        self._dying: dict[int, int] = {}

    # -- what is known ----------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether every vendor has answered, or has failed to."""
        return self._watched is not None and all(w.inventory is not None for w in self._watched)

    @property
    def inventories(self) -> tuple[Inventory, ...]:
        """One for each vendor that has answered, or has failed to."""
        return tuple(w.inventory for w in self._watched or () if w.inventory is not None)

    @property
    def latest(self) -> tuple[Snapshot, ...]:
        """The newest snapshot of each vendor whose agent is well."""
        return tuple(w.snapshot for w in self._watched or () if w.snapshot is not None)

    @property
    def readings(self) -> Mapping[str, Reading]:
        """The newest reading of each device, by its uuid."""
        return {reading.uuid: reading for snapshot in self.latest for reading in snapshot.readings}

    def pids(self) -> set[int]:
        """Processes of the agents, those that are about to end included: they are no strays of a step."""
        running = {w.agent.pid for w in self._watched or () if w.agent is not None}
        return running | set(self._dying)

    # -- wanting to know --------------------------------------------------------------------------

    def want(self, call: Listener | None = None, *, interval: float = INTERVAL) -> None:
        """Start the agents, unless they run; ``call`` once all is known. The shortest interval counts."""
        if interval < self._interval:
            self._interval = interval
            for watched in self._watched or ():
                if watched.agent is not None:
                    watched.agent.every(interval)
        if self._watched is None:
            self._watched = [_Watched(vendor.name) for vendor in present()]
            for watched in self._watched:
                self._start(watched)
        if call is not None:
            self._waiting.append(call)
            self._tell_waiting()

    def renew(self) -> None:
        """Ask again, in new processes: a library that has lost a device may not see that it came back.

        Until they have answered, the snapshots of before count as not read.
        """
        for watched in self._watched or ():
            if watched.agent is not None and watched.snapshot is not None:
                before = attrs.evolve(watched.snapshot, read=False)
                self._stop(watched)
                watched.snapshot = before
                self._start(watched)

    def listen(self, call: Listener) -> Callable[[], None]:
        """Call at each new snapshot, until what is returned here is called."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call)

    def close(self) -> None:
        """Stop the agents."""
        for watched in self._watched or ():
            self._stop(watched)
        self._watched = None

    def bury(self, seconds: float) -> None:
        """Wait until the agents that were stopped are gone, this many seconds at most; it turns the loop.

        One that the driver does not let go is left behind.
        """
        until = time.monotonic() + seconds
        late = self._loop.after(seconds, lambda: None)  # so that no turn takes longer
        while self._dying and time.monotonic() < until:
            self._loop.turn()
        late.cancel()

    # -- agents -----------------------------------------------------------------------------------

    def _start(self, watched: _Watched) -> None:
        watched.timer = None
        try:
            agent = watched.agent = Agent(watched.vendor, interval=self._interval)
        except OSError as error:
            self._failed(watched, f"no process could be started: {error.strerror}")
            return
        self._loop.watch(agent.descriptor, lambda: self._receive(watched, agent))
        self._expect(watched, DEADLINE)

    def _receive(self, watched: _Watched, agent: Agent) -> None:
        try:
            news = agent.receive()
        except AgentSilent as error:
            self._await_end(watched, agent, str(error))
            return
        except AgentFailed as error:
            self._failed(watched, str(error))
            return
        if news is None:
            return
        first = watched.inventory is not news.inventory
        watched.inventory = news.inventory
        if news.readings or not news.inventory.devices:
            watched.failures = 0
        watched.snapshot = news
        self._expect(watched, max(LEAST, PATIENCE * self._interval))
        if first:
            self._tell_waiting()
        for call in list(self._listeners):
            call()

    def _await_end(self, watched: _Watched, agent: Agent, why: str) -> None:
        """Its pipe closes a moment before it is gone, and how it ended says more than that."""
        self._loop.unwatch(agent.descriptor)
        watched.ending = os.pidfd_open(agent.pid)
        self._loop.watch(watched.ending, lambda: self._failed(watched, agent.end()))
        self._expect(watched, ENDING, why)

    def _expect(self, watched: _Watched, seconds: float, otherwise: str | None = None) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
        why = otherwise or f"it has said nothing for {seconds:g} s"
        watched.timer = self._loop.after(seconds, lambda: self._failed(watched, why))

    def _failed(self, watched: _Watched, why: str) -> None:
        self._stop(watched)
        lost = unknown(watched.vendor, why)
        if watched.inventory is not None:  # what was there is most likely still there
            lost = attrs.evolve(watched.inventory, problems=lost.problems)
        watched.inventory = lost
        pause = PAUSES[min(watched.failures, len(PAUSES) - 1)]
        watched.failures += 1
        watched.timer = self._loop.after(pause, lambda: self._start(watched))
        self._tell_waiting()
        for call in list(self._listeners):
            call()

    def _stop(self, watched: _Watched) -> None:
        if watched.timer is not None:
            watched.timer.cancel()
            watched.timer = None
        watched.snapshot = None
        agent, watched.agent = watched.agent, None
        if agent is not None:
            if watched.ending is None:
                self._loop.unwatch(agent.descriptor)
            else:
                self._loop.forget(watched.ending)
                watched.ending = None
            agent.close()
            if agent.status is None:
                self._bury(agent)

    def _bury(self, agent: Agent) -> None:
        """Reap it when it has ended, which takes as long as the driver holds it."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(agent.pid)
            self._dying[agent.pid] = descriptor

            def ended() -> None:
                del self._dying[agent.pid]
                self._loop.forget(descriptor)
                agent.reap()

            self._loop.watch(descriptor, ended)

    def _tell_waiting(self) -> None:
        if self.known:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call()
