"""What each way to start a step process is to those who have one started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from upshift.model.spec import TaskSpec
from upshift.runtime.confine import Confinement


class Born(NamedTuple):
    """A step process that has just been started.

    Parameters
    ----------
    pid
        Its id.
    log, seen, messages
        Descriptors to read what it prints, what it finds, and what becomes of it.
    baseline
        Bytes of memory that it has from its parent, and did not ask for itself.
    """

    pid: int
    log: int
    seen: int
    messages: int
    baseline: int


class Starter(Protocol):
    """Starts a step process, by a fork or afresh. Who has one is told when it has ended."""

    def __call__(self, spec: TaskSpec, bounds: Confinement, held: Sequence[int]) -> Born:
        """Start it. It keeps the descriptors ``held`` open.

        Raises
        ------
        OSError
            There can be no further process.
        """
