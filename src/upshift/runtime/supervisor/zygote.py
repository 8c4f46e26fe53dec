"""The zygote, which step processes are forked from, and the pool that the fork server keeps of them.

A fork copies every page that parent or child write to afterwards, so whoever is forked from often had better
be small and idle. So the fork server does not fork itself: it asks its zygote, which has the user's modules
and nothing to do, and which forks a *spare* ahead of time. A spare is a step process without a task: it has
done whatever can be done before one is known, and waits at the end of a socket for its spec, and for the
locks of the devices that it was granted.

The socket to the fork server takes ``open`` (a store), ``preload``, ``devices`` (there are steps that get
some) and ``fork``; it gives ``spare`` (with the other ends of its pipes and its socket), ``exit`` and
``unsafe``.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os import _exit
from typing import Any, NamedTuple, NoReturn

from upshift.model.spec import (
    Artifact,
    Code,
    Collected,
    EntryPoint,
    Hardware,
    TaskId,
    TaskSpec,
    decode,
    to_json,
)
from upshift.runtime import children, proc
from upshift.runtime.children import PACKET
from upshift.runtime.confine import Confinement, Spawned, become_subreaper, detach, enter, forking, host_facts
from upshift.runtime.loop import Loop
from upshift.runtime.messages import Outcome, Seen, own_streams
from upshift.runtime.proc import Consumed, Strays
from upshift.runtime.step import step
from upshift.runtime.storage import artifacts, serializers
from upshift.runtime.storage.manifest import State
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor import forkable, starters
from upshift.runtime.supervisor.forkable import Pools, unsafe_to_fork

Exited = Callable[[int, int, Consumed], None]
"""Takes a process id, its wait status, and what it has consumed."""
SCARCE = 1.0
"""Seconds after which it is tried again to open something, where no more files may be open."""
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
        order = starters.order_of(spec, bounds)
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
        children.private(ours)
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
            be_zygote(theirs)
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
        if message["event"] == "spare" and len(descriptors) < 4:  # no more may be open: it ends without them
            for descriptor in descriptors:
                os.close(descriptor)
            self._loop.after(SCARCE, self._ask_again)
        elif message["event"] == "spare":
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

    def _ask_again(self) -> None:
        self._asked -= 1
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
        os.close(spare.orders)
        _close(spare.born)


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


MOST_HELD = 250
"""Descriptors that come with an order, at most; the kernel stops at 253 (``SCM_MAX_FD``)."""

_MANY, _REHEARSALS = 16, 12
"""After so many forks more are to be expected: then what each process does is rehearsed so often that Python
has specialized it, which none of them lives long enough for."""

WARNED = sys.version_info >= (3, 12)
"""Whether a fork warns of threads."""


def be_zygote(connection: socket.socket) -> NoReturn:
    """Be the zygote at the other end of ``connection``, until that is closed."""
    try:
        Zygote(connection).run()
    except BaseException as error:  # such as that of an import, where a file of the user's hides a module
        why = f"the zygote failed: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send(json.dumps({"event": "unsafe", "why": why}).encode())
    finally:
        _exit(0)


class Zygote:
    """Forks step processes, and tells when they have ended."""

    def __init__(self, connection: socket.socket) -> None:
        become_subreaper()
        self._connection = children.private(connection)
        self._live: set[int] = set()
        self._strays = Strays()
        self._stores: dict[str, Store] = {}
        self._pools = Pools()
        self._host_memory: int = host_facts()["memory"]
        self._modules = 0
        self._forks = 0
        self._baseline = 0
        self._example = _example()
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # what matters is the byte in the pipe
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the fork server has gone."""
        serializers.prepare()
        self._rehearse()
        poller = select.poll()
        poller.register(self._connection.fileno(), select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == self._woken:
                    os.read(self._woken, 512)
                    self._reap()
                    continue
                packet = self._connection.recv(PACKET)
                if not packet:
                    return
                message = json.loads(packet)
                if message["do"] == "fork":
                    self._fork()
                elif message["do"] == "open":
                    store = open_store(message["store"], **message["options"])
                    self._stores[store.address] = store
                elif message["do"] == "devices":
                    with contextlib.suppress(Exception):  # the step says it
                        importlib.import_module("upshift.runtime.step.sighting")
                else:
                    self._preload(message)

    def _reap(self) -> None:
        ended = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._live:
                    self._live.discard(pid)
                    ended.append((pid, status, proc.Consumed.of(usage)))
        if ended:
            self._strays.kill(self._live)
        for pid, status, consumed in ended:
            self._tell({"event": "exit", "pid": pid, "status": status, "consumed": consumed})

    def _preload(self, message: Mapping[str, Any]) -> None:
        """Import the user's module, so that step processes have it. If that fails, they tell why."""
        with contextlib.suppress(Exception, SystemExit):
            code = decode(Code, message["code"])
            step.import_before(code, message["after"], in_image=False)
            step.import_entry(code, message["module"])
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the module may have set its own

    def _fork(self) -> None:
        why = unsafe_to_fork()
        if why is not None:
            self._tell({"event": "unsafe", "why": why})
            return
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._pools.find()
            gc.collect()
            gc.freeze()
            self._baseline = proc.unreclaimable(os.getpid())
        self._forks += 1
        if self._forks == _MANY:
            with contextlib.suppress(Exception):
                for _ in range(_REHEARSALS):
                    self._rehearse()
            gc.freeze()
        log, log_end = os.pipe()
        messages, messages_end = os.pipe()
        seen, seen_end = os.pipe()
        orders_end, orders = (end.detach() for end in socket.socketpair())
        parent = os.getpid()
        try:
            with forking():
                with warnings.catch_warnings() if WARNED else contextlib.nullcontext():
                    if WARNED:
                        warnings.simplefilter("ignore", DeprecationWarning)  # threads: looked at above
                    pid = os.fork()
                if pid == 0:
                    for descriptor in (log, seen, messages, orders, self._woken):
                        os.close(descriptor)
                    spare = partial(self._be_spare, parent, log_end, seen_end, messages_end, orders_end)
                    step.live(spare, messages_end)
            self._live.add(pid)
            self._tell(
                {"event": "spare", "pid": pid, "baseline": self._baseline}, log, seen, messages, orders
            )
        except OSError as error:
            self._tell({"event": "unsafe", "why": f"no process could be started: {error}"})
        finally:
            for descriptor in (log, log_end, seen, seen_end, messages, messages_end, orders_end, orders):
                os.close(descriptor)

    def _tell(self, message: Mapping[str, Any], *descriptors: int) -> None:
        with contextlib.suppress(ConnectionError):  # the fork server is gone, and this ends too
            socket.send_fds(self._connection, [json.dumps(message).encode()], descriptors)

    def _be_spare(self, parent: int, log: int, seen: int, messages: int, orders: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        detach(parent)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        own_streams()
        with contextlib.suppress(Exception):  # it is said when it matters
            self._rehearse()  # the first time copies pages of memory: now, while another step runs
        if order := _order(orders):
            self._be_step(order, seen, messages)

    def _rehearse(self) -> None:
        """Do once what every step process does, so that none has to build what is then at hand."""
        starters.understood(self._example)
        proc.own_memory()
        proc.own_consumption()
        for store in self._stores.values():
            artifacts.load(artifacts.save(0, store), store)  # what is that small is in no file
            if "upshift.authoring.flow.task" in sys.modules:  # a step of a flow goes on from a state
                state = artifacts.load(artifacts.save(State({"": 0}), store), store)
                assert isinstance(state, State)
                artifacts.save(state.replaced(values={"": state[""]}), store)
        to_json(Seen(cpu_count=1, memory=1))
        to_json(Outcome())

    def _be_step(self, order: bytes, seen: int, messages: int) -> None:
        spec, bounds, _ = starters.understood(order)
        outdated = forkable.outdated(spec, bounds)
        enter(bounds)
        self._pools.size(bounds.threads, bounds.environment)
        if outdated:
            starters.start_over(spec, bounds, seen, messages)
        step.run(
            spec,
            self._stores.get(spec.store) or open_store(spec.store, **spec.store_options),
            bounds=bounds,
            host_memory=self._host_memory,
            sightings=seen,
            messages=messages,
        )


def _order(orders: int) -> bytes:
    """What a spare is told to do; empty: nothing any more.

    The descriptors that come with it stay open, here and in what this process starts: they hold its devices.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=orders) as connection:
        order, _, _, _ = socket.recv_fds(connection, PACKET, MOST_HELD)
        parts = [order]
        while parts[-1]:
            parts.append(connection.recv(PACKET))
    return b"".join(parts)


def _example() -> bytes:
    """An order like those that come."""
    artifact = Artifact(digest="", serializer="json", type="int", bytes=1, inline="")
    spec = TaskSpec(
        task=TaskId(run="", step=""),
        attempt=1,
        pipeline="",
        entry=EntryPoint(module="", qualname=""),
        code=Code(project="", paths=("",)),
        store="",
        inputs={"value": artifact, "list": Collected(items=(artifact,))},
        granted=Hardware(cpu_count=1, details={"enforced_by": {}}),
    )
    bounds = Confinement(environment={"": ""})
    return starters.order_of(spec, bounds)
