"""Where things are: ``UPSHIFT_HOME``, and the project that a file belongs to."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT_MARKS = ("upshift.toml", "pyproject.toml", ".git")


def home() -> Path:
    """The folder with Upshift's state: ``UPSHIFT_HOME``, by default ``~/.upshift``. It may not exist yet."""
    configured = os.environ.get("UPSHIFT_HOME")
    return Path(configured).expanduser().absolute() if configured else Path.home() / ".upshift"


def project_root(file: Path) -> Path:
    """The nearest folder upwards with one of :data:`PROJECT_MARKS`, else the file's own folder."""
    folder = file.absolute().parent
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in PROJECT_MARKS):
            return candidate
    return folder
