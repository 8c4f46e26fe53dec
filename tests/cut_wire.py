"""A wire to a server that is cut after so many bytes: what a bad network does to an upload."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType


class CutWire:
    """Listens on loopback and passes on to a server; the first connections to send much are cut.

    Parameters
    ----------
    to
        Address of the server: ``127.0.0.1:5000``.
    after
        Bytes that a client may send on one connection, while there are cuts to be made.
    times
        How many connections are cut.
    """

    def __init__(self, to: str, *, after: int, times: int) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._after = after
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.left = times
        self.cuts = 0

    def __enter__(self) -> CutWire:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            everything = [self._listener, *self._open]
        for one in everything:
            _end(one)
        for thread in self._threads:
            thread.join()
        for one in everything:
            one.close()

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the end of the listener
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                with self._lock:
                    self._open += [client, server]
                self._start(self._pass, client, server, True)
                self._start(self._pass, server, client, False)

    def _pass(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                passed += len(data)
                if counts and passed > self._after and self._may_cut():
                    # Else who sends would wait for room in what nobody reads any more.
                    for one in (source, sink):
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        _end(one)
                        one.close()
                    return
        _end(source)
        _end(sink)

    def _may_cut(self) -> bool:
        with self._lock:
            if not self.left:
                return False
            self.left -= 1
            self.cuts += 1
            return True


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
