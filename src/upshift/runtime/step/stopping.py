"""Signals in a step process: how a step is told to end, where it was then, and what it leaves behind.

``upshift.current.stopping`` is SIGTERM, as the step itself sees it. A step that never asks ends at SIGTERM,
as any process does. From the first time that it asks on, SIGTERM is for it to see: it has the grace period
to save what it has, and to end. Its own children get no SIGTERM then, so that a data loader still loads.
What it returns once it has seen that it is to end is no result: that cannot be told from a whole one.

:mod:`faulthandler` writes the stack of the step's Python code as the signal arrives, or as native code
crashes, whatever that code is doing then. It writes nothing where the step has handlers of its own for
these signals, and nothing can be had of a process that SIGKILL ended.

Once the call of the step has ended, :func:`settle` takes away what the user's code has set up. A handler of
a signal may raise between any two instructions, also of ours: that of PyTorch's data loader does so for
each worker that dies, and a timer for a limit of time goes off when the step has long returned.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from upshift.errors import UsageError
from upshift.model.settings.retry import STOPPED
from upshift.model.spec import Failure
from upshift.runtime.messages import HEEDS, channel

_descriptor = -1


def tell_stack(descriptor: int) -> None:
    """From now on write this process's stack to ``descriptor`` as it is stopped, or crashes.

    The descriptor must not block: a handler that waits would keep the process alive.
    """
    if not faulthandler.is_enabled():  # else the user has asked for the stack in the log
        faulthandler.enable(descriptor, all_threads=False)
    global _descriptor
    _descriptor = descriptor
    faulthandler.register(signal.SIGTERM, descriptor, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=_tell_no_stack)


def _tell_no_stack() -> None:
    """In a process that a step has forked. What the step itself does at SIGTERM, that one does, too."""
    handler = signal.getsignal(signal.SIGTERM)
    faulthandler.unregister(signal.SIGTERM)  # which brings back what was done before it was registered
    if handler is not None:
        signal.signal(signal.SIGTERM, handler)


def tell_stack_again() -> None:
    """Do so again for SIGTERM, which somebody has handled in another way meanwhile."""
    faulthandler.unregister(signal.SIGTERM)
    if _descriptor >= 0:
        faulthandler.register(signal.SIGTERM, _descriptor, all_threads=False, chain=True)


def tell_stack_now() -> None:
    """Write the stack there, in a handler of a signal that does not end this process."""
    if _descriptor >= 0:
        faulthandler.dump_traceback(_descriptor, all_threads=False)


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
            message="the step was asked to end by SIGTERM, and did",
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
            tell_stack_again()
        if self._told:
            self._told = False
            os.kill(os.getpid(), signal.SIGTERM)

    def _come(self, number: int, frame: FrameType | None) -> None:
        if not self._told:
            tell_stack_now()
        self._told = True
        if self._asks and callable(self._theirs):
            self._theirs(number, frame)


stopping = Stopping()
"""That of this process."""
os.register_at_fork(after_in_child=lambda: stopping.forked())

_SIGNALS = sorted(signal.valid_signals())
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Signals that do what they would have done without a handler; others that had one are ignored."""
_TRIES = 100
_DEPTH = 1000


def settle() -> None:
    """Take away signal handlers, timers, trace functions and a low recursion limit of the user's."""
    insist(_stop_tracing)
    insist(signal.set_wakeup_fd, -1)
    for timer in _TIMERS:
        insist(signal.setitimer, timer, 0)
    for number in _SIGNALS:
        insist(_take_away, number)


def insist(action: Callable[..., object], *args: object) -> None:
    """Do something, and again where a signal handler of the user's raises meanwhile; not for ever."""
    for _ in range(_TRIES):
        with contextlib.suppress(BaseException):
            action(*args)
            return


def _stop_tracing() -> None:
    sys.settrace(None)
    sys.setprofile(None)
    sys.setrecursionlimit(max(_DEPTH, sys.getrecursionlimit()))


def _take_away(number: int) -> None:
    handler = signal.getsignal(number)
    if not callable(handler) or stopping.handles(handler):
        return
    signal.signal(number, signal.SIG_DFL if number in _ENDING else signal.SIG_IGN)
    if number == signal.SIGTERM:
        tell_stack_again()
