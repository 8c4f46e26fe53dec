"""Where device files, sysfs and procfs are."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = "UPSHIFT_DEVICE_ROOT"
"""Environment variable: a folder in which ``dev``, ``sys`` and ``proc`` are looked for, instead of ``/``."""


def device_root() -> Path:
    """The folder that holds ``dev``, ``sys`` and ``proc``."""
    return Path(os.environ.get(ROOT) or "/")
