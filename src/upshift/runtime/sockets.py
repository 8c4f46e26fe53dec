"""Sockets in the file system, at addresses of any length."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

PACKET = 1 << 17
"""Bytes that a packet between processes of a run has at most."""
_LONGEST = 100
"""Bytes of a path that the kernel certainly takes; it stops at 107 (``unix(7)``)."""


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """An address for the socket at ``path``, however long that is."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end: who called ``listen``. The process is 0 where it cannot be seen."""
    size = struct.calcsize("3i")  # struct ucred: pid, uid, gid; unix(7)
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def limit_sending(connection: socket.socket, seconds: float) -> None:
    """Let no ``send`` wait longer; it raises ``BlockingIOError`` then."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))  # struct timeval
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
