"""Processes that a step left running.

Who supervises is a subreaper, and so is every step process. So an orphan of a step that has ended
becomes a child of its supervisor: every child that is no live step process is a stray.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection

from upshift.runtime import proc

PATIENCE = 5.0
"""Seconds in which a process that was killed ends, unless it runs as another user, or a device holds it."""


class Strays:
    """Ends what is left of steps. What cannot be ended is waited for once, and then left alone."""

    def __init__(self) -> None:
        self._lasting: set[int] = set()

    def kill(self, live: Collection[int]) -> None:
        """Kill every child of this process that is not among ``live``, and wait until it is gone."""
        while True:
            children = set(proc.children(os.getpid()))
            self._lasting &= children
            strays = children - set(live) - self._lasting
            if not strays:
                return
            for pid in strays:
                proc.kill(reversed(proc.tree(pid)))
                with contextlib.suppress(ChildProcessError):
                    if not _reaped(pid):
                        self._lasting.add(pid)


def _reaped(pid: int) -> bool:
    """Whether a child has ended within the time that it has."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], PATIENCE)[0]:
            return False
    finally:
        os.close(descriptor)
    os.waitpid(pid, 0)
    return True
