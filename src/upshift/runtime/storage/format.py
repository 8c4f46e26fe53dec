"""The version of a store's form, in its file ``format``: a newer one is refused, never guessed at."""

from __future__ import annotations

import contextlib
import os

from upshift.errors import ConfigError
from upshift.runtime.storage.files import create, discard, temporary, write_all

VERSION = 1
"""What this Upshift writes, and the newest that it reads. A store without the file is of version 1."""


def refuse_newer(root: str) -> None:
    """See that this Upshift knows the form of a store; one that is not there yet will have it."""
    path = f"{root}/format"
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = file.read(64).strip()
    except OSError:  # no store yet, or one that cannot be read: whoever uses it will say so
        return
    refuse_version(found, root)


def refuse_version(found: str, root: str) -> None:
    """See that this Upshift knows a version, which the store at ``root`` says it is of."""
    if not found.isdecimal():
        raise ConfigError(
            f"{root} is not a store",
            why=f"Its file format holds {found!r}, where the version of a store should be.",
            fix="See that the store's address is right. If it is, write 1 into that file.",
        )
    if int(found) > VERSION:
        raise ConfigError(
            f"the store {root} was made by a newer version of Upshift",
            why=f"It is of version {found}; this Upshift supports versions up to {VERSION}.",
            fix="Upgrade: pip install --upgrade upshift",
        )


def mark(root: str) -> None:
    """Write the version into a store that has none."""
    path = f"{root}/format"
    if os.path.exists(path):
        return
    draft = temporary(f"{root}/tmp")
    descriptor = create(draft)
    try:
        write_all(descriptor, memoryview(f"{VERSION}\n".encode()))
        os.fsync(descriptor)  # once for a store; an empty one, after a power loss, would be refused
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            os.link(draft, path)
    finally:
        os.close(descriptor)
        discard(draft)
