"""The processes of one task, one or many: all of them return, or the first that fails ends them all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial

from upshift.runtime.loop import Loop, Timer
from upshift.runtime.supervisor.member import Member

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for the others, once one has failed: nothing is left to be saved."""
ANSWERING = 0.2
"""Seconds that processes are given to write where they are, before they are told to end."""
PATIENCE = 1.0
"""Seconds to see whether another process has failed before, where a failure looks like its consequence."""


class Gang:
    """Keeps the processes of a task together.

    Parameters
    ----------
    loop
        For what is to happen a little later.
    grace
        Seconds that the step has, in general, between SIGTERM and SIGKILL.
    follows
        Whether a failure looks like the consequence of that of another process.
    """

    def __init__(self, loop: Loop, *, grace: float, follows: Callable[[Member], bool]) -> None:
        self.members: list[Member] = []
        self.failed: list[Member] = []
        self._loop = loop
        self._grace = min(grace, GRACE)
        self._follows = follows
        self._timers: list[Timer] = []
        self._ending = False

    @property
    def ended(self) -> bool:
        """Whether no process is left."""
        return all(member.ended for member in self.members)

    @property
    def returned(self) -> bool:
        """Whether all have returned."""
        return all(member.returned for member in self.members)

    @property
    def main(self) -> Member:
        """The one whose value is the step's."""
        return self.members[0]

    @property
    def culprit(self) -> Member:
        """The one that failed first, and not because another one did."""
        causes = [member for member in self.failed if not self._follows(member)]
        return next(iter((*causes, *self.failed)), self.main)

    @property
    def failing(self) -> bool:
        """Whether they end, now or in a moment, because one of several has failed by itself."""
        return bool(self.failed) and len(self.members) > 1

    def fail(self, member: Member) -> None:
        """This one has failed. The others are stopped, unless it may have been one of them."""
        if self._ending or member in self.failed:
            return
        self.failed.append(member)
        if len(self.members) == 1:
            return
        if not self._follows(member):
            self._end()
        elif len(self.failed) == 1:
            self._timers.append(self._loop.after(PATIENCE, self._end))

    @property
    def running(self) -> list[Member]:
        """Those that have not ended, and are still in the step."""
        return [member for member in self.members if not member.ended and member.outcome is None]

    def ask(self) -> None:
        """Have all that run write where they are."""
        for member in self.running:
            member.ask()

    def signal(self, number: int) -> None:
        """Send a signal to all that run."""
        for member in self.members:
            if not member.ended:
                member.signal(number)

    def kill(self) -> None:
        """Kill all that run, and what descends from them."""
        for member in self.members:
            if not member.ended:
                member.kill()

    def stopped(self) -> None:
        """Somebody stops them: what ends now fails for no reason of its own."""
        self._ending = True

    def cancel(self) -> None:
        """It is over: nothing is to happen any more."""
        for timer in self._timers:
            timer.cancel()

    def _end(self) -> None:
        if self._ending:
            return
        self._ending = True
        if self.running and self._follows(self.culprit):  # where the others are may tell why it failed
            self.ask()
            self._timers.append(self._loop.after(ANSWERING, partial(self.signal, signal.SIGTERM)))
        else:
            self.signal(signal.SIGTERM)
        self._timers.append(self._loop.after(self._grace, self.kill))
