"""The thread that reads what processes print while their supervisor is held up."""

from __future__ import annotations

import contextlib
import os
import time

from upshift.runtime.loop import Loop
from upshift.runtime.supervisor.forkable import unsafe_to_fork
from upshift.runtime.supervisor.members import Overflow


def test_once_there_is_nothing_left_to_read_a_fork_is_safe() -> None:
    overflow = Overflow(Loop())
    time.sleep(0.05)  # a thread of another test may be about to end
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


class HeldUp(Loop):
    """A loop that does nothing for long."""

    held_up = 10.0  # type: ignore[assignment]


def test_what_is_printed_in_many_small_pieces_is_kept_while_the_loop_reads_nothing() -> None:
    overflow = Overflow(HeldUp())
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    overflow.add(reader, lambda: None, droppable=True)
    overflow.start()
    with contextlib.suppress(BlockingIOError):  # as after so many pieces
        while True:
            os.write(overflow._wake[1], b".")
    printed = b""
    for line in (b"one\n", b"two\n"):
        os.write(writer, line)
        while not overflow._kept[reader].endswith(line):
            assert overflow._thread is not None and overflow._thread.is_alive()
    with contextlib.suppress(BlockingIOError):
        printed = overflow.read(reader)
    assert printed == b"one\ntwo\n"
    overflow.forget(reader)
    os.close(reader)
    os.close(writer)
