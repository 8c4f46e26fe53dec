"""What a step does to its own copies of files: it may change them, and loses that unless it returns them.

A pipeline that is given an existing folder to write results to, as a ``Path``, would never see them. So the
step's log says what was written and how to keep it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from upshift.runtime.storage.serializers import scratch
from upshift.runtime.storage.serializers.parts import parts_of

_Listing = dict[str, tuple[int, int]]


class Copies:
    """The copies that a task has been given, as they are when this is made."""

    def __init__(self) -> None:
        self._top = os.environ.get(scratch.VARIABLE, "")
        folders = sorted(os.listdir(self._top)) if os.path.isdir(self._top) else []
        self._before = {folder: _listing(os.path.join(self._top, folder)) for folder in folders}

    def remarks(self, step: str, value: object) -> Iterator[str]:
        """What to say of what was written to them; of those that ``value`` is from, nothing is lost."""
        for folder, before in self._before.items():
            path = os.path.join(self._top, folder)
            written = sorted(name for name, state in _listing(path).items() if before.get(name) != state)
            if written and not any(part.is_relative_to(path) for part in _paths(value)):
                more = f" and {len(written) - 1:,} more" if len(written) > 1 else ""
                yield (
                    f"{step} wrote {written[0]}{more} to its own copy of an input, which goes with the task. "
                    "To keep it, return its path; to write in place, pass the path as a str."
                )


def _paths(value: object) -> Iterator[Path]:
    return (part for _, part in parts_of(value) if isinstance(part, Path))


def _listing(top: str) -> _Listing:
    """Size and time of each file, by its path from ``top``."""
    found: _Listing = {}
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(
                OSError
            ):  # removed meanwhile, or in a folder that may not be looked into
                status = os.lstat(path)
                found[os.path.relpath(path, top)] = (status.st_size, status.st_mtime_ns)
    return found
