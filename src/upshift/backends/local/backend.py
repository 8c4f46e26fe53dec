"""The local backend: tasks on this machine, in processes of their own, with real limits.

A fork server that outlives the engine has the tasks; :class:`Link` is the engine's end of a connection to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from upshift.backends.base import (
    DEVICES,
    Ask,
    Capabilities,
    Capacity,
    Ended,
    Finding,
    Handle,
    Job,
    Logged,
    LogGrew,
    Noticed,
    Offer,
    Sink,
    Started,
    Waiting,
    secrets_of,
)
from upshift.backends.local.offers import MANNERS, ThisMachine, manners, offer
from upshift.backends.registry import invalid_option, refuse_options
from upshift.errors import BackendError, ConfigError, StoreUnavailable
from upshift.model.configuration import Target, make_folder
from upshift.model.settings.sizes import format_size
from upshift.model.spec import TaskSpec, encode
from upshift.runtime import children, proc
from upshift.runtime.children import PACKET, command_for_users
from upshift.runtime.supervisor import forkserver, server_files
from upshift.runtime.supervisor.forkable import OWN_THREAD_PREFIX, unsafe_to_fork
from upshift.runtime.supervisor.server_files import ServerFiles

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination


OPTIONS = (*MANNERS, "nodes")
"""The options of its targets."""
MOST_NODES = 64
"""How many nodes it rehearses, at most: each is a process more, with an address of its own."""
CLOSING = 5.0
"""Seconds that an idle fork server is given to leave, once nobody is connected."""
ANSWER = 30.0
"""Seconds in which a fork server takes what it is told, and answers; it does so in milliseconds."""


class LocalBackend:
    """Runs tasks on this machine, through a fork server that outlives the engine."""

    name: ClassVar[str] = "local"
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "disk", "shared_memory"},
        secrets=frozenset({"env", "file"}),
        remote=False,
        strict=False,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        refuse_options(target, OPTIONS)
        self._wait, self._share = manners(target)
        self._nodes = _nodes(target)
        for inside, outside in target.mounts.items():
            if os.path.realpath(inside) != os.path.realpath(outside):
                raise ConfigError(
                    f"target {target.name!r}: the local backend cannot place {outside} at {inside}",
                    why="Steps see this machine's own folders.",
                    fix=f"Make {inside} a link to {outside}, or leave the mount out.",
                )
        self._sink = sink
        self._machine = ThisMachine()
        self._server: Link | None = None
        self._links: dict[str, Link] = {}
        self._running: dict[Handle, str] = {}
        self._answers: dict[Handle, bool] = {}
        self._changed = threading.Condition()

    def capacity(self) -> Capacity:
        """The CPUs that this process may use, the memory of this machine or container, and its accelerators.

        Looking for those may take seconds, so they are None, not limited, until an offer was about some.
        """
        return Capacity(hardware=self._machine.hardware)

    def offer(self, ask: Ask) -> Offer:
        """The request, as far as this machine goes."""
        here = self._machine
        here.look_for(ask.request)
        lost = len(ask.avoid or ())
        return offer(ask.request, here.hardware, here.inventories, nodes=self._nodes, lost=lost)

    def findings(self) -> Iterator[Finding]:
        """What this machine has."""
        from upshift.runtime.accelerators.vendors import present  # a run that wants no devices needs none

        here = self._machine.hardware
        vendors = "".join(f", devices of {vendor.name}" for vendor in present())
        cpus = f"{here.cpu_count or 0:g} CPU" + ("s" if here.cpu_count != 1 else "")
        yield Finding(name="machine", text=f"{cpus}, {format_size(here.memory or 0)} of memory{vendors}")

    def destination(self) -> Destination | None:
        """Steps run in the environment of the run."""
        return None

    def scripts(self, jobs: Sequence[Job]) -> None:
        """It starts jobs itself."""

    def submit(self, jobs: Sequence[Job]) -> list[Handle | BackendError]:
        """Hand the tasks to the fork server, which is started for the first one."""
        return [self._submit(job) for job in jobs]

    def _submit(self, job: Job) -> Handle | BackendError:
        if self._server is None or not self._server.alive:
            self._server = start_server(job.spec, self._hear)
            self._links[self._server.place.name] = self._server
        server = self._server
        handle = server_files.handle(server.place.name, job.spec.task, job.spec.attempt)
        with self._changed:
            self._running[handle] = server.place.name
        spec = job.spec
        try:
            # Read when it is needed, and after the fork: no process but the server and the step has it.
            secrets = secrets_of(spec)
            server.say(
                "run",
                name=handle,
                store=spec.store,
                spec=job.spec_path,
                options=spec.store_options,
                secrets=secrets,
                wait=self._wait,
                share=self._share,
            )
        except BackendError as error:
            with self._changed:
                self._running.pop(handle, None)
            return error
        return handle

    def attach(self, jobs: Mapping[Handle, Job]) -> dict[Handle, Ended | None]:
        """Ask the fork servers of earlier engines, if they still live."""
        return {handle: None if self._attach(handle) else Ended(handle=handle) for handle in jobs}

    def _attach(self, handle: Handle) -> bool:
        name = handle.partition("/")[0]
        server = self._links.get(name)
        if server is None or not server.alive:
            server = find_server(name, self._hear)
            if server is None:
                return False
            self._links[name] = server
        with self._changed:
            self._running[handle] = name
            self._answers.pop(handle, None)
            try:
                server.say("query", name=handle)
            except ServerGone:
                server_files.sweep(server.place)
                self._running.pop(handle, None)
                return False
            if not self._changed.wait_for(
                lambda: handle in self._answers or handle not in self._running, timeout=ANSWER
            ):
                raise server.silent()
            if not self._answers.pop(handle, False):
                self._running.pop(handle, None)
                return False
        return True

    def find(self, jobs: Sequence[Job]) -> list[Handle | None]:
        """Ask every fork server on this machine whether it has the tasks."""
        return [self._find(job) for job in jobs]

    def _find(self, job: Job) -> Handle | None:
        for path in sorted(server_files.ServerFiles("").folder.glob("*.sock")):
            handle = server_files.handle(path.stem, job.spec.task, job.spec.attempt)
            if self._attach(handle):
                return handle
        return None

    def cancel(self, handles: Sequence[Handle], *, grace: float) -> None:
        """SIGTERM to the steps' processes, SIGKILL after ``grace`` seconds."""
        for handle in handles:
            server = self._links.get(self._running.get(handle, ""))
            if server is not None and server.alive:
                server.say("cancel", name=handle, grace=grace)

    def close(self) -> None:
        """Let go of the fork server; it leaves when its tasks have ended."""
        with self._changed:
            busy = set(self._running.values())
        for name, server in self._links.items():
            server.close(wait=name not in busy)
        self._links.clear()

    def _hear(self, server: Link, message: Mapping[str, Any] | None) -> None:
        """What a fork server says; called on the thread of its link."""
        if message is None:
            self._lost(server)
            return
        handle = message["handle"]
        kind = message["event"]
        if kind == "waiting":
            self._sink(Waiting(handle=handle, why=message["why"]))
        elif kind == "started":
            self._sink(Started(handle=handle, node=self._machine.name))
        elif kind == "log":
            self._sink(LogGrew(handle=handle, size=message["size"]))
        elif kind == "logged":
            self._sink(Logged(handle=handle, values=message["values"], step=message["step"]))
        elif kind == "noticed":
            self._sink(Noticed(handle=handle, text=message["text"]))
        elif kind == "ended":
            with self._changed:
                self._running.pop(handle, None)
            problem = message["problem"]
            self._sink(Ended(handle=handle, reason="infrastructure" if problem else None, message=problem))
        elif kind == "status":
            with self._changed:
                self._answers[handle] = message["running"]
                self._changed.notify_all()

    def _lost(self, server: Link) -> None:
        """A fork server died: so did its tasks. Make sure of it before anybody hears."""
        why = server.last_words()
        message = "the fork server died" + (f": {why.splitlines()[-1]}" if why else ", and its tasks with it")
        try:
            server_files.sweep(server.place)
        except BackendError as error:
            message = f"{message}; and {error.in_short}"
        with self._changed:
            gone = [handle for handle, name in self._running.items() if name == server.place.name]
            for handle in gone:
                del self._running[handle]
            self._changed.notify_all()
        for handle in gone:
            self._sink(Ended(handle=handle, reason="infrastructure", message=message))


