"""The further nodes of a task, as the supervisor of its first one knows them.

::

    supervisor of node 0                              supervisor of node 1 (remote_supervisor.py)
    the attempt: all members, policy, result          processes, bounds, usage

           ◄── ready: its devices ────────────────────
           ─── start: where rank 0 will be ──────────►  starts its ranks
           ◄── born; what they print, find and tell ──
           ─── signal, kill, ask for stacks ─────────►
           ◄── used, ended, full of memory, signalled
           ─── over ─────────────────────────────────►  lets go of everything, and leaves

Nothing is decided there. A node without a connection kills its processes; node 0 ends the attempt, which is
over when those are gone: the next attempt has none of them beside it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from upshift.model.spec import Device, Failure, Hardware, Rank, TaskSpec, decode
from upshift.runtime.launch.network import Port
from upshift.runtime.launch.ranks import ranks_of
from upshift.runtime.proc import Consumed
from upshift.runtime.supervisor.ends import stopped_from_outside
from upshift.runtime.supervisor.logs import Log
from upshift.runtime.supervisor.members import Member
from upshift.runtime.supervisor.node_connection import (
    LOG,
    MESSAGES,
    SAYS,
    SIGHT,
    Connection,
    Frame,
    WireError,
    reading,
)

ORPHANED = 3.0
"""Seconds between SIGTERM and SIGKILL for processes whose node 0 is gone: nobody takes what they do."""


class RemoteMember(Member):
    """A process on another node."""

    def __init__(
        self, rank: Rank, remote: RemoteNode, *, log: Log, told: Callable[[Member, list[bytes]], None]
    ) -> None:
        super().__init__(rank, log=log, told=told)
        self.pid = 0
        self.host = remote.name
        self._node = str(remote)
        self._connection = remote.connection
        self._busy: float | None = None

    def signal(self, number: int) -> None:
        if not self.ended:
            self._connection.say("signal", rank=self.number, number=int(number))

    def kill(self) -> None:
        if not self.ended:
            self._connection.say("kill", rank=self.number)

    def ask(self) -> None:
        super().ask()
        self.unheard = self._node
        if not self.ended:
            self._connection.say("ask", rank=self.number)

    def cpu_seconds(self) -> float | None:
        return self._busy

    def drain(self) -> None:
        """Its node has sent all of that before it says that the process has ended."""

    def close(self) -> None:
        """What comes from it comes on the connection of its node."""

    def busy(self, cpu_seconds: float | None, state: str) -> None:
        """Take the CPU time and the state that the process had when its node was asked."""
        self._busy, self.state, self.unheard = cpu_seconds, state, ""


class RemoteNode:
    """One of the further nodes."""

    def __init__(self, number: int, name: str, connection: Connection, facts: Mapping[str, Any]) -> None:
        self.number = number
        self.name = name
        self.connection = connection
        self.facts = facts
        self.ready = self.reaches = False
        self.devices: tuple[Device, ...] | None = None
        self.less = False
        self.remarks: tuple[str, ...] = ()
        self.granted: Hardware | None = None
        self.used: Hardware | None = None
        self.verdict: Failure | None = None
        self.gone: str | None = None
        self.members: dict[int, RemoteMember] = {}

    def record(self, seconds: float, consumed: Consumed, peak: int | None) -> Hardware:
        """The record ``used`` of it: what it has told, or as much more as its processes have."""
        told = self.used.details if self.used is not None else {}
        seen = Consumed(
            told.get("cpu_seconds") or 0.0, told.get("disk_read") or 0, told.get("disk_written") or 0
        )
        known = consumed.or_more(seen)
        cpus = round(known.cpu_seconds / seconds, 3) if seconds > 0 else 0.0
        most = max(peak or 0, told.get("memory_peak") or 0)
        details = {
            **told,
            "seconds": round(seconds, 6),
            "cpu_seconds": known.cpu_seconds,
            "cpu_mean": cpus,
            "cpu_peak": max(cpus, told.get("cpu_peak") or 0.0),
            "memory_peak": most,
            "memory_mean": told.get("memory_mean") or most,
            "disk_read": known.read,
            "disk_written": known.written,
        }
        gpus = self.used.gpus if self.used is not None else None
        return Hardware(cpu_count=cpus, memory=most, gpus=gpus, nodes=1, details=details)

    def __str__(self) -> str:
        return f"node {self.number} ({self.name})"


class Audience(Protocol):
    """Who hears of the further nodes: the attempt."""

    def left(self, member: Member, code: int, consumed: Consumed) -> None:
        """A process has ended."""

    def node_failed(self, failure: Failure) -> None:
        """A node cannot go on, or its connection is lost."""

    def cancel(self, grace: float, why: Failure | None = None) -> None:
        """A supervisor was told to stop the attempt."""

    def remark(self, line: str) -> None:
        """Something is to be said in the log of the step."""


class Nodes:
    """The further nodes of a task, all of which are there and ready."""

    def __init__(
        self,
        spec: TaskSpec,
        remotes: Sequence[RemoteNode],
        *,
        address: str,
        name: str,
        port: Port,
        bury: Callable[[RemoteNode, Callable[[], None]], object],
    ) -> None:
        self.address = address
        self.name = name
        self.port = port
        self.remotes = sorted(remotes, key=lambda remote: remote.number)
        self._spec = spec
        self._bury = bury
        self._audience: Audience | None = None

    @property
    def count(self) -> int:
        """How many nodes there are, with the first one."""
        return len(self.remotes) + 1

    @property
    def verdict(self) -> Failure | None:
        """The failure, if the processes of one of them went beyond their memory."""
        return next((remote.verdict for remote in self.remotes if remote.verdict is not None), None)

    @property
    def less(self) -> bool:
        """Whether one of them has less than was promised."""
        return any(remote.less for remote in self.remotes)

    def start(
        self,
        audience: Audience,
        *,
        log: Callable[[Rank], Log],
        told: Callable[[Member, list[bytes]], None],
    ) -> list[RemoteMember]:
        """Start the processes there."""
        self._audience = audience
        started: list[RemoteMember] = []
        for remote in self.remotes:
            for rank in ranks_of(
                self._spec, address=self.address, port=self.port.number, node=remote.number, nodes=self.count
            ):
                remote.members[rank.rank] = RemoteMember(rank, remote, log=log(rank), told=told)
            started += remote.members.values()
            remote.connection.say("start", address=self.address, port=self.port.number)
            for line in remote.remarks:
                audience.remark(f"{remote}: {line}")
        return started

    def look_after(self) -> None:
        """Tell of nodes that were lost before anybody could hear it."""
        for remote in self.remotes:
            if remote.gone is not None:
                self._lose(remote, remote.gone)

    def close(self) -> None:
        """Disconnect; what still runs on them is killed."""
        self.port.close()
        for remote in self.remotes:
            remote.connection.say("over")
            remote.connection.close()

    @property
    def closed(self) -> bool:
        """Whether all have been told."""
        return all(remote.connection.closed for remote in self.remotes)

    # -- what comes -------------------------------------------------------------------------------

    def take(self, remote: RemoteNode, frame: Frame) -> None:
        """Something has come from a node."""
        if frame.kind == SAYS:
            content = frame.content()
            hear = getattr(self, f"_said_{content.pop('say')}", None)
            if hear is not None:  # else it is a beat
                with reading():
                    hear(remote, **content)
            return
        member = remote.members.get(frame.rank)
        if member is None:
            raise WireError(f"there is no rank {frame.rank} on {remote}")
        if member.ended:
            return
        feed = {LOG: member.feed_log, SIGHT: member.feed_sight, MESSAGES: member.feed_messages}
        feed[frame.kind](frame.payload)

    def lose(self, remote: RemoteNode, why: str) -> None:
        """There is no connection to a node any more."""
        remote.gone = why
        if self._audience is not None:
            self._lose(remote, why)

    def _lose(self, remote: RemoteNode, why: str) -> None:
        failure = Failure(
            reason="infrastructure",
            message=f"{remote} is gone: {why}",
            fix="See what became of that machine, or of the network between the two.",
            node=remote.name,
        )
        self._heard.node_failed(failure)
        self._bury(remote, partial(self._buried, remote))

    def _buried(self, remote: RemoteNode) -> None:
        for member in remote.members.values():
            if not member.ended:
                self._heard.left(member, -signal.SIGKILL, Consumed())

    @property
    def _heard(self) -> Audience:
        assert self._audience is not None  # nothing of this is said before the start
        return self._audience

    def _said_busy(self, remote: RemoteNode, rank: int, cpu_seconds: float | None, state: str) -> None:
        remote.members[rank].busy(cpu_seconds, state)

    def _said_born(self, remote: RemoteNode, rank: int, pid: int) -> None:
        remote.members[rank].pid = pid

    def _said_ended(
        self,
        remote: RemoteNode,
        rank: int,
        code: int,
        consumed: Sequence[float],
        failure: Mapping[str, Any] | None,
    ) -> None:
        member = remote.members[rank]
        if not member.ended:
            member.explained = None if failure is None else decode(Failure, failure)
            seconds, read, written = consumed
            self._heard.left(member, code, Consumed(float(seconds), int(read), int(written)))

    def _said_granted(self, remote: RemoteNode, hardware: Mapping[str, Any] | None) -> None:
        remote.granted = None if hardware is None else decode(Hardware, hardware)

    def _said_used(
        self, remote: RemoteNode, hardware: Mapping[str, Any], verdict: Mapping[str, Any] | None
    ) -> None:
        remote.used = decode(Hardware, hardware)
        remote.verdict = None if verdict is None else decode(Failure, verdict)

    def _said_remark(self, remote: RemoteNode, line: str) -> None:
        self._heard.remark(f"{remote}: {line}")

    def _said_failed(self, remote: RemoteNode, failure: Mapping[str, Any]) -> None:
        self._heard.node_failed(decode(Failure, failure))
        for member in remote.members.values():
            if not member.ended and not member.pid:  # it has never started
                self._heard.left(member, -signal.SIGKILL, Consumed())

    def _said_signalled(self, remote: RemoteNode, name: str, asked: bool, grace: float) -> None:
        why = stopped_from_outside(f"the supervisor of {remote}", name, node=remote.name)
        self._heard.cancel(grace, None if asked else why)
