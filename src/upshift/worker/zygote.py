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
from typing import Any, NoReturn

from upshift.spec import (
    Artifact,
    Code,
    Collected,
    EntryPoint,
    Hardware,
    TaskId,
    TaskSpec,
    decode,
    from_json,
    to_json,
)
from upshift.store import serializers
from upshift.store.store import Store, open_store
from upshift.worker import proc, sockets, step
from upshift.worker.confine import Confinement, become_subreaper, detach, enter, host_facts
from upshift.worker.peer import PACKET
from upshift.worker.pools import Pools, unsafe_to_fork
from upshift.worker.randomness import Randomness
from upshift.worker.step import Outcome, Seen
from upshift.worker.strays import kill_strays
from upshift.worker.streams import own_streams

MOST_HELD = 250
"""Descriptors that come with an order, at most; the kernel stops at 253 (``SCM_MAX_FD``)."""


def main(connection: socket.socket) -> NoReturn:
    """Be the zygote at the other end of ``connection``, until that is closed."""
    try:
        Zygote(connection).run()
    except BaseException as error:  # such as that of an import, where a file of the user's hides a module
        why = f"the zygote failed: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send(json.dumps({"event": "unsafe", "why": why}).encode())
    finally:
        os._exit(0)


class Zygote:
    """Forks step processes, and tells when they have ended."""

    def __init__(self, connection: socket.socket) -> None:
        become_subreaper()
        self._connection = sockets.private(connection)
        self._live: set[int] = set()
        self._stores: dict[str, Store] = {}
        self._pools = Pools()
        self._randomness = Randomness()
        self._host_memory: int = host_facts()["memory"]
        self._modules = 0
        self._baseline = 0
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # what matters is the byte in the pipe
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the fork server has gone."""
        serializers.prepare()
        _rehearse()
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
                    store = open_store(message["store"], durability=message["durability"])
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
            kill_strays(self._live)
        for pid, status, consumed in ended:
            self._tell({"event": "exit", "pid": pid, "status": status, "consumed": consumed})

    def _preload(self, message: Mapping[str, Any]) -> None:
        """Import the user's module, so that step processes have it. If that fails, they tell why."""
        with contextlib.suppress(Exception, SystemExit):
            step.import_entry(decode(Code, message["code"]), message["module"])
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the module may have set its own

    def _fork(self) -> None:
        why = unsafe_to_fork()
        if why is not None:
            self._tell({"event": "unsafe", "why": why})
            return
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._pools.find()
            self._randomness.capture()
            gc.collect()
            gc.freeze()
            self._baseline = proc.unreclaimable(os.getpid())
        log, log_end = os.pipe()
        messages, messages_end = os.pipe()
        seen, seen_end = os.pipe()
        orders_end, orders = (end.detach() for end in socket.socketpair())
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads: looked at above
                pid = os.fork()
            if pid == 0:
                for descriptor in (log, seen, messages, orders, self._woken):
                    os.close(descriptor)
                self._be_spare(parent, log_end, seen_end, messages_end, orders_end)
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

    def _be_spare(self, parent: int, log: int, seen: int, messages: int, orders: int) -> NoReturn:
        code = 0
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            detach(parent)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            own_streams()
            if order := _order(orders):
                self._be_step(order, seen, messages)
        except OSError as error:
            step.refuse(messages, error)
            code = 1
        finally:
            os._exit(code)

    def _be_step(self, order: bytes, seen: int, messages: int) -> None:
        data = json.loads(order)
        spec, bounds = decode(TaskSpec, data["spec"]), decode(Confinement, data["bounds"])
        enter(bounds)
        self._pools.size(bounds.threads)
        step.run(
            spec,
            self._stores.get(spec.store) or open_store(spec.store, durability=spec.durability),
            bounds=bounds,
            host_memory=self._host_memory,
            sightings=seen,
            messages=messages,
            randomness=self._randomness,
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


def _prepare_for_devices() -> None:
    """Have what each step with devices imports."""
    with contextlib.suppress(Exception):  # the step says it
        importlib.import_module("upshift.worker.sighting")


def _rehearse() -> None:
    """Do once what every step process does, so that none has to build what is then at hand."""
    artifact = Artifact(digest="", serializer="json", type="int", bytes=1, inline="")
    spec = TaskSpec(
        task=TaskId(run="", step=""),
        attempt=1,
        pipeline="",
        entry=EntryPoint(module="", qualname=""),
        code=Code(project=""),
        store="",
        inputs={"value": artifact, "list": Collected(items=(artifact,))},
        granted=Hardware(cpu_count=1),
    )
    for record in (spec, Confinement(), Seen(cpu_count=1, memory=1), Outcome(outputs={"output": artifact})):
        from_json(type(record), to_json(record))
