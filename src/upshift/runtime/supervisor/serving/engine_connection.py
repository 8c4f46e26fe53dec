"""A connected engine, as the fork server sees it: packets out, without ever waiting for it."""

from __future__ import annotations

import collections
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from upshift.runtime.loop import Loop
from upshift.runtime.sockets import PACKET


class EngineConnection:
    """One end of a packet socket on an event loop.

    What cannot be sent at once, because the other end does not read (it is stopped, or busy), is
    kept and sent when it does; of the notices that a log has grown only what is sent counts, since
    a later one says the same.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        receive: Callable[[EngineConnection, dict[str, Any]], None],
        gone: Callable[[EngineConnection], None],
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._receive = receive
        self._gone = gone
        self._backlog: collections.deque[bytes] = collections.deque()
        self._writable: int | None = None
        connection.setblocking(False)
        loop.watch(connection.fileno(), self._read)

    def send(self, message: Mapping[str, Any], *, droppable: bool = False) -> None:
        """Send a message, now or when the other end reads again."""
        if self._connection.fileno() < 0 or (droppable and self._backlog):
            return
        self._backlog.append(json.dumps(message).encode())
        self._write()

    def _write(self) -> None:
        while self._backlog:
            try:
                self._connection.send(self._backlog[0])
            except BlockingIOError:
                if self._writable is None:  # one descriptor is watched for one thing only
                    self._writable = os.dup(self._connection.fileno())
                    self._loop.watch_writable(self._writable, self._write)
                return
            except OSError:
                self._close()
                return
            self._backlog.popleft()
        if self._writable is not None:
            self._loop.forget(self._writable)
            self._writable = None

    def _read(self) -> None:
        try:
            packet = self._connection.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._receive(self, json.loads(packet))
        else:
            self._close()

    def _close(self) -> None:
        if self._connection.fileno() < 0:
            return
        self._backlog.clear()
        if self._writable is not None:
            self._loop.forget(self._writable)
            self._writable = None
        self._loop.forget(self._connection.detach())
        self._gone(self)
