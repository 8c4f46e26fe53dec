"""How the nodes of a task find each other before it starts: node 0 listens, the others come.

::

    node 0                                   a further node
           ─── who: drawn by lot ──────────►
           ◄── here: its number, a proof, ───
               drawn by lot
           ─── welcome: a proof ───────────►  waits for its devices
           ◄── ready ────────────────────────
           ─── try: rank 0's port ─────────►
           ◄── reached ─────────────────────

A further node tries again until it reaches node 0, and leaves a word in the store if it cannot.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from upshift.errors import BackendError, StoreError
from upshift.model.spec import Device, Failure, TaskSpec, decode
from upshift.runtime import children
from upshift.runtime.launch import network
from upshift.runtime.launch.network import keep_port, unreachable
from upshift.runtime.launch.seats import Seat
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.ends import stopped_from_outside
from upshift.runtime.supervisor.node_connection import (
    FORM,
    LARGEST,
    Connection,
    Frame,
    WireError,
    draw_lot,
    pause,
    proof_of,
    proves,
    reading,
)
from upshift.runtime.supervisor.nodes import ORPHANED, Nodes, RemoteNode

INTRODUCTION = 10.0
"""Seconds in which who has connected has to say who that is."""
STRANGERS = 64
"""How many may be connected, beside the nodes, without having said who they are."""
GREETING = 1 << 16
"""Bytes of a frame that says who that is, at most."""
QUIET = 1.0
"""Seconds for which nobody is told that nodes are waited for."""


def attempt_name(spec: TaskSpec) -> str:
    """What all nodes of an attempt call it."""
    return f"{spec.task.run}/{spec.task}#{spec.attempt}"


def listen(seat: Seat) -> socket.socket:
    """The socket at which node 0 waits for the others."""
    try:
        if seat.address is not None:
            family = socket.AF_INET6 if ":" in seat.address else socket.AF_INET
            return socket.create_server((seat.address, seat.port), family=family, backlog=128)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", seat.port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True
            )
        return socket.create_server(("", seat.port), backlog=128)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise BackendError(
            f"node 0 cannot listen for the other nodes at port {seat.port}",
            why=f"{network.taker(seat.port) or 'Somebody'} has it." if taken else error.strerror,
            fix="Another attempt takes another port." if taken else None,
        ) from None


class Rendezvous:
    """Waits until all nodes of a task are there, and have what they were promised."""

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        seat: Seat,
        *,
        complete: Callable[[Nodes], None],
        refuse: Callable[[Failure], None],
        tell: Callable[[str], None] = lambda why: None,
        bury: Callable[[RemoteNode, Callable[[], None]], object] | None = None,
    ) -> None:
        self.spec = spec
        self._loop = loop
        self._store = store
        self._seat = seat
        self._complete = complete
        self._refuse = refuse
        self._tell = tell
        # Nothing can be done from here to processes of another node, which has the time to end them itself.
        # The silence begins with the last beat that has arrived, there up to two beats later than here.
        self._bury = bury or (lambda _, then: loop.after(ORPHANED + 2 * pause(seat.silence), then))
        self._here: dict[int, RemoteNode] = {}
        self._arrivals: set[_Arrival] = set()
        self._nodes: Nodes | None = None
        self._port: network.Port | None = None
        self._trial: socket.socket | None = None
        self._open = True
        self._listener = children.private(listen(seat))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        loop.watch(self._listener.fileno(), self._accept)
        self._deadline = loop.after(seat.wait, self._late)
        self._quiet = loop.after(QUIET, self._say)

    def cancel(self) -> None:
        """Nobody is waited for any more; those who have come are sent away."""
        if not self._open:
            return
        self._shut()
        if self._port is not None:
            self._port.close()
        for arrival in list(self._arrivals):
            arrival.close()
        for remote in self._here.values():
            remote.connection.close()

    def node_died(self, number: int, why: str) -> None:
        """Somebody who knows it says that the supervisor of a node has ended."""
        if self._open:
            self._fail(f"the supervisor of node {number} ended before the step could start: {why}")

    # -- who comes --------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has left again
            return
        if len(self._arrivals) >= STRANGERS + self._seat.nodes:  # nodes come again
            connection.close()
            return
        self._arrivals.add(_Arrival(self, self._loop, connection, silence=self._seat.silence))

    def admit(self, arrival: _Arrival, content: dict[str, Any]) -> RemoteNode:
        """Make a node of who has connected, or raise why it is none."""
        number, form, name = content.get("node"), content.get("form"), attempt_name(self.spec)
        if form != FORM:
            raise WireError(f"that node runs Upshift {form}, this one {FORM}")
        if not proves(content.get("proof"), self._seat.token, arrival.drawn, "node", number, name):
            raise WireError("that is not a node of this attempt")
        if not isinstance(number, int) or not 0 < number < self._seat.nodes or number in self._here:
            raise WireError(
                f"there is a node {number} already"
                if number in self._here
                else f"of {self._seat.nodes} nodes none has the number {number}"
            )
        remote = RemoteNode(number, str(content.get("name")), arrival.connection, content.get("facts") or {})
        self._here[number] = remote
        proof = proof_of(self._seat.token, str(content.get("lot")), "main", number, name)
        arrival.connection.say("welcome", proof=proof)
        return remote

    def take(self, remote: RemoteNode, frame: Frame) -> None:
        """A node says something."""
        if self._nodes is not None:
            self._nodes.take(remote, frame)
            return
        content = frame.content()
        if content["say"] == "ready":
            with reading():
                devices = content.get("devices")
                remote.devices = None if devices is None else decode(tuple[Device, ...], devices)
                remote.less = bool(content.get("less"))
                remote.remarks = tuple(map(str, content.get("remarks") or ()))
            remote.ready = True
            self._try_when_all_are_ready()
        elif content["say"] == "reached":
            if content.get("problem") is not None:
                self._fail(str(content["problem"]), content.get("fix"))
                return
            remote.reaches = True
            self._go_on_when_all_reach_rank_0()
        elif content["say"] == "waiting":
            self._tell(f"{remote}: {content.get('why')}")
        elif content["say"] == "failed":
            with reading():
                failure = decode(Failure, content["failure"])
            self._give_up(failure)
        elif content["say"] == "signalled":
            if content.get("asked"):
                self._give_up(Failure(reason="cancelled", message="cancelled before it ran"))
            else:
                what, name = f"the supervisor of {remote}", str(content.get("name"))
                self._give_up(stopped_from_outside(what, name, node=remote.name))

    def lose(self, remote: RemoteNode, why: str) -> None:
        """A node is there no more."""
        if self._nodes is not None:
            self._nodes.lose(remote, why)
        elif self._open:
            self._fail(f"{remote} is gone before the step could start: {why}")

    def forget(self, arrival: _Arrival) -> None:
        """Who connected was no node of this task, or is one."""
        self._arrivals.discard(arrival)

    def _try_when_all_are_ready(self) -> None:
        if len(self._here) < self._seat.nodes - 1 or not all(r.ready for r in self._here.values()):
            return
        self._deadline.cancel()  # from here on each answers in seconds, or is gone
        launch = self.spec.launch
        assert launch is not None  # nothing else has several nodes
        try:
            self._port = keep_port(launch)
            self._trial = children.private(self._port.answer())
        except BackendError as error:
            self._fail(error.in_short, error.fix)
            return
        for remote in self._here.values():
            remote.connection.say("try", address=self._address, port=self._port.number)

    def _go_on_when_all_reach_rank_0(self) -> None:
        if self._port is None or not all(remote.reaches for remote in self._here.values()):
            return
        name = self._seat.name or os.uname().nodename
        remotes = list(self._here.values())
        self._nodes = Nodes(
            self.spec, remotes, address=self._address, name=name, port=self._port, bury=self._bury
        )
        self._shut()
        self._complete(self._nodes)

    @property
    def _address(self) -> str:
        """The address of this node by which others have come."""
        return next(iter(self._here.values())).connection.own_address

    # -- who does not -----------------------------------------------------------------------------

    def _shut(self) -> None:
        self._open = False
        if self._trial is not None:
            self._trial.close()
        self._deadline.cancel()
        self._quiet.cancel()
        self._loop.forget(self._listener.detach())

    def _say(self) -> None:
        missing, others = self._missing()
        if missing:
            self._tell(f"waits for {missing} of {self._seat.nodes}")
        elif others:
            self._tell(f"waits for {others} to be ready")

    def _missing(self) -> tuple[str, str]:
        absent = [n for n in range(1, self._seat.nodes) if n not in self._here]
        unready = [str(remote) for remote in self._here.values() if not remote.ready]
        numbers = ", ".join(map(str, absent))
        return (f"node{'s' if len(absent) > 1 else ''} {numbers}" if absent else ""), ", ".join(unready)

    def _late(self) -> None:
        missing, unready = self._missing()
        waited = f"within {self._seat.wait:g} s"
        if not missing:
            self._fail(f"{unready} came, but was not ready {waited}")
            return
        notes = [note for n in range(1, self._seat.nodes) if (note := self._note(n))]
        where = self._seat.main or os.uname().nodename
        told = " ".join(notes) or (
            f"Nobody has connected from there to this node ({where}, port {self.port}), and no node has left "
            "a word in the store."
        )
        self._fail(
            f"{missing} of {self._seat.nodes} did not come {waited}. {told}",
            None if notes else "See whether that node has started, and whether it sees the same store.",
        )

    def _note(self, number: int) -> str | None:
        """What a node that cannot come has left in the store."""
        try:
            return self._store.read_trouble(self.spec.task, self.spec.attempt, number)
        except StoreError:
            return None

    def _fail(self, message: str, fix: str | None = None) -> None:
        self._give_up(Failure(reason="infrastructure", message=message, fix=fix))

    def _give_up(self, failure: Failure) -> None:
        self.cancel()
        self._refuse(failure)


class _Arrival:
    """Somebody who has connected."""

    def __init__(
        self, gathering: Rendezvous, loop: Loop, connection: socket.socket, *, silence: float
    ) -> None:
        self.drawn = draw_lot()
        self._gathering = gathering
        self._remote: RemoteNode | None = None
        self.connection = Connection(loop, connection, self._take, self._lost, silence=silence)
        self.connection.frames.largest = GREETING
        self._late: Timer = loop.after(INTRODUCTION, self.close)
        self.connection.say("who", lot=self.drawn, form=FORM)

    def close(self) -> None:
        """Close the connection of a supervisor that does not belong here."""
        self._late.cancel()
        self._gathering.forget(self)
        self.connection.close()

    def _take(self, frame: Frame) -> None:
        if self._remote is not None:
            self._gathering.take(self._remote, frame)
            return
        content = frame.content()
        if content["say"] == "beat":
            return
        try:
            with reading():
                self._remote = self._gathering.admit(self, content)
        except WireError as error:
            self.connection.say("refused", why=error.what)
            self.close()
            return
        self.connection.frames.largest = LARGEST
        self._late.cancel()
        self._gathering.forget(self)

    def _lost(self, why: str) -> None:
        if self._remote is not None:
            self._gathering.lose(self._remote, why)
        else:
            self.close()


AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before it is tried again; then as at last."""
ANSWER = 5.0
"""Seconds for the other machine to answer."""
NOTE_AFTER = 3.0
"""Seconds after which a word is left in the store: node 0 may be up and wait."""


