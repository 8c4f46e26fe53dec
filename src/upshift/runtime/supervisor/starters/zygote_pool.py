"""The fork server's end of its zygote: step processes that are there before they are needed."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from os import _exit
from typing import Any, NamedTuple

from upshift.model.spec import TaskSpec, encode
from upshift.runtime import forks, proc
from upshift.runtime.confine import Confinement, Spawned, detach
from upshift.runtime.loop import Loop
from upshift.runtime.proc import Consumed, Strays
from upshift.runtime.sockets import PACKET
from upshift.runtime.supervisor.starters import zygote

Exited = Callable[[int, int, Consumed], None]
"""Takes a process id, its wait status, and what it has consumed."""


ZYGOTES_IN_VAIN = 3
"""How many may die one after the other without a word before they are given up."""


class Spare(NamedTuple):
    """A step process that waits for its task at the other end of ``orders``."""

    born: Spawned
    orders: int


class ZygotePool:
    """Keeps spares, and starts tasks in them."""

    def __init__(
        self,
        loop: Loop,
        *,
        exited: Exited,
        changed: Callable[[], None],
        kin: Callable[[], Collection[int]],
    ) -> None:
        self.unsafe: str | None = None
        self._loop = loop
        self._exited = exited
        self._changed = changed
        self._kin = kin
        self._spares: collections.deque[Spare] = collections.deque()
        self._asked = 0
        self._in_vain = 0
        self._taken: set[int] = set()
        self._strays = Strays()
        self._opened: list[Mapping[str, Any]] = []
        self._preload: Mapping[str, Any] | None = None
        self._devices: Mapping[str, Any] | None = None
        self._inherited = frozenset(_open_descriptors())
        self.pid = 0
        self._connection: socket.socket
        self._start()

    def open(self, store: str, options: Mapping[str, str]) -> None:
        """Let the zygote open a store, so that step processes need not."""
        self._opened.append({"do": "open", "store": store, "options": options})
        self._say(self._opened[-1])

    def preload(self, code: Mapping[str, Any], module: str, after: Mapping[str, str]) -> None:
        """Let the zygote import the module of the user's that has the steps, and before it what is needed."""
        self._preload = {"do": "preload", "code": code, "module": module, "after": after}
        self._say(self._preload)

    def keep(self, count: int) -> None:
        """Ask for more spares until this many are there or on their way."""
        while self.unsafe is None and len(self._spares) + self._asked < count:
            try:
                self._say({"do": "fork"})
            except BlockingIOError:  # it has enough to do; each spare that comes leads here again
                return
            self._asked += 1

    def ready(self, count: int = 1) -> bool:
        """Whether there are so many spares."""
        return len(self._spares) >= count

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int] = ()) -> Spawned:
        """Give the task to a spare; there must be one."""
        if spec.granted is not None and spec.granted.gpus:
            self._expect_devices()
        born, orders = self._spares.popleft()
        self._taken.add(born.pid)
        bounds = bounds.heard_at(born.messages)
        order = json.dumps({"spec": encode(spec), "bounds": encode(bounds)}).encode()
        try:
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=orders) as connection,
                contextlib.suppress(BrokenPipeError, ConnectionResetError),
            ):  # a spare that was killed meanwhile: its exit is told by itself
                sent = socket.send_fds(connection, [order], held) if held else 0
                connection.sendall(order[sent:])
        except OSError:  # the spare gets no order, and ends
            _close(born)
            raise
        return born

    def _expect_devices(self) -> None:
        """Tell the zygote to import what steps with devices need, so that later ones find it there."""
        if self._devices is None:
            message = {"do": "devices"}
            with contextlib.suppress(BlockingIOError):  # it has enough to do; the next one says it
                self._say(message)
                self._devices = message

    def close(self) -> None:
        """End the zygote and its spares."""
        self._drop_spares()
        if self._connection.fileno() >= 0:
            self._loop.forget(self._connection.detach())
        self._end_zygote()

    def _start(self) -> None:
        """Start a zygote, which has open what was so from the first: the lock, files of the user's modules.

        Of what was opened for the attempts since, a further zygote and its steps must keep nothing alive.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        forks.private(ours)
        parent = os.getpid()
        self.pid = os.fork()  # this process has one thread
        if self.pid == 0:
            try:
                self._loop.abandon()
                for descriptor in _open_descriptors() - self._inherited - {theirs.fileno()}:
                    os.close(descriptor)
                detach(parent)
            except BaseException:
                _exit(1)
            zygote.main(theirs)
        theirs.close()
        ours.setblocking(False)
        self._connection = ours
        self._loop.watch(ours.fileno(), self._receive)

    def _end_zygote(self) -> None:
        proc.kill([self.pid])  # it may be in a module of the user's that never comes to its end
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _say(self, message: Mapping[str, Any]) -> None:
        if self._connection.fileno() < 0:  # there is no zygote any more
            return
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # told by _receive as well
            self._connection.send(json.dumps(message).encode())

    def _receive(self) -> None:
        try:
            packet, descriptors = self._packet()
        except BlockingIOError:
            return
        if not packet:
            self._lost()
            return
        message = json.loads(packet)
        self._in_vain = 0
        if message["event"] == "spare":
            self._asked -= 1
            log, seen, messages, orders = descriptors
            born = Spawned(message["pid"], log, seen, messages, message["baseline"])
            self._spares.append(Spare(born, orders))
            self._changed()
        elif message["event"] == "exit":
            self._ended(message["pid"], message["status"], Consumed(*message["consumed"]))
        elif message["event"] == "unsafe":
            self._asked -= 1
            self.unsafe = message["why"]
            self._changed()

    def _packet(self) -> tuple[bytes, list[int]]:
        """What the zygote says next, with its descriptors; empty: it is gone, and has said no more."""
        for _ in range(2):  # that it has left something unread is told once, before what it has said itself
            with contextlib.suppress(ConnectionError):
                packet, descriptors, _, _ = socket.recv_fds(
                    self._connection, PACKET, 4, socket.MSG_CMSG_CLOEXEC
                )
                return packet, descriptors
        return b"", []

    def _ended(self, pid: int, status: int, consumed: Consumed) -> None:
        if pid in self._taken:
            self._taken.discard(pid)
            self._exited(pid, status, consumed)
            return
        for spare in self._spares:  # it was killed before it had a task
            if spare.born.pid == pid:
                self._discard(spare)
                self._spares.remove(spare)
                break
        self._changed()

    def _lost(self) -> None:
        """The zygote died, so its children do; they are this process's own now. Start another one.

        Not where it can do nothing anyhow, or another one died before it could do anything, time and again.
        """
        self._loop.forget(self._connection.detach())
        self._drop_spares()
        self._asked = 0
        self._end_zygote()
        proc.kill(self._taken)  # one may have refused to die with its parent
        ends = [os.wait4(pid, 0) for pid in self._taken]
        self._taken.clear()
        self._strays.kill(self._kin())
        for pid, status, usage in ends:
            self._exited(pid, status, Consumed.of(usage))
        self._in_vain += 1
        if self.unsafe is None and self._in_vain > ZYGOTES_IN_VAIN:
            self.unsafe = "the zygote dies as soon as it is started"
        if self.unsafe is None:
            self._start()
            for message in self._opened:
                self._say(message)
            for wanted in (self._preload, self._devices):
                if wanted is not None:
                    self._say(wanted)
        self._changed()

    def _drop_spares(self) -> None:
        while self._spares:
            self._discard(self._spares.popleft())

    def _discard(self, spare: Spare) -> None:
        _close(spare.born)
        os.close(spare.orders)


def _close(born: Spawned) -> None:
    for descriptor in (born.log, born.seen, born.messages):
        os.close(descriptor)


def _open_descriptors() -> set[int]:
    """The open descriptors of this process."""
    found = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing
            os.fstat(descriptor)
            found.add(descriptor)
    return found
