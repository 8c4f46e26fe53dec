"""The process that step processes are forked from. It has the user's modules, and nothing to do.

A fork copies every page that parent or child write to afterwards, so whoever is forked from often
had better be small and idle. That is why the fork server does not fork itself: it asks its zygote,
which forks a *spare* ahead of time. A spare is a step process without a task: it has done whatever
can be done before one is known, and waits at the end of a socket for its spec, and for the locks of the
devices that it was granted.

The socket to the fork server takes ``open`` (a store), ``preload``, ``devices`` (there are steps that get
some) and ``fork``; it gives ``spare`` (with the other ends of its pipes and its socket), ``exit`` and
``unsafe``.
"""

from __future__ import annotations

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
from collections.abc import Mapping
from functools import partial
from os import _exit
from typing import Any, NoReturn

from upshift.model.spec import (
    Artifact,
    Code,
    Collected,
    EntryPoint,
    Hardware,
    TaskId,
    TaskSpec,
    decode,
    encode,
    to_json,
)
from upshift.runtime import forks, proc
from upshift.runtime.confine import (
    Confinement,
    become_subreaper,
    detach,
    enter,
    forking,
    host_facts,
)
from upshift.runtime.messages import Outcome, Seen
from upshift.runtime.proc import Strays
from upshift.runtime.sockets import PACKET
from upshift.runtime.step import step
from upshift.runtime.storage import artifacts, serializers
from upshift.runtime.storage.manifest import State
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.streams import own_streams
from upshift.runtime.supervisor.starters import asked_at_import
from upshift.runtime.supervisor.starters.thread_pools import Pools, unsafe_to_fork

MOST_HELD = 250
"""Descriptors that come with an order, at most; the kernel stops at 253 (``SCM_MAX_FD``)."""

_MANY, _REHEARSALS = 16, 12
"""After so many forks more are to be expected: then what each process does is rehearsed so often that Python
has specialized it, which none of them lives long enough for."""

WARNED = sys.version_info >= (3, 12)
"""Whether a fork warns of threads."""


def main(connection: socket.socket) -> NoReturn:
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
        self._connection = forks.private(connection)
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
                    _prepare_for_devices()
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
        _understood(self._example)
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
        spec, bounds = _understood(order)
        outdated = asked_at_import.outdated(spec, bounds)
        enter(bounds)
        self._pools.size(bounds.threads, bounds.environment)
        if outdated:
            from upshift.runtime.supervisor.starters import direct  # what no other step needs is not imported

            direct.start_over(spec, bounds, seen, messages)
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


def _understood(order: bytes) -> tuple[TaskSpec, Confinement]:
    data = json.loads(order)
    return decode(TaskSpec, data["spec"]), decode(Confinement, data["bounds"])


def _prepare_for_devices() -> None:
    """Import what each step with devices needs."""
    with contextlib.suppress(Exception):  # the step says it
        importlib.import_module("upshift.runtime.step.sighting")


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
    return json.dumps({"spec": encode(spec), "bounds": encode(bounds)}).encode()
