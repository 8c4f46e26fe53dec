"""Where device files, sysfs and locks are, and reading them: what is missing, or cannot be read, is None."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

ROOT = "UPSHIFT_DEVICE_ROOT"
"""Environment variable: a folder in which ``dev``, ``sys`` and ``proc`` are looked for, instead of ``/``."""
LOCKS = "UPSHIFT_DEVICE_LOCKS"
"""Environment variable: the folder with the locks, instead of ``/tmp/upshift-devices``."""


def device_root() -> Path:
    """The folder that holds ``dev``, ``sys`` and ``proc``."""
    return Path(os.environ.get(ROOT) or "/")


def lock_folder() -> Path:
    """The folder with the locks; it is there once anybody has had a device."""
    chosen = os.environ.get(LOCKS)
    if not chosen:
        return device_root() / "tmp" / "upshift-devices"  # where anybody may have put a link: that is refused
    return Path(os.path.realpath(chosen) if os.path.islink(chosen) else chosen)


_REFUSALS = {
    errno.ENOENT: "is not there: it was not passed into this container",
    errno.EACCES: "may not be opened by this user",
    errno.EPERM: "is not allowed by the device rules (cgroup) of this container or job",
    errno.ENXIO: "answers to no device",
    errno.ENODEV: "answers to no device",
}


def text(path: Path) -> str | None:
    """What the file says, without blanks around it; None: nothing."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The file's number, decimal or ``0x…``, if it is one of at least 0."""
    try:
        value = int(text(path) or "", 0)
    except ValueError:
        return None
    return value if value >= 0 else None


def scaled(path: Path, unit: float) -> float | None:
    """The file's number, in units of ``unit``."""
    value = number(path)
    return None if value is None else value * unit


def first(folder: Path, pattern: str) -> Path:
    """The first file below that the pattern fits; one that is not there, if none does."""
    return next(iter(sorted(folder.glob(pattern))), folder / "missing")


def numbered(folder: Path | str, prefix: str) -> list[int]:
    """The numbers N for which there is ``folder/prefixN``, in order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    ends = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    return sorted(int(end) for end in ends if end.isdecimal())


def pci_address(device: Path) -> str:
    """``0000:03:00.0``, of a link to a device's folder."""
    return os.path.basename(os.path.realpath(device))


def numa_node(device: Path) -> int | None:
    """The NUMA node that a device is attached to, by its folder on the bus; a machine with one says -1."""
    return number(device / "numa_node")


def refusal(path: Path) -> str | None:
    """Why the device file cannot be opened, which asks permissions and cgroup; None: it can.

    Only for devices that do not mind: some may be opened by one process at a time.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return _REFUSALS.get(error.errno or 0, error.strerror or str(error))
    return None


def no_access(path: Path) -> str | None:
    """The same, by permissions alone: the device is not opened."""
    if os.access(path, os.R_OK | os.W_OK):
        return None
    return _REFUSALS[errno.EACCES if path.exists() else errno.ENOENT]


def chosen(selection: str, count: int) -> list[int]:
    """Numbers below ``count`` that a list like ``0,2-4`` names; what is no such number ends it."""
    found: list[int] = []
    for part in selection.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            break
        low, high = int(match[1]), int(match[2] or match[1])
        if high >= count:
            break
        found += [n for n in range(low, high + 1) if n not in found]
    return found
