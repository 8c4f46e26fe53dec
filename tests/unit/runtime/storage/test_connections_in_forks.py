"""Connections in forked children: they are closed there, and nobody waits for the parent's threads."""

from __future__ import annotations

import os
import select
import socket
import threading
from urllib.parse import urlsplit

from upshift.runtime.storage.objects.connections import Connections

HALF = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


def test_a_fork_leaves_a_connection_that_a_thread_reads_from_and_lets_go_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = urlsplit(f"http://127.0.0.1:{server.getsockname()[1]}")
        connections = Connections()
        read: list[bytes] = []
        begun = threading.Event()

        def watch() -> None:
            with connections.response("GET", url, "/", {}) as answer:
                read.append(answer.read(5))
                begun.set()
                read.append(answer.readline())  # holds the lock of its buffer until the server says more

        thread = threading.Thread(target=watch)
        thread.start()
        there, _ = server.accept()
        there.recv(4096)
        there.sendall(HALF)
        assert begun.wait(10)
        for _ in range(20):  # the thread is in its read, or about to
            descriptor = connections_of(connections)
            child = os.fork()
            if child == 0:
                os._exit(3 if is_open(descriptor) else 0)
            assert exited_in_time(child) == 0
        there.sendall(b"6\r\nworld\n\r\n0\r\n\r\n")  # the parent's connection is as it was
        thread.join(10)
        assert read == [b"hello", b"world\n"]
        there.close()
        connections.close()


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
