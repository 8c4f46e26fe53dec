"""How a process is known as one of ours, and whose: every process below a supervisor carries its mark.

The mark is there twice. A child that was forked holds a descriptor of its supervisor's, of a file in memory
that has the supervisor's name; one that was started with exec has the name in its environment. Neither
depends on a path, and no other user can put either into a process. Nothing without a mark is ever killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from upshift.runtime.proc import readable

VARIABLE = "UPSHIFT_SUPERVISOR"
"""Environment variable with the supervisor's name, in every process that descends from a step."""
_FILE = "/memfd:upshift:"
_GONE = 30.0
"""Seconds in which what was killed has ended: the kernel frees its memory first."""


def make(supervisor: str) -> int:
    """A descriptor that marks this process, and all that are forked from it, as the supervisor's."""
    return os.memfd_create(f"upshift:{supervisor}:{identity()}")


def marked(supervisor: str) -> Iterator[int]:
    """Processes with the supervisor's mark. Those of other users cannot be looked into."""
    for pid in processes():
        if pid != os.getpid() and any(name == supervisor for name, _ in marks(pid)):
            yield pid


def marks(pid: int) -> Iterator[tuple[str, str | None]]:
    """The supervisors whose marks a process has: their names, and :func:`identity` where it is known."""
    with contextlib.suppress(OSError):
        name = environment(pid).get(VARIABLE)
        if name is not None:
            yield name, None
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed since
                file = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if file.startswith(_FILE):
                    name, _, who = file.removeprefix(_FILE).removesuffix(" (deleted)").partition(":")
                    yield name, who


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return {name: value for name, _, value in (item.partition("=") for item in text.split("\0"))}


def processes() -> Iterator[int]:
    """All that can be seen from here."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def identity(pid: int | None = None) -> str:
    """The namespace, number and start time of a process, by default this one.

    The number by itself is given to another one later, and means another one in a container.
    """
    pid = pid or os.getpid()
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    fields = text.rpartition(")")[2].split()  # of proc(5) from the third on: the name may hold anything
    if fields[0] in "ZX":
        raise ProcessLookupError(f"process {pid} has ended")
    return f"{_space()}/{pid}/{fields[19]}"


def number(process: str) -> int:
    """The process id in an :func:`identity`; -1: it is none."""
    own = process.partition("/")[2].partition("/")[0]
    return int(own) if own.isdigit() else -1


def lives(process: str) -> bool:
    """Whether the process of this :func:`identity` lives, or may: of other namespaces one cannot tell."""
    if process.partition("/")[0] != _space():
        return True
    try:
        return process == identity(number(process))
    except OSError:
        return False


def kill(pids: Iterable[int], are_ours: Callable[[int], bool], *, seconds: float = _GONE) -> list[int]:
    """Kill these processes, and give those that have not ended within this time.

    Each is asked about once more when its number cannot pass to another process any more.
    """
    left = []
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        dying = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                if are_ours(pid):
                    try:
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                        dying[pid] = descriptor
                    except PermissionError:  # a program that runs as another user
                        left.append(pid)
        for pid, descriptor in dying.items():
            if not readable(descriptor, until - time.monotonic()):
                left.append(pid)
    return left


def _space() -> str:
    return os.readlink("/proc/self/ns/pid")
