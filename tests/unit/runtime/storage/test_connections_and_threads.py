"""Connections that a thread reads from: closed under it, and in a forked child, where that thread is not."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from upshift.runtime.storage.objects.connections import Connections

HALF = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@contextlib.contextmanager
def watched() -> Iterator[tuple[Connections, list[bytes], socket.socket, threading.Thread]]:
    """Connections, one of which a thread reads from; what it has read, and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = urlsplit(f"http://127.0.0.1:{server.getsockname()[1]}")
        connections = Connections()
        read: list[bytes] = []
        begun = threading.Event()

        def watch() -> None:
            with connections.response("GET", url, "/", {}) as answer:
                read.append(answer.read(5))
                begun.set()
                with contextlib.suppress(OSError, http.client.HTTPException):
                    read.append(answer.readline())  # holds the lock of its buffer until the server says more

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        there, _ = server.accept()
        with there:
            there.recv(4096)
            there.sendall(HALF)
            assert begun.wait(10)
            yield connections, read, there, thread
            connections.close()


def test_a_fork_leaves_a_connection_that_a_thread_reads_from_and_lets_go_of_it() -> None:
    with watched() as (connections, read, there, thread):
        for _ in range(20):  # the thread is in its read, or about to
            descriptor = connections_of(connections)
            child = os.fork()
            if child == 0:
                os._exit(3 if is_open(descriptor) else 0)
            assert exited_in_time(child) == 0
        there.sendall(b"6\r\nworld\n\r\n0\r\n\r\n")  # the parent's connection is as it was
        thread.join(10)
        assert read == [b"hello", b"world\n"]


def test_closing_does_not_wait_for_a_thread_that_reads() -> None:
    with watched() as (connections, _, _, thread):
        time.sleep(0.1)  # it is in its read
        closing = threading.Thread(target=connections.close, daemon=True)
        closing.start()
        closing.join(10)
        thread.join(10)
        assert not closing.is_alive() and not thread.is_alive()


def connections_of(connections: Connections) -> int:
    (connection,) = connections._open
    return int(connection.sock.fileno())


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def exited_in_time(child: int) -> int:
    """The exit code of a child; fails where it hangs."""
    pidfd = os.pidfd_open(child)
    try:
        if not select.select([pidfd], [], [], 10)[0]:
            os.kill(child, 9)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(pidfd)
