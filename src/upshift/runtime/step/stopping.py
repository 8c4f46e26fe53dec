"""``upshift.current.stopping``: SIGTERM, as the step itself sees it.

A step that never asks ends at SIGTERM, as any process does. From the first time that it asks on, SIGTERM is
for it to see: it has the grace period to save what it has, and to end. Its own children get no SIGTERM then,
so that a data loader still loads. What it returns once it has seen that it is to end is no result: that
cannot be told from a whole one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from upshift.errors import UsageError
from upshift.model.settings.retry import STOPPED
from upshift.model.spec import Failure
from upshift.runtime.messages import HEEDS, channel
from upshift.runtime.step import stacks


class Stopping:
    """Whether the step of this process was told to end."""

    def __init__(self) -> None:
        self._in_step = False
        self._told = False
        self._asks = False
        self._seen = False
        self._installed = False
        self._theirs: Any = signal.SIG_DFL

    def begin(self) -> None:
        """A step begins in this process, which does nothing else."""
        self._in_step = True

    def asked(self) -> bool:
        """Whether SIGTERM has come; False outside a step."""
        if not self._in_step:
            return False
        if not self._asks:
            self._install()
            self._asks = True
            with contextlib.suppress(OSError):  # the supervisor has died, and soon so does this process
                channel.write(HEEDS + b"\n")
        self._seen = self._seen or self._told
        return self._told

    def verdict(self) -> Failure | None:
        """Why a step that knew that it was to end has no result; None: it did not know."""
        if not self._seen:
            return None
        return Failure(
            reason=STOPPED,
            message="the step was told to end by SIGTERM, and did",
            fix="Run it again: it continues from its last checkpoint, if it has saved one.",
        )

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Within, SIGTERM waits; what it would have done it does at the end."""
        if not self._in_step or self._installed or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._install()
        try:
            yield
        finally:
            if not self._asks:
                self._uninstall()

    def handles(self, handler: object) -> bool:
        """Whether this is the handler that it has set."""
        return handler == self._come

    def forked(self) -> None:
        """This process is a fork of a step's: SIGTERM is to end it, as it would have."""
        if self._installed:
            signal.signal(signal.SIGTERM, self._theirs)
        self.__init__()  # type: ignore[misc]

    def _install(self) -> None:
        if self._installed:
            return
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "upshift.current.stopping was asked by another thread than the main one",
                why="Python tells only the main thread of signals.",
                fix="Ask once in the main thread, before the other one starts.",
            )
        self._theirs = signal.signal(signal.SIGTERM, self._come)
        self._installed = True

    def _uninstall(self) -> None:
        self._installed = False
        signal.signal(signal.SIGTERM, self._theirs)
        if self._theirs is signal.SIG_DFL:
            stacks.tell_again()
        if self._told:
            self._told = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _come(self, number: int, frame: FrameType | None) -> None:
        if not self._told:
            stacks.tell_now()
        self._told = True
        if self._asks and callable(self._theirs):
            self._theirs(number, frame)


stopping = Stopping()
"""That of this process."""
os.register_at_fork(after_in_child=lambda: stopping.forked())
