"""The course of one task under a supervisor of its own, from its start to its end."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Protocol

from upshift.model.spec import Failure, TaskSpec
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.serving.reporting import AT_ONCE, WITH_GRACE
from upshift.runtime.supervisor.serving.supervisor import Supervisor

if TYPE_CHECKING:
    from upshift.runtime.supervisor.devices.stock import Grant

ENDING = 5.0
"""Seconds that a step is given at most where an engine is told to stop its container: it waits for 10."""


class Part(Protocol):
    """What a supervisor does of a task: all of it, or what is to be done on one of its nodes."""

    @property
    def busy(self) -> bool:
        """Whether it is not over."""

    @property
    def problem(self) -> str | None:
        """Why nothing was recorded; None: that is told elsewhere, if so."""

    def start(self, grant: Grant | None) -> None:
        """It has what it was granted here."""

    def refuse(self, failure: Failure) -> None:
        """It gets nothing."""

    def tell(self, why: str) -> None:
        """It waits for that."""

    def stop(self, name: str, *, asked: bool, grace: float) -> None:
        """A signal of this name has come: because the run is cancelled, or by somebody else."""


class Course:
    """Turns the loop until a task is over. From now on signals stop it.

    Parameters
    ----------
    spec
        The task.
    part
        What is to be done of it.
    ordered
        Whether a backend has ordered it, which then tells apart what it asks for from what others do.
    """

    def __init__(
        self, spec: TaskSpec, part: Part, loop: Loop, supervisor: Supervisor, *, ordered: bool
    ) -> None:
        self._spec = spec
        self._part = part
        self._loop = loop
        self._supervisor = supervisor
        self._ordered = ordered
        self._signals, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        used = {signal.SIGTERM, signal.SIGINT, WITH_GRACE, AT_ONCE}
        for number in used:
            signal.signal(number, lambda *_: None)  # what matters is the byte in the pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, used)
        loop.watch(self._signals, self._signalled)

    def to_its_end(self) -> str | None:
        """Wait until it is over, and say why nothing was recorded; None: that was told elsewhere, if so."""
        while self._part.busy or self._supervisor.devices.asking:
            self._loop.turn()
        self._supervisor.close()
        return self._part.problem

    def _signalled(self) -> None:
        got = os.read(self._signals, 16)
        asked = not self._ordered or WITH_GRACE in got or AT_ONCE in got
        grace = 0.0 if AT_ONCE in got else self._spec.settings.grace_period
        self._supervisor.devices.cancel(self._spec)
        name = signal.Signals(got[0]).name
        self._part.stop(name, asked=asked, grace=grace if asked else min(grace, ENDING))
