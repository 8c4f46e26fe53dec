"""The engine's end of a fork server: starting one, or finding one again, and talking to it."""

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
from collections.abc import Callable, Mapping
from typing import Any

from upshift.errors import BackendError, StoreUnavailable
from upshift.model.configuration import make_folder
from upshift.model.spec import TaskSpec, encode
from upshift.runtime import forks, proc, sockets
from upshift.runtime.interpreter import command_for_users
from upshift.runtime.sockets import PACKET
from upshift.runtime.supervisor.serving import forkserver, server_files
from upshift.runtime.supervisor.serving.server_files import ServerFiles
from upshift.runtime.supervisor.starters.thread_pools import OWN_THREAD_PREFIX, unsafe_to_fork

CLOSING = 5.0
"""Seconds that an idle fork server is given to leave, once nobody is connected."""
ANSWER = 30.0
"""Seconds in which a fork server takes what it is told, and answers; it does so in milliseconds."""


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
        sockets.limit_sending(connection, ANSWER)
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
        pid, _ = sockets.peer(self._connection)
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


def start(
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
        listener = forks.private(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with sockets.address(place.socket) as address:
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


def find(name: str, hear: Callable[[Link, Mapping[str, Any] | None], None]) -> Link | None:
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
    pid, _ = sockets.peer(connection)
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
    from upshift.runtime.supervisor.starters.thread_pools import inherited

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
    connection = forks.private(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    try:
        with sockets.address(place.socket) as address:
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
