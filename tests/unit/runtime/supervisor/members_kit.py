"""A process of a task that nobody has started: what is done to it is kept."""

from __future__ import annotations

import signal

from upshift.model.spec import Rank
from upshift.runtime.supervisor.members import Member


class Process(Member):
    """One that prints nothing, and says only what it is fed with."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, log=None, told=None)  # type: ignore[arg-type]
        self.sent: list[int] = []

    def signal(self, number: int) -> None:
        self.sent.append(number)

    def kill(self) -> None:
        self.sent.append(signal.SIGKILL)

    def drain(self) -> None:
        """It has nothing."""

    def close(self) -> None:
        """It was not open."""
