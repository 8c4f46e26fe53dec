"""A process is asked where it is, by a signal that nothing else uses, and writes the stacks of its threads.

:mod:`faulthandler` writes them at once, whatever the process is doing, be it in native code. A process that
does not listen is not sent the signal, which would end it.
"""

from __future__ import annotations

import faulthandler
import os
import signal

from upshift.runtime import proc

ASK = signal.SIGRTMIN + 13


def listen(descriptor: int) -> None:
    """From now on write the stacks of this process to ``descriptor`` whenever it is asked.

    The descriptor must not block.
    """
    faulthandler.register(ASK, descriptor, all_threads=True, chain=False)
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(ASK))


def ask(pid: int) -> bool:
    """Ask a process; False: it does not listen, or is gone."""
    if not _listens(pid):
        return False
    try:
        os.kill(pid, ASK)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _listens(pid: int) -> bool:
    """Whether a process has a handler for the signal: the kernel says which ones it catches, proc(5)."""
    for line in (proc.read(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (ASK - 1) & 1)
    return False