def _nodes(target: Target) -> int:
    """How many nodes are rehearsed on this machine, at most. Raises ``ConfigError``."""
    nodes = target.options.get("nodes", 1)
    if type(nodes) is not int or not 1 <= nodes <= MOST_NODES:
        raise invalid_option(
            target, "nodes", f"Write a number of nodes to rehearse on this machine, from 1 to {MOST_NODES}."
        )
    return nodes


class ServerGone(BackendError):
    """The fork server has died."""


class Link:
    """A connection to a fork server."""

    def __init__(
        self,
        place: ServerFiles,
        connection: socket.socket,
        # takes what the server says, on a thread of the link's own; ``None`` once it is gone
        hear: Callable[[Link, Mapping[str, Any] | None], None],
        pid: int | None = None,  # the server's process, where it is a child of this one
    ) -> None:
        self.place = place
        self.alive = True
        children.limit_sending(connection, ANSWER)
        self._connection = connection
        self._hear = hear
        self._pid = pid
        self._thread = threading.Thread(
            target=self._listen, name=f"{OWN_THREAD_PREFIX}{place.name}", daemon=True
        )
        self._thread.start()

    def say(self, do: str, **message: object) -> None:
        """Ask the server for something.

        Raises
        ------
        ServerGone
            It has died.
        BackendError
            It lives, and takes nothing.
        """
        try:
            self._connection.send(json.dumps({"do": do, **message}).encode())
        except BlockingIOError:
            raise self.silent() from None
        except OSError as error:
            raise ServerGone(
                "the fork server of this run is gone", why=self.last_words() or str(error)
            ) from None

    def last_words(self) -> str | None:
        """What the server printed before it died."""
        try:
            text = self.place.errors.read_text(errors="replace").strip()
        except OSError:
            return None
        return text[-2000:] or None

    def silent(self) -> BackendError:
        """The error for a server that lives and does not answer; whether its tasks run cannot be told."""
        pid, _ = children.peer(self._connection)
        found = proc.stat(pid) if pid else None
        stopped = found is not None and found.state in "Tt"
        who = f"the fork server, process {pid}," if pid else "the fork server"
        return BackendError(
            f"{who} does not answer, so it cannot be told whether tasks of the run still run",
            why="It is stopped." if stopped else f"It was asked {ANSWER:g} seconds ago.",
            fix=(f"Let it continue: kill -CONT {pid}\n" if stopped else "")
            + f"Or end it, and its tasks with it: kill -KILL {pid}\nThen run this again.",
        )

    def close(self, *, wait: bool) -> None:
        """Disconnect. With ``wait``, until the server has left; it leaves once nothing runs."""
        self.alive = False
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        if self._pid is not None:
            with contextlib.suppress(OSError):
                _await(self._pid, CLOSING if wait else 0.0)

    def _listen(self) -> None:
        while True:
            try:
                packet = self._connection.recv(PACKET)
            except OSError:
                packet = b""
            if not packet:
                break
            self._hear(self, json.loads(packet))
        if self.alive:
            self.alive = False
            self._hear(self, None)


