"""The call of a step has ended: nothing that the user's code has set up interferes with what follows.

A handler of a signal may raise between any two instructions, also of ours: that of PyTorch's data loader does
so for each worker that dies, and a timer for a limit of time goes off when the step has long returned.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable

from upshift.runtime.step import stacks
from upshift.runtime.step.stopping import stopping

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
        stacks.tell_again()
