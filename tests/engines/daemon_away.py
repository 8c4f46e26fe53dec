"""A socket in front of Docker's own, which can go away as if the daemon had been stopped."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

DOCKERS = "/var/run/docker.sock"


class Between:
    """Passes on what goes between a command and the daemon, until :meth:`stop`.

    Parameters
    ----------
    path
        Of the socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = f"unix://{path}"
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.start()

    def start(self) -> None:
        """Let commands through, from now on."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Break all connections, and refuse others."""
        os.unlink(self.path)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in (self._listener, *self._connections):
            connection.close()
        self._connections.clear()
        self._threads.clear()

    def _do(self, what, *arguments) -> None:  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = listener.accept()
                daemon = socket.socket(socket.AF_UNIX)
                daemon.connect(DOCKERS)
                self._connections += [asking, daemon]
                self._do(self._pass_on, asking, daemon)
                self._do(self._pass_on, daemon, asking)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
