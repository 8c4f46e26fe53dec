"""What is kept in ``UPSHIFT_HOME/cache/images`` to save time: losing any of it costs time, and nothing else.

A file there appears whole or not at all. Reading one marks it as used; ``upshift gc`` removes what nobody has
used for long.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from upshift.model.home import home
from upshift.runtime.storage.files import replacing

PARENTS, SEEN, LAYERS, BYTECODE = KINDS = ("parents", "seen", "layers", "bytecode")
"""The folders: what was read of parents, what was seen in layers, layers that were made, and bytecode."""

_OFTEN = 86_400.0  # seconds between two marks, so that not every reading writes


def folder(kind: str) -> Path:
    """The folder of a kind; it need not be there."""
    return home() / "cache" / "images" / kind


def used(file: Path) -> Path:
    """Mark a file as used; it need not be there."""
    with contextlib.suppress(OSError):
        if time.time() - file.lstat().st_ctime > _OFTEN:
            os.utime(file)
    return file


@contextlib.contextmanager
def keeping(file: Path) -> Iterator[Path]:
    """Write a file that appears whole or not at all; where that cannot be, there is none.

    Yields
    ------
    Path
        Where to write it, within.
    """
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError), replacing(file) as draft:
        yield draft
