"""Where a step was when it was stopped, or when native code crashed under it.

:mod:`faulthandler` writes the stack of the step's Python code as the signal arrives, whatever that
code is doing then. It writes nothing where the step has handlers of its own for these signals, and
nothing can be had of a process that SIGKILL ended.
"""

from __future__ import annotations

import faulthandler
import os
import signal

_descriptor = -1


def tell(descriptor: int) -> None:
    """From now on write this process's stack to ``descriptor`` as it is stopped, or crashes.

    The descriptor must not block: a handler that waits would keep the process alive.
    """
    if not faulthandler.is_enabled():  # else the user has asked for the stack in the log
        faulthandler.enable(descriptor, all_threads=False)
    global _descriptor
    _descriptor = descriptor
    faulthandler.register(signal.SIGTERM, descriptor, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(signal.SIGTERM))


def tell_again() -> None:
    """Do so again for SIGTERM, which somebody has handled in another way meanwhile."""
    faulthandler.unregister(signal.SIGTERM)
    if _descriptor >= 0:
        faulthandler.register(signal.SIGTERM, _descriptor, all_threads=False, chain=True)


def tell_now() -> None:
    """Write the stack there, in a handler of a signal that does not end this process."""
    if _descriptor >= 0:
        faulthandler.dump_traceback(_descriptor, all_threads=False)
