"""Processes that a step left running.

Who supervises is a subreaper, and so is every step process. So an orphan of a step that has ended
becomes a child of its supervisor: every child that is no live step process is a stray.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from upshift.runtime import proc


def kill_strays(live: Collection[int]) -> None:
    """Kill every child of this process that is not among ``live``, and wait until it is gone."""
    while True:
        strays = [pid for pid in proc.children(os.getpid()) if pid not in live]
        if not strays:
            return
        for pid in strays:
            proc.kill(reversed(proc.tree(pid)))
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