class Joining:
    """Connects to node 0, again and again until it answers; ``lost`` is called once, with the reason."""

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        seat: Seat,
        *,
        facts: Mapping[str, Any],
        joined: Callable[[Connection], None],
        take: Callable[[Frame], None],
        lost: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._seat = seat
        self._facts = facts
        self._joined = joined
        self._take_later = take
        self._lost = lost
        self._name = attempt_name(spec)
        self._note = partial(store.write_trouble, spec.task, spec.attempt, seat.node)
        self._noted = False
        self._began = time.monotonic()
        self._tries = 0
        self._problem: str | None = None
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._drawn = draw_lot()
        self._welcome = False
        self._timer = Timer(self._try)
        self._try()

    # -- connecting -------------------------------------------------------------------------------

    def _try(self) -> None:
        seat = self._seat
        try:
            # Names may take seconds to look up; this process has nothing else to do until it is there.
            family, kind, protocol, _, where = socket.getaddrinfo(
                seat.main, seat.port, type=socket.SOCK_STREAM
            )[0]
            self._socket = children.private(socket.socket(family, kind, protocol))
            if seat.address is not None:
                self._socket.bind((seat.address, 0))
            self._socket.setblocking(False)
            code = self._socket.connect_ex(where)
        except OSError as error:
            self._failed(error)
            return
        if code not in (0, errno.EINPROGRESS):
            self._failed(OSError(code, os.strerror(code)))
            return
        self._loop.watch_writable(self._socket.fileno(), self._connected)
        self._timer = self._loop.after(ANSWER, self._unanswered)

    def _unanswered(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
        self._failed(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _connected(self) -> None:
        assert self._socket is not None
        self._timer.cancel()
        self._loop.unwatch(self._socket.fileno())
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            kind = ConnectionRefusedError if code == errno.ECONNREFUSED else OSError
            self._failed(kind(code, os.strerror(code)))
            return
        connection, self._socket = self._socket, None
        self._connection = Connection(
            self._loop, connection, self._take, self._left, silence=self._seat.silence
        )

    def _failed(self, error: OSError) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        seat = self._seat
        said = unreachable(
            error,
            str(seat.main),
            seat.port,
            timeout=ANSWER,
            source=f"node {seat.node} ({seat.name or os.uname().nodename})",
            target="node 0",
        )
        self._again(f"{said.in_short} {said.fix or ''}".strip())

    def _again(self, problem: str) -> None:
        waited = time.monotonic() - self._began
        if problem != self._problem and waited >= NOTE_AFTER:
            self._problem = problem
            with contextlib.suppress(StoreError):  # then node 0 tells less
                self._note(problem)
                self._noted = True
        if waited >= self._seat.wait:
            self._end(problem)
            return
        self._timer = self._loop.after(AGAIN[min(self._tries, len(AGAIN) - 1)], self._try)
        self._tries += 1

    # -- introducing itself -----------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if self._welcome:
            self._take_later(frame)
            return
        content = frame.content()
        seat = self._seat
        if content["say"] == "who":
            assert self._connection is not None
            self._connection.say(
                "here",
                form=FORM,
                node=seat.node,
                name=seat.name or os.uname().nodename,
                proof=proof_of(seat.token, str(content.get("lot")), "node", seat.node, self._name),
                lot=self._drawn,
                facts=dict(self._facts),
            )
        elif content["say"] == "welcome":
            if not proves(content.get("proof"), seat.token, self._drawn, "main", seat.node, self._name):
                raise WireError("who listens there is not node 0 of this attempt")
            self._welcome = True
            with contextlib.suppress(StoreError):
                if self._noted:
                    self._note("")
            assert self._connection is not None
            self._joined(self._connection)
        elif content["say"] == "refused":
            assert self._connection is not None
            self._connection.close()
            self._end(f"node 0 has refused node {seat.node}: {content.get('why')}")

    def _left(self, why: str) -> None:
        if self._welcome:
            self._end(why)
        else:  # somebody else may have had the port until now
            self._again(f"who listens at {self._seat.main}:{self._seat.port} is not node 0: {why}")

    def _end(self, why: str) -> None:
        self._timer.cancel()
        self._lost(why)
