"""The cache of images in ``UPSHIFT_HOME/cache/images``, and the folders that images are built in.

Losing any of it costs only time. A file appears complete or not at all. Reading one marks it as used;
``upshift gc`` removes those that have not been used for long.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from upshift.errors import ImageError
from upshift.model.configuration import home, make_folder
from upshift.runtime.storage.files import replacing

PARENTS, SEEN, LAYERS, BYTECODE, LOCKS = KINDS = ("parents", "seen", "layers", "bytecode", "locks")
"""The folders of files: what was read of parents and found in layers, records of layers, bytecode, locks."""

COMPILED = "compiled"
"""The folder with a cache of uv for each image that something was compiled in; each is removed as a whole."""

T = TypeVar("T")

_LOOK = 0.2  # seconds between two calls of ``waiting``
_OFTEN = 86_400.0  # seconds between two marks, so that not every reading writes
_BUILDING, _LOCK = "building-", ".lock"


def folder(kind: str) -> Path:
    """The folder of a kind, which may not exist."""
    return _place() / kind


def used(file: Path) -> Path:
    """Mark a file as used, if it exists."""
    with contextlib.suppress(OSError):
        if time.time() - file.lstat().st_ctime > _OFTEN:
            os.utime(file)
    return file


@contextlib.contextmanager
def keeping(file: Path) -> Iterator[Path]:
    """Write a file that appears complete or not at all; where it cannot be written, there is none."""
    with contextlib.suppress(OSError):
        make_folder(file.parent)
    with contextlib.suppress(OSError), replacing(file) as draft:
        yield draft


def recalled(file: Path, read: Callable[[str], T]) -> T | None:
    """What a cached file says, parsed by ``read``; None: there is none, or it is damaged."""
    try:
        return read(used(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImageError):
        return None


def remember(file: Path, text: str) -> None:
    """Write a text to the cache, if that can be written."""
    with keeping(file) as draft:
        draft.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def build_folder() -> Iterator[Path]:
    """A private folder to build an image in, as long as the block runs.

    Folders that killed processes left are removed.
    """
    with _told_disk_errors(), _locked_folder() as folder:
        yield folder


@contextlib.contextmanager
def build_lock(what: str, *, waiting: Callable[[], object]) -> Iterator[None]:
    """Let one process on this machine build an image at a time; ``waiting`` is called while another one does.

    The lock is a socket's abstract address: it is the same for all users and homes, since they share engines,
    and is released when its process is gone.
    """
    address = f"\0upshift-image-{what}"
    while True:
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                lock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                waiting()
                lock.settimeout(_LOOK)
                with contextlib.suppress(OSError):
                    lock.connect(address)
                    lock.recv(1)  # returns when whoever has the lock is done
                continue
            lock.listen()
            yield
            return


@contextlib.contextmanager
def _locked_folder() -> Iterator[Path]:
    make_folder(_place())
    with contextlib.ExitStack() as held:
        with open(_place() / f"workshops{_LOCK}", "wb") as door:  # no folder is swept before it is locked
            fcntl.flock(door, fcntl.LOCK_EX)
            _sweep()
            lock = held.enter_context(
                tempfile.NamedTemporaryFile(prefix=_BUILDING, suffix=_LOCK, dir=_place(), delete=False)
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(lock.name).with_suffix("")
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(lock.name).unlink(missing_ok=True)


def _sweep() -> None:
    for lock in _place().glob(f"{_BUILDING}*{_LOCK}"):
        with contextlib.suppress(OSError), open(lock, "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()


def _place() -> Path:
    return home() / "cache" / "images"


@contextlib.contextmanager
def _told_disk_errors() -> Iterator[None]:
    """Raise errors of the file system as an ImageError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ImageError(
            f"the image cannot be made: {'the disk is full' if full else error.strerror or error}",
            why=f"It is made in {_place()}.",
            fix="Free some space there, or name another folder: UPSHIFT_HOME."
            if full
            else "See that UPSHIFT_HOME can be written.",
        ) from error
