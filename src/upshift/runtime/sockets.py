"""Sockets in the file system: addresses of any length, and none that a fork keeps alive by accident."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

PACKET = 1 << 17
"""Bytes that a packet between processes of a run has at most."""
_LONGEST = 100
"""Bytes of a path that the kernel certainly takes; it stops at 107 (``unix(7)``)."""

_private: weakref.WeakSet[socket.socket] = weakref.WeakSet()


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


def private(connection: socket.socket) -> socket.socket:
    """Close this socket in every child that is forked from now on.

    A child that kept it would keep it alive: who connects would wait for an answer that never comes,
    and who reads at the other end would never learn that this process has gone.
    """
    _private.add(connection)
    return connection


def _close_in_child() -> None:
    for connection in list(_private):
        connection.close()
    _private.clear()


os.register_at_fork(after_in_child=_close_in_child)
