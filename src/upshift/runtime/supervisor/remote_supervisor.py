"""The supervisor of a further node: processes within their bounds, for node 0 to decide about.

What it and node 0 say to each other is drawn in :mod:`upshift.runtime.supervisor.nodes`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import BackendError, UpshiftError
from upshift.model.spec import Failure, Rank, TaskSpec, encode
from upshift.runtime.confine import Spawned, Starter
from upshift.runtime.launch import network
from upshift.runtime.launch.ranks import ranks_of
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop
from upshift.runtime.proc import Consumed
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.logs import Log
from upshift.runtime.supervisor.members import LocalMember, Member, Overflow
from upshift.runtime.supervisor.node_connection import LOG, MESSAGES, SIGHT, Connection, Frame, pack
from upshift.runtime.supervisor.node_runtime import Machine, NodeRuntime
from upshift.runtime.supervisor.nodes import ORPHANED
from upshift.runtime.supervisor.rendezvous import Joining
from upshift.runtime.tracebacks import mistake

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_pool import Grant


TRYING = 5.0
"""Seconds in which the port of rank 0 has to answer; node 0 believes in a silent node for longer."""
_OUTCOME = b'{"outcome"'


class ForwardedMember(LocalMember):
    """A process here whose every word goes to node 0."""

    def __init__(self, born: Spawned, rank: Rank, *, loop: Loop, supervisor: RemoteSupervisor) -> None:
        self._supervisor = supervisor
        self._paused = False
        overflow = supervisor.overflow
        super().__init__(born, rank, loop=loop, log=Log(loop), told=_listen, overflow=overflow)
        self._feeds[born.seen] = self.feed_sight
        loop.watch(born.seen, partial(self._ready, born.seen))

    def feed_log(self, data: bytes) -> None:
        self._supervisor.forward(LOG, self, data)

    def feed_messages(self, data: bytes) -> None:
        super().feed_messages(data)
        self._supervisor.forward(MESSAGES, self, data)

    def feed_sight(self, data: bytes) -> None:
        self._supervisor.forward(SIGHT, self, data)

    def about_to_end(self) -> None:
        """Send usage before what became of the call: node 0 may end the attempt by that."""
        self._supervisor.tell_used()

    def pause(self) -> None:
        """Read no more of what it writes, for now."""
        if not self._paused:
            self._paused = True
            for descriptor in self._feeds:
                self._loop.unwatch(descriptor)

    def resume(self) -> None:
        """Read again what the process writes."""
        if self._paused:
            self._paused = False
            for descriptor in self._feeds:
                self._loop.watch(descriptor, partial(self._ready, descriptor))

    def close(self) -> None:
        self.resume()
        super().close()


def _listen(member: Member, lines: list[bytes]) -> None:
    """Only one thing that a process says is looked at here."""
    if isinstance(member, ForwardedMember) and any(line.startswith(_OUTCOME) for line in lines):
        member.about_to_end()


class RemoteSupervisor:
    """This node's part of one attempt."""

    def __init__(
        self,
        spec: TaskSpec,
        store: Store,
        *,
        loop: Loop,
        seat: Seat,
        machine: Machine,
        starter: Starter,
        secrets: Mapping[str, str],
        overflow: Overflow | None = None,
    ) -> None:
        self.problem: str | None = None
        self.overflow = overflow
        self._spec = spec
        self._store = store
        self._loop = loop.confined(self._troubled)
        self._seat = seat
        self._machine = machine
        self._starter = starter
        self._secrets = secrets
        self._grant: Grant | None = None
        self._node_runtime: NodeRuntime | None = None
        self._members: list[ForwardedMember] = []
        self._connection: Connection | None = None
        self._ready: Mapping[str, Any] | None = None
        self._clock = time.monotonic()
        self._over = False
        self._paused = False
        try:
            store.claim_run(spec.task.run)
        except UpshiftError as error:
            self.refuse(Failure(reason="infrastructure", message=error.in_short, fix=error.fix))
        self._join()

    @property
    def busy(self) -> bool:
        """Whether there is anything to wait for."""
        return not self._over or any(not member.ended for member in self._members)

    def _join(self) -> None:
        """Look for node 0."""
        Joining(
            self._loop,
            self._spec,
            self._store,
            self._seat,
            facts=self._machine.facts,
            joined=self._joined,
            take=self._take,
            lost=self._lost,
        )

    # -- before the start -------------------------------------------------------------------------

    def start(self, grant: Grant | None) -> None:
        """This node has its devices: it can start."""
        if self._over:
            if grant is not None:
                grant.give_back()
            return
        self._grant = grant
        self._say_once_joined(
            "ready",
            devices=None if grant is None or grant.devices is None else [encode(d) for d in grant.devices],
            less=grant is not None and grant.less,
            remarks=() if grant is None else grant.remarks,
        )

    def refuse(self, failure: Failure) -> None:
        """This node does not get what it was promised."""
        self._say_once_joined("failed", failure=encode(self._named(failure)))

    def tell(self, why: str) -> None:
        """Tell node 0 what this node waits for."""
        if self._connection is not None:
            self._connection.say("waiting", why=why)

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        """This supervisor was told to stop; node 0 decides what that means. Before it is there, it leaves."""
        if self._connection is not None:
            self._connection.say("signalled", name=name, asked=asked, grace=grace)
        else:
            self._over = True

    def _say_once_joined(self, what: str, **content: Any) -> None:
        self._ready = {"what": what, **content}
        if self._connection is not None:
            self._connection.say(**self._ready)

    def _joined(self, connection: Connection) -> None:
        self._connection = connection
        if self._ready is not None:
            connection.say(**self._ready)

    # -- what node 0 says -------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        content = frame.content()
        hear: Callable[..., None] | None = getattr(self, f"_said_{content.pop('say')}", None)
        if hear is not None:  # else it is a beat
            hear(**content)

    def _said_try(self, address: str, port: int) -> None:
        """See whether processes of this node reach rank 0. Nothing else is to be done meanwhile."""
        source = f"node {self._seat.node} ({self._seat.name or os.uname().nodename})"
        try:
            network.connect(address, port, timeout=TRYING, source=source, target="rank 0").close()
        except BackendError as error:
            self._say("reached", problem=error.in_short, fix=error.fix)
        else:
            self._say("reached", problem=None, fix=None)

    def _said_start(self, address: str, port: int) -> None:
        granted = self._spec.granted
        if granted is not None and self._grant is not None and self._grant.devices is not None:
            granted = attrs.evolve(granted, gpus=self._grant.devices)
        spec = self._spec = attrs.evolve(self._spec, granted=granted)
        self._clock = time.monotonic()
        ranks = ranks_of(spec, address=address, port=port, node=self._seat.node, nodes=self._seat.nodes)
        self._node_runtime = NodeRuntime(
            spec,
            store=self._store,
            loop=self._loop,
            machine=self._machine,
            grant=self._grant,
            secrets=self._secrets,
            number=self._seat.node,
        )
        self._grant = None
        try:
            self._node_runtime.start(self._starter, ranks, self._member)
        except OSError as error:
            self._node_runtime = None
            self._members.clear()
            message = f"node {self._seat.node} could not start its processes: {error.strerror or error}"
            self._fail(Failure(reason="infrastructure", message=message))
            return
        if self.overflow is not None:
            self.overflow.start()
        self._node_runtime.watch(self._members, tell=self._remark, stop=self._fail, kill=self._kill)
        granted = self._node_runtime.granted()
        self._say("granted", hardware=None if granted is None else encode(granted))
        for member in self._members:
            self._say("born", rank=member.number, pid=member.pid)

    def _member(self, born: Spawned, rank: Rank | None) -> LocalMember:
        assert rank is not None  # a step that has several nodes has ranks
        self._members.append(ForwardedMember(born, rank, loop=self._loop, supervisor=self))
        return self._members[-1]

    def _said_signal(self, rank: int, number: int) -> None:
        for member in self._members:
            if member.number == rank:
                member.signal(number)

    def _said_kill(self, rank: int) -> None:
        for member in self._members:
            if member.number == rank:
                member.kill()

    def _said_ask(self, rank: int) -> None:
        for member in self._members:
            if member.number == rank:
                member.ask()
                self._say("busy", rank=rank, cpu_seconds=member.cpu_seconds(), state=member.state)

    def _said_over(self) -> None:
        """The attempt has ended, and with it what still runs here."""
        if self._connection is not None:
            self._connection.close()
        self._leave()
        self._kill()

    # -- what goes to node 0 ----------------------------------------------------------------------

    def forward(self, kind: int, member: ForwardedMember, data: bytes) -> None:
        """Something that a process has written. No more is read than the network takes."""
        if self._connection is None or not self._connection.alive:
            return
        self._connection.send(pack(kind, member.number, data))
        if self._connection.full and not self._paused:
            self._paused = True
            for one in self._members:
                one.pause()
            self._connection.when_drained(self._drained)

    def tell_used(self) -> None:
        """Say what the processes have used so far, and whether they went beyond their memory."""
        if self._node_runtime is None:
            return
        ends = [member.consumed for member in self._members if member.ended]
        used = self._node_runtime.used(
            seconds=time.monotonic() - self._clock, consumed=Consumed.sum(ends), peak=None
        )
        verdict = self._node_runtime.verdict(None)
        self._say(
            "used",
            hardware=encode(used),
            verdict=None if verdict is None else encode(self._named(verdict)),
        )

    def exited(self, pid: int, status: int, consumed: Consumed) -> None:
        """A process has ended with this wait status, and nothing that it started runs."""
        for member in self._members:
            if member.pid == pid and not member.ended:
                self._ended(member, os.waitstatus_to_exitcode(status), consumed)

    def _ended(self, member: ForwardedMember, code: int, consumed: Consumed) -> None:
        member.resume()
        member.drain()
        member.sight()
        member.hush()  # with what it printed last
        member.code, member.consumed = code, consumed
        member.close()
        last = all(one.ended for one in self._members)
        if last and self._node_runtime is not None:
            self._node_runtime.end_watch()
        self.tell_used()
        killed = self._node_runtime.killed_for_memory(code) if self._node_runtime is not None else None
        self._say(
            "ended",
            rank=member.number,
            code=code,
            consumed=list(consumed),
            failure=None if killed is None else encode(self._named(killed)),
        )
        if last and self._node_runtime is not None:
            self._node_runtime.give_back_cpus()
            self._node_runtime.release()
            self._node_runtime = None

    def _say(self, what: str, **content: Any) -> None:
        if self._connection is not None:
            self._connection.say(what, **content)

    def _remark(self, line: str) -> None:
        self._say("remark", line=line)

    def _named(self, failure: Failure) -> Failure:
        return attrs.evolve(failure, node=self._seat.name or os.uname().nodename)

    # -- the end ----------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        self._say("failed", failure=encode(self._named(failure)))
        self._kill()

    def _troubled(self, error: Exception) -> None:
        self._fail(mistake(error))

    def _lost(self, why: str) -> None:
        """Node 0 is gone, or was never there."""
        if self._over:
            return
        self.problem = why if self._connection is None else f"node 0 is gone: {why}"
        self._connection = None
        self._leave()
        for member in self._members:
            member.resume()
            member.signal(signal.SIGTERM)
        self._loop.after(ORPHANED, self._kill)

    def _leave(self) -> None:
        self._over = True
        if self._grant is not None:  # it was never used
            self._grant.give_back()
            self._grant = None

    def _kill(self) -> None:
        for member in self._members:
            member.kill()

    def _drained(self) -> None:
        self._paused = False
        for member in self._members:
            member.resume()
