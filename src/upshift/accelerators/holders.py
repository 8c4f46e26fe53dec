"""Which processes have a device, as the kernel knows it: to say who, and to end what was left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from upshift.accelerators import locks
from upshift.spec.hardware import Device


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
    """Processes that a step has started which had one of these devices.

    Nobody else has them now: whoever asks holds them. A child that was started with exec has no
    descriptor of its step's, but its environment.
    """
    names = {locks.name_of(device).encode() for device in devices}
    mark = f"{locks.HELD}=".encode()
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(mark) and names & set(variable[len(mark) :].split(b",")):
                    found.append(pid)
    return found


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
