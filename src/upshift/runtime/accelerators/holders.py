"""Which processes have a device, as the kernel knows it: to say who, and to end what was left behind.

Anyone may have made the folder of locks, and have put anything there. So locks are compared as files, not by
name, and only a process with the mark of a supervisor is ever ended: :mod:`upshift.runtime.marks`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from upshift.model.spec.hardware import Device
from upshift.runtime import marks
from upshift.runtime.accelerators import locks


def holder(device: Device) -> int | None:
    """The process that took the device; None: nobody has it, or that process cannot be seen."""
    found = _locks(device)
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        for line in file:
            taker = _taker(line, found)
            if taker:
                return taker
    return None


def orphans(device: Device) -> list[int]:
    """Processes that a step has forked, and that have the device though the supervisor that took it has died.

    A supervisor takes its step processes with it when it dies, but not what these had started. Those of
    other users cannot be seen.
    """
    found = _locks(device)
    return [pid for pid in marks.processes() if found and _is_orphan(pid, found)]


def end_orphans(device: Device) -> list[int]:
    """End the :func:`orphans`, and give them. The device comes back when they are gone."""
    found, left = _locks(device), orphans(device)
    marks.kill(left, lambda pid: _is_orphan(pid, found), seconds=0)
    return left


def left_behind(devices: Iterable[Device]) -> list[int]:
    """Processes that a step has started which had one of these devices, and whose taker has died.

    Whoever asks holds the devices now. A child that was started with exec has no descriptor of its
    step's, but its environment. Where the taker lives, somebody has removed a lock that is in use: the
    step is left alone.
    """
    names = {locks.name_of(device) for device in devices}
    return [pid for pid in marks.processes() if _is_left_behind(pid, names)]


def end_left_behind(devices: Iterable[Device]) -> list[int]:
    """End what is :func:`left_behind`, and give it."""
    devices = tuple(devices)
    names, left = {locks.name_of(device) for device in devices}, left_behind(devices)
    marks.kill(left, lambda pid: _is_left_behind(pid, names), seconds=0)
    return left


def _is_orphan(pid: int, found: set[tuple[int, int]]) -> bool:
    taker = _dead_taker(pid, found)
    if taker is None:
        return False
    dead = [who for _, who in marks.marks(pid) if who is not None and not marks.lives(who)]
    return any(taker in (0, marks.number(who)) for who in dead)


def _dead_taker(pid: int, found: set[tuple[int, int]]) -> int | None:
    """Who took one of these locks that the process has, if it has died; 0: it cannot be seen."""
    for descriptor in _descriptors(pid):
        with contextlib.suppress(OSError):  # closed since
            # Who has just opened it, to see whether it is free, has no lock in there.
            for line in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text("ascii").splitlines():
                taker = _taker(line.removeprefix("lock:"), found) if line.startswith("lock:") else None
                if taker is not None and not os.path.exists(f"/proc/{taker}"):
                    opened = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    if (opened.st_dev, opened.st_ino) in found:
                        return taker
    return None


def _is_left_behind(pid: int, names: set[str]) -> bool:
    try:
        environment = marks.environment(pid)
    except OSError:
        return False
    if marks.VARIABLE not in environment or not names & set(environment.get(locks.HELD, "").split(",")):
        return False
    taker = environment.get(locks.TAKER)
    return taker is None or taker == marks.identity() or not marks.lives(taker)


def _descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from os.listdir(f"/proc/{pid}/fd")


def _locks(device: Device) -> set[tuple[int, int]]:
    """The files that are locked to have the device: their file systems, and their numbers there."""
    found = set()
    for file in locks.files(device):
        with contextlib.suppress(OSError):
            about = file.lstat()  # a link is no lock, wherever it leads
            found.add((about.st_dev, about.st_ino))
    return found


def _taker(line: str, found: set[tuple[int, int]]) -> int | None:
    """The process that took a lock on one of these files; 0: it cannot be seen; None: no such lock.

    A line of ``/proc/locks`` or of ``/proc/PID/fdinfo/N``, see ``proc_locks(5)``::

        1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF
    """
    fields = line.split()
    if len(fields) < 6 or fields[1] != "FLOCK":
        return None  # or somebody who only waits: that has an arrow before FLOCK
    inode = int(fields[5].rpartition(":")[2])
    return max(int(fields[4]), 0) if any(inode == number for _, number in found) else None
