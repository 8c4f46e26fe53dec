"""What a forked child must not keep, and closes: listeners, connections, locks of devices.

Python opens every descriptor close-on-exec; a fork keeps them all. A child that kept a listener or a
connection would keep it alive: whoever connects would wait for an answer that never comes, and whoever
reads at the other end would never learn that this process has gone.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol, TypeVar


class Closable(Protocol):
    """What holds descriptors until it is closed."""

    def close(self) -> None:
        """Let go of the descriptors."""


C = TypeVar("C", bound=Closable)
_private: weakref.WeakSet[Closable] = weakref.WeakSet()


def private(resource: C) -> C:
    """Close this in every child that is forked from now on."""
    _private.add(resource)
    return resource


def _close_in_child() -> None:
    for resource in list(_private):
        with contextlib.suppress(OSError):  # the user's code closed its descriptor
            resource.close()
    _private.clear()


os.register_at_fork(after_in_child=_close_in_child)
