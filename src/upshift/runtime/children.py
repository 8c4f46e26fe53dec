"""Other processes of Upshift: this one starts them afresh or forks them, and meets them at sockets.

Python opens every descriptor close-on-exec; a fork keeps them all. A child that kept a listener or a
connection would keep it alive: whoever connects would wait for an answer that never comes, and whoever
reads at the other end would never learn that this process has gone. The same goes for locks of devices.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import upshift


class Closable(Protocol):
    """What holds descriptors until it is closed."""

    def close(self) -> None:
        """Let go of the descriptors."""


C = TypeVar("C", bound=Closable)
_private: weakref.WeakSet[Closable] = weakref.WeakSet()


_A_MOMENT = 0.0001
"""Seconds between two looks whether a thread has gone, which takes less."""


def private(resource: C) -> C:
    """Close this in every child that is forked from now on."""
    _private.add(resource)
    return resource


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, so that a fork is safe after it.

    Before Python 3.13 a thread that was joined may be in the kernel for a moment yet, where it counts as one
    that nobody knows: :func:`~upshift.runtime.supervisor.forkable.unsafe_to_fork`.
    """
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(_A_MOMENT)


def _close_in_child() -> None:
    for resource in list(_private):
        with contextlib.suppress(OSError):  # the user's code closed its descriptor
            resource.close()
    _private.clear()


os.register_at_fork(after_in_child=_close_in_child)


_BOOT = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry] + {paths!r}
from upshift.runtime.__main__ import main
main()
"""


def command(*arguments: str) -> list[str]:
    """The command that runs :mod:`upshift.runtime` with this very interpreter and this very Upshift.

    Unlike ``python -m``, it does not let a file in the working folder shadow an installed module.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))
    if os.path.isfile(root) or os.path.isfile(os.path.join(root, "__main__.py")):  # the runtime
        return [sys.executable, root, *arguments]
    paths = [root, *(entry for entry in sys.path if entry.endswith("site-packages"))]
    return [sys.executable, "-c", _BOOT.format(paths=paths), *arguments]


def command_for_users(*arguments: str) -> list[str]:
    """The same for one that imports modules of the user's, which find in ``sys.argv`` what they do here."""
    return [*command(*arguments), "--", *sys.argv]


def take_arguments() -> list[str]:
    """The arguments of :func:`command`. What ``sys.argv`` has from now on is for modules of the user's."""
    own, users = sys.argv[1:], sys.argv[:1]
    if "--" in own:
        end = own.index("--")
        own, users = own[:end], own[end + 1 :]
    sys.argv[:] = users
    return own


# -- sockets in the file system, at addresses of any length ------------------------------------------

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
