"""How the supervisor of a further node finds that of the first one: it connects, and proves who it is."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from upshift.model.spec import TaskSpec
from upshift.runtime import forks
from upshift.runtime.launch import wire
from upshift.runtime.launch.addresses import unreachable
from upshift.runtime.launch.seats import Seat
from upshift.runtime.launch.wire import FORM, Frame, WireError
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.several.connection import Connection
from upshift.runtime.supervisor.several.gathering import attempt_name

AGAIN = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before it is tried again; then as at last."""
ANSWER = 5.0
"""Seconds for the other machine to answer."""
NOTE_AFTER = 3.0
"""Seconds after which a word is left in the store: node 0 may be up and wait."""


class Joining:
    """Connects to node 0.

    Parameters
    ----------
    spec, store
        The task. A word in the store says why this node cannot come, for node 0 to tell.
    seat
        Of this node.
    facts
        What to say of this machine.
    joined
        Takes the connection, once node 0 has welcomed this node.
    take
        Takes frames that come from then on.
    lost
        Takes why there is no connection, or no more of one; nothing is tried after that.
    """

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
        self._note = store.trouble_path(spec.task, spec.attempt, seat.node)
        self._began = time.monotonic()
        self._tries = 0
        self._problem: str | None = None
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._drawn = wire.lot()
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
            self._socket = forks.private(socket.socket(family, kind, protocol))
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
            self._loop, connection, self._take, self._left, silence=self._seat.patience
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
            with contextlib.suppress(OSError):  # then node 0 tells less
                self._note.write_text(f"{problem}\n")
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
                proof=wire.proof(seat.token, str(content.get("lot")), "node", seat.node, self._name),
                lot=self._drawn,
                facts=dict(self._facts),
            )
        elif content["say"] == "welcome":
            if not wire.proves(content.get("proof"), seat.token, self._drawn, "main", seat.node, self._name):
                raise WireError("who listens there is not node 0 of this attempt")
            self._welcome = True
            with contextlib.suppress(OSError):
                self._note.unlink(missing_ok=True)
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
