"""What a forked child must not keep, and closes: listeners, connections, locks of devices.

Python opens every descriptor close-on-exec; a fork keeps them all. A child that kept a listener or a
connection would keep it alive: whoever connects would wait for an answer that never comes, and whoever
reads at the other end would never learn that this process has gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Protocol, TypeVar


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
