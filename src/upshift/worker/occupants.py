"""Who has a device, in words for whoever waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from upshift.accelerators.base import Reading
from upshift.config.sizes import format_size
from upshift.spec.hardware import Device
from upshift.worker import proc

MUCH = 0.5
"""Share of a device's memory that counts as use though no process is seen. Drivers and desktops take some."""
_SERVERS = ("nvidia-cuda-mps",)
"""Processes that have a device open on behalf of others, which are listed themselves."""


def foreign(device: Device, reading: Reading, *, ours: Callable[[], set[int]], old: bool) -> str | None:
    """Which programs outside Upshift work with a device that no step holds; None: none.

    What cannot be seen: a program in another container that has not taken much memory yet.

    Parameters
    ----------
    device, reading
        The device, and what is known of it.
    ours
        Gives the processes that do not count.
    old
        Whether the reading is of a time when a step still had the device.
    """
    if reading.problem is not None:
        return f"{name(device)} does not work: {reading.problem}"
    # A process that has ended since the reading is no trouble.
    alive = {pid: size for pid, size in reading.processes.items() if os.path.exists(f"/proc/{pid}")}
    for pid in sorted(alive.keys() - (ours() if alive else set())):
        if _comm(pid) not in _SERVERS:
            return f"{name(device)} is in use by {process(pid, alive[pid])}"
    if not alive and not old and device.memory and (reading.memory or 0) > MUCH * device.memory:
        amount = f"{format_size(reading.memory or 0)} of {format_size(device.memory)}"
        return f"{name(device)} is in use by programs that cannot be seen from here ({amount})"
    return None


def held(device: Device, taker: int | None, left: Sequence[int]) -> str:
    """That a device is locked.

    Parameters
    ----------
    device
        The device.
    taker
        The process that took it, where that is known.
    left
        Processes that a step has left there whose supervisor was killed.
    """
    if left:
        return f"{name(device)} is being freed from {process(left[0])}, which a step has left there"
    by = "another run" if taker is None else f"another run ({process(taker)})"
    return f"{name(device)} is held by {by}"


def name(device: Device) -> str:
    """``GPU 0 (NVIDIA L4)``."""
    what = "GPU" if device.vendor in (None, "nvidia", "amd", "intel") else "device"
    number = f"{what} {device.index}" if device.index is not None else f"{what} {device.uuid}"
    slice_of = f"slice {device.partition} of " if device.partition else ""
    model = device.model or device.kind
    return slice_of + number + (f" ({model})" if model else "")


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
