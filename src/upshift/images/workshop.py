"""A folder to make an image in: :func:`workshop`. Nothing of it outlives its process for long."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from upshift.errors import ImageError
from upshift.model.home import home

_PREFIX, _LOCK = "building-", ".lock"


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """A folder for as long as the block runs, which nobody else can read.

    It is in ``UPSHIFT_HOME/cache/images``, beside what images are made from. Folders of processes that were
    killed are removed.

    Raises
    ------
    ImageError
        The disk is full, there or in the block, or the folder cannot be made.
    """
    with _room_on_disk(), _locked_folder() as folder:
        yield folder


@contextlib.contextmanager
def _locked_folder() -> Iterator[Path]:
    _place().mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with open(_place() / f"workshops{_LOCK}", "wb") as door:  # none is swept before it is locked
            fcntl.flock(door, fcntl.LOCK_EX)
            _sweep()
            lock = held.enter_context(
                tempfile.NamedTemporaryFile(prefix=_PREFIX, suffix=_LOCK, dir=_place(), delete=False)
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(lock.name).with_suffix("")
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(lock.name).unlink(missing_ok=True)


def in_use(name: str) -> bool:
    """Whether somebody makes an image in the folder of this name."""
    try:
        with (_place() / f"{name}{_LOCK}").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _sweep() -> None:
    for lock in _place().glob(f"{_PREFIX}*{_LOCK}"):
        with contextlib.suppress(OSError), open(lock, "rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()


def _place() -> Path:
    return home() / "cache" / "images"


@contextlib.contextmanager
def _room_on_disk() -> Iterator[None]:
    """A full disk in a user's words."""
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
