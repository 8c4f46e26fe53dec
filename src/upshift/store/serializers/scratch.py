"""Folders for files that were read from the store; they go when the process, or its task, ends."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

VARIABLE = "UPSHIFT_SCRATCH"
"""Environment variable: a folder, not made yet, that somebody else removes. A supervisor sets it for
a step process, which may be killed before it could tidy up."""


def new_folder() -> str:
    """An empty folder of this process's own, below :data:`VARIABLE` if that is set, else ``TMPDIR``."""
    given = os.environ.get(VARIABLE)
    if given:
        os.makedirs(given, mode=0o700, exist_ok=True)
        return tempfile.mkdtemp(dir=given)
    folder = tempfile.mkdtemp(prefix="upshift-")
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def remove(folder: str) -> None:
    """Remove a folder, files without permission to write included."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_own(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a fork has the same list, and the files are not its own
        remove(folder)