def start_server(
    spec: TaskSpec,  # the first task: a fresh server imports its module
    hear: Callable[[Link, Mapping[str, Any] | None], None],  # as in :class:`Link`
) -> Link:
    """Start a fork server: a fork of this process if that is safe, else a fresh interpreter.

    Raises
    ------
    StoreUnavailable
        ``UPSHIFT_HOME`` cannot be written.
    """
    place = ServerFiles(f"{os.getpid()}-{secrets.token_hex(4)}")
    try:
        make_folder(place.folder)
        listener = children.private(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with children.address(place.socket) as address:
            listener.bind(address)
        listener.listen(forkserver.BACKLOG)
    except OSError as error:
        raise StoreUnavailable(
            f"Upshift cannot keep its state in {place.folder.parent}",
            why=error.strerror,
            fix="Set UPSHIFT_HOME to a folder that can be written.",
        ) from None
    fresh = unsafe_to_fork() is not None
    pid = _start_fresh(listener, place) if fresh else _fork(listener, place)
    listener.close()
    link = Link(place, _connect(place), hear, pid)
    if fresh and spec.entry.payload is None:
        entry = spec.entry
        link.say("preload", code=encode(spec.code), module=entry.module, after=dict(entry.after))
    return link


def find_server(name: str, hear: Callable[[Link, Mapping[str, Any] | None], None]) -> Link | None:
    """Connect to a fork server that an earlier engine started.

    If it is dead, what is left of it is killed, and None is returned only then. One that has not made
    its lock yet is about to start, and has no tasks.

    Raises
    ------
    BackendError
        Something of a dead one cannot be ended.
    """
    place = ServerFiles(name)
    try:
        connection = _connect(place)
    except OSError:
        server_files.sweep(place)
        return None
    pid, _ = children.peer(connection)
    found = proc.stat(pid) if pid else None
    if pid and (found is None or not found.alive):  # what it has left behind keeps its socket
        connection.close()
        server_files.sweep(place)
        return None
    return Link(place, connection, hear)


def _fork(listener: socket.socket, place: ServerFiles) -> int:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # else the child would write it out once more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: looked at by unsafe_to_fork
        with listener.dup() as own:  # every other fork closes the listener
            pid = os.fork()
            if pid == 0:
                forkserver.serve(own, place)
    return pid


def _start_fresh(listener: socket.socket, place: ServerFiles) -> int:
    from upshift.runtime.supervisor.forkable import inherited

    process = subprocess.Popen(
        command_for_users("--forkserver", str(listener.fileno()), place.name),
        pass_fds=(listener.fileno(),),
        start_new_session=True,
        env=inherited(),
        stdin=subprocess.DEVNULL,
    )
    process.returncode = 0  # waited for by the link
    return process.pid


def _connect(place: ServerFiles) -> socket.socket:
    connection = children.private(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    try:
        with children.address(place.socket) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _await(pid: int, seconds: float) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if poller.poll(seconds * 1000):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    finally:
        os.close(descriptor)
