"""What a step does to its own copies of files: it may change them, and loses that unless it returns them.

A pipeline that is given an existing folder to write results to, as a ``Path``, would never see them. So the
step's log says what was written and how to keep it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from upshift.runtime.storage.serializers import scratch
from upshift.runtime.storage.serializers.parts import parts_of

_Listing = dict[str, tuple[int, int]]


class Copies:
    """The copies among the inputs of a task, as they are when this is made."""

    def __init__(self, inputs: Mapping[str, object]) -> None:
        top = os.environ.get(scratch.VARIABLE, "")
        own = {path for path in _paths(dict(inputs)) if top and path.is_relative_to(top)}
        self._before = {path: _listing(path) for path in sorted(own)}

    def remarks(self, step: str, value: object) -> Iterator[str]:
        """What to say of what was written to them; of those that ``value`` is from, nothing is lost."""
        for path, before in self._before.items():
            written = sorted(name for name, state in _listing(path).items() if before.get(name) != state)
            if written and not any(part.is_relative_to(path) for part in _paths(value)):
                more = f" and {len(written) - 1:,} more" if len(written) > 1 else ""
                yield (
                    f"{step} wrote {written[0]}{more} to its own copy of an input, which goes with the task. "
                    "To keep it, return its path; to write in place, pass the path as a str."
                )


def _paths(value: object) -> Iterator[Path]:
    return (part for _, part in parts_of(value) if isinstance(part, Path))


def _listing(top: Path) -> _Listing:
    """Size and time of each file at or below ``top``, by its path from the folder that this is in."""
    found: _Listing = {}
    files = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
    for path in files if top.is_dir() else [str(top)]:
        if f"{os.sep}__pycache__{os.sep}" in path:  # an import wrote it
            continue
        with contextlib.suppress(OSError):  # removed meanwhile, or in a folder that may not be looked into
            status = os.lstat(path)
            found[os.path.relpath(path, top.parent)] = (status.st_size, status.st_mtime_ns)
    return found
