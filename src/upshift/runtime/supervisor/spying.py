"""Looks into processes with py-spy, where it is installed: that has the frames of native code as well.

It needs the right to trace them, as root has, and others where ``kernel.yama.ptrace_scope`` is 0; in a
container, the capability ``SYS_PTRACE``. Where it may not, what the processes write themselves has to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable

from upshift.runtime.loop import Loop, Timer

DEADLINE = 2.0
"""Seconds that it is given for all of them: with native code it takes one, or less."""
_CHUNK = 1 << 16


def find() -> str | None:
    """Path of the py-spy that is installed beside this Python, or is on the PATH; None: there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class Spying:
    """Looks into some processes at once.

    Parameters
    ----------
    loop
        For what comes.
    program
        Path of py-spy.
    pids
        The processes.
    found
        Takes the process and the text, of each that it could look into.
    done
        Called once: it is over, or has taken too long.
    """

    def __init__(
        self,
        loop: Loop,
        program: str,
        pids: Iterable[int],
        *,
        found: Callable[[int, str], None],
        done: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._found = found
        self._done = done
        self._texts: dict[int, bytearray] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._deadline: Timer = loop.after(DEADLINE, self._give_up)
        for pid in pids:
            self._start(program, pid)
        if not self._running:
            self._end()

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._done = _nothing
        self._give_up()

    def _start(self, program: str, pid: int) -> None:
        command = [program, "dump", "--native", "--full-filenames", "--pid", str(pid)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return
        assert process.stdout is not None
        self._running[pid] = process
        self._texts[pid] = bytearray()
        self._loop.watch(process.stdout.fileno(), lambda: self._read(pid))

    def _read(self, pid: int) -> None:
        stream = self._running[pid].stdout
        assert stream is not None
        data = os.read(stream.fileno(), _CHUNK)
        self._texts[pid] += data
        if data:
            return
        self._leave(pid)
        if self._texts[pid]:
            self._found(pid, self._texts[pid].decode(errors="replace"))
        if not self._running:
            self._end()

    def _give_up(self) -> None:
        for pid in list(self._running):
            self._leave(pid)
        self._end()

    def _leave(self, pid: int) -> None:
        process = self._running.pop(pid)
        assert process.stdout is not None
        self._loop.unwatch(process.stdout.fileno())
        process.stdout.close()
        process.kill()  # whatever it has to say, it has said
        process.wait()

    def _end(self) -> None:
        self._deadline.cancel()
        done, self._done = self._done, _nothing
        done()


def _nothing() -> None:
    return
