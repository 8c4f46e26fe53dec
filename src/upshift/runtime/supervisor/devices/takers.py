"""Which task has a device, for those that wait for it: a note in ``UPSHIFT_HOME``.

The lock decides who has a device, and names a process. The note says which task of which run that process
has taken it for, to runs of the same home. It counts only as long as the lock is that process's, so nobody
has to remove it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from upshift.model.home import home, make_folder
from upshift.model.spec.task import TaskId
from upshift.runtime.storage.files import replacing


def note(names: Iterable[str], task: TaskId) -> None:
    """This process has taken devices, by the names of their locks, for a task."""
    with contextlib.suppress(OSError):  # then nobody is told more than the lock says
        make_folder(_folder())
        for name in names:
            with replacing(_folder() / name) as draft:
                draft.write_text(f"{os.getpid()} {task.run} {task}", "utf-8")


def noted(name: str, taker: int | None) -> str | None:
    """``train of run 20261121-164606-8yvk``, if that is for whom a process has a device; None: not known."""
    try:
        pid, run, task = (_folder() / name).read_text("utf-8").split(" ", 2)
    except (OSError, ValueError):
        return None
    return f"{task} of run {run}" if pid == str(taker) else None


def _folder() -> Path:
    return home() / "devices"
