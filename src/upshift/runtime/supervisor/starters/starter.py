"""What all ways to start a step process share: what they give, and that nothing of it is left behind.

A supervisor is a subreaper, and so is every step process. So an orphan of a step that has ended becomes a
child of its supervisor: every child that is no live step process is a stray.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from upshift.model.spec import TaskSpec
from upshift.runtime import proc
from upshift.runtime.confine import Confinement


class Spawned(NamedTuple):
    """A step process that has just been started."""

    pid: int
    log: int  # descriptor to read what it prints
    seen: int  # to read what it finds at its start, and its stacks
    messages: int  # to read what becomes of it
    baseline: int  # bytes of memory that it has from its parent, and did not ask for itself


class Starter(Protocol):
    """Starts a step process, by a fork or afresh. Who has one is told when it has ended."""

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int]) -> Spawned:
        """Start it. It keeps the descriptors ``held`` open."""


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
