"""The thread that reads what processes print while their supervisor is held up."""

from __future__ import annotations

import os

from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.forkable import unsafe_to_fork
from upshift.runtime.supervisor.members import Overflow


def test_once_there_is_nothing_left_to_read_a_fork_is_safe() -> None:
    overflow = Overflow(Loop())
    others = len(os.listdir("/proc/self/task"))
    for _ in range(200):
        reader, writer = os.pipe()
        overflow.add(reader, lambda: None, droppable=True)
        overflow.start()
        assert len(os.listdir("/proc/self/task")) == others + 1
        overflow.forget(reader)
        assert len(os.listdir("/proc/self/task")) == others
        assert others > 1 or unsafe_to_fork() is None
        os.close(reader)
        os.close(writer)
