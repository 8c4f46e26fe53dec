"""Where device files, sysfs and procfs are, and the locks of the devices."""

from __future__ import annotations

import os
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
