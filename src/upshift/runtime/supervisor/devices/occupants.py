"""Who has a device, in words for whoever waits for it.

A lock decides who has a device, and names a process. A note in ``UPSHIFT_HOME`` says which task of which
run that process has taken it for. It counts only as long as the lock is that process's, so nobody has to
remove it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from upshift.model.configuration import home, make_folder
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import Device, Model
from upshift.model.spec.task import TaskId
from upshift.runtime import proc
from upshift.runtime.accelerators.vendor import Reading
from upshift.runtime.storage.files import replacing

MUCH = 0.5
"""Share of a device's memory that counts as use though no process is seen. Drivers and desktops take some."""
_SERVERS = ("nvidia-cuda-mps",)
"""Processes that have a device open on behalf of others, which are listed themselves."""


def foreign(device: Device, reading: Reading, *, ours: Callable[[], set[int]], old: bool) -> str | None:
    """Say which programs outside Upshift work with a device that no step holds; None: none do.

    What cannot be seen: a program in another container that has not taken much memory yet.
    """
    if reading.problem is not None:
        return f"is out of order: {reading.problem}"
    # A process that has ended since the reading is no trouble.
    alive = {pid: size for pid, size in reading.processes.items() if os.path.exists(f"/proc/{pid}")}
    for pid in sorted(alive.keys() - (ours() if alive else set())):
        if _comm(pid) not in _SERVERS:
            return f"is in use by {process(pid, alive[pid])}"
    if not alive and not old and device.memory and (reading.memory or 0) > MUCH * device.memory:
        amount = f"{format_size(reading.memory or 0)} of {format_size(device.memory)}"
        return f"is in use by programs that cannot be seen from here ({amount})"
    return None


def held(taker: int | None, left: Sequence[int], task: str | None = None) -> str:
    """Say who has locked a device."""
    if left:
        return f"is being freed from {process(left[0])}, which a step has left there"
    if task is not None:
        return f"is held by {task}"
    by = "another run" if taker is None else f"another run ({process(taker)})"
    return f"is held by {by}"


def sentences(said: Iterable[tuple[Device, str]]) -> list[str]:
    """``GPU 0 and GPU 1 (NVIDIA L4) are held by …``: what is the same of several devices is said once."""
    groups: dict[tuple[Model, str], list[str]] = {}
    for device, words in said:
        groups.setdefault((device.sort, words), []).append(_number(device))
    found = []
    for ((_, model, _), words), numbers in groups.items():
        names = " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1]))) + (
            f" ({model})" if model else ""
        )
        found.append(f"{names} {words if len(numbers) == 1 else words.replace('is', 'are', 1)}")
    return found


def name(device: Device) -> str:
    """``GPU 0 (NVIDIA L4)``."""
    model = device.sort[1]
    return _number(device) + (f" ({model})" if model else "")


def _number(device: Device) -> str:
    what = "GPU" if device.vendor in (None, "nvidia", "amd", "intel") else "device"
    slice_of = f"slice {device.partition} of " if device.partition else ""
    return f"{slice_of}{what} {device.uuid if device.index is None else device.index}"


def process(pid: int, memory: int | None = None) -> str:
    """``process 4242 (python, anna, 3.1 GB)``."""
    known = [_comm(pid), _user(pid), format_size(memory) if memory else None]
    words = ", ".join(filter(None, known))
    return f"process {pid}" + (f" ({words})" if words else "")


def _comm(pid: int) -> str | None:
    text = proc.read(f"/proc/{pid}/comm")
    return text.strip() if text else None


def _user(pid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
    except (OSError, KeyError):
        return None


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
