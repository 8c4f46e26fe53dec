"""Where a step was when it was stopped, or when native code crashed under it.

:mod:`faulthandler` writes the stack of the step's Python code as the signal arrives, whatever that
code is doing then. It writes nothing where the step has handlers of its own for these signals, and
nothing can be had of a process that SIGKILL ended.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal

from upshift.errors import is_user_file, location

_FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)
_ESCAPED = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def tell(descriptor: int) -> None:
    """From now on write this process's stack to ``descriptor`` as it is stopped, or crashes.

    The descriptor must not block: a handler that waits would keep the process alive.
    """
    if not faulthandler.is_enabled():  # else the user has asked for the stack in the log
        faulthandler.enable(descriptor, all_threads=False)
    faulthandler.register(signal.SIGTERM, descriptor, all_threads=False, chain=True)
    os.register_at_fork(after_in_child=lambda: faulthandler.unregister(signal.SIGTERM))


def user_line(text: str, project: str | None, *, relative_to: str | None) -> str | None:
    """The user's innermost line in the last stack of ``text``, as ``file:line``.

    Parameters
    ----------
    text
        What was written for :func:`tell`.
    project, relative_to
        As for :func:`upshift.worker.tracebacks.user_line`.
    """
    last = text.rpartition("(most recent call first)")[2]
    for escaped, line in _FRAME.findall(last):
        file = _ESCAPED.sub(lambda match: chr(int(next(filter(None, match.groups())), 16)), escaped)
        if file.startswith(("/", "<")) and is_user_file(file, project):
            return location(file, int(line), relative_to)
    return None
