"""Which processes have a device, as the kernel knows it: to say who, and to end what was left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators import locks


def holder(device: Device) -> int | None:
    """The process that took the device; None: nobody has it, or that process cannot be seen."""
    inodes = _inodes(device)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        for line in file:
            taker = _taker(line, inodes)
            if taker:
                return taker
    return None


def orphans(device: Device) -> list[int]:
    """Processes that have the device, though the one that took it for them has died.

    A supervisor takes its step processes with it when it dies, but not what these had started. Those of
    other users cannot be seen.
    """
    inodes, found = _inodes(device), []
    paths = {os.path.realpath(file) for file in locks.files(device)}
    for pid in _processes():
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") not in paths:
                    continue
                # Who has just opened it, to see whether it is free, has no lock in there.
                for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text("ascii").splitlines():
                    taker = _taker(line.removeprefix("lock:"), inodes)
                    if taker is not None and not os.path.exists(f"/proc/{taker}") and pid not in found:
                        found.append(pid)
    return found


def left_behind(devices: Iterable[Device]) -> list[int]:
    """Processes that a step has started which had one of these devices, and whose taker has died.

    Whoever asks holds the devices now. A child that was started with exec has no descriptor of its
    step's, but its environment. Where the taker lives, somebody has removed a lock that is in use: the
    step is left alone.
    """
    names = {locks.name_of(device) for device in devices}
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError):
            marks = _marks(pid)
            if names & set(marks.get(locks.HELD, "").split(",")) and not _lives(marks.get(locks.TAKER)):
                found.append(pid)
    return found


def self_as_taker() -> str:
    """What :data:`~upshift.runtime.accelerators.locks.TAKER` says of locks that this process has taken.

    The namespace, pid and start time of the process: a number by itself is given to another one later, and
    means another one in a container.
    """
    return _name(os.getpid())


def _marks(pid: int) -> dict[str, str]:
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return {
        name: value
        for name, _, value in (variable.partition("=") for variable in environment.split("\0"))
        if name in (locks.HELD, locks.TAKER)
    }


def _lives(taker: str | None) -> bool:
    """Whether a process that is not this one is that taker, or may be: those of containers cannot be told."""
    if taker is None or taker == self_as_taker():
        return False
    space, _, rest = taker.partition("/")
    if space != _space():
        return True
    try:
        return taker == _name(int(rest.partition("/")[0]))
    except (OSError, ValueError):
        return False


def _name(pid: int) -> str:
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    started = stat.rpartition(")")[2].split()[
        19
    ]  # field 22 of proc(5): after the name, which may hold anything
    return f"{_space()}/{pid}/{started}"


def _space() -> str:
    return os.readlink("/proc/self/ns/pid")


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _inodes(device: Device) -> set[str]:
    found = set()
    for file in locks.files(device):
        with contextlib.suppress(OSError):
            found.add(str(os.stat(file).st_ino))
    return found


def _taker(line: str, inodes: set[str]) -> int | None:
    """The process that took a lock on one of these files; 0: it cannot be seen; None: no such lock.

    A line of ``/proc/locks`` or of ``/proc/PID/fdinfo/N``, see ``proc_locks(5)``::

        1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
    """
    fields = line.split()
    if len(fields) < 6 or fields[1] != "FLOCK" or fields[5].rpartition(":")[2] not in inodes:
        return None  # or somebody who only waits: that has an arrow before FLOCK
    return max(int(fields[4]), 0)
