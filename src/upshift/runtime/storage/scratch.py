"""Folders for files that were read from the store; they go when the process, or its task, ends.

They are in ``UPSHIFT_HOME/scratch``, each locked by the process that uses it, and by its forks. One that
nobody has locked is left over from a process that was killed; :func:`sweep` removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from upshift.errors import StoreUnavailable
from upshift.model.configuration import home, make_folder

VARIABLE = "UPSHIFT_SCRATCH"
"""Environment variable: a folder, not made yet, that somebody else removes. A supervisor sets it for
a step process, which may be killed before it could tidy up."""
_numbers: ContextVar[Iterator[int] | None] = ContextVar("numbers", default=None)
"""Of the folders that processes of this task share; None: what is loaded now is this process's own."""


def place() -> Path:
    """Where all the folders are."""
    return home() / "scratch"


def unused() -> str:
    """The path of a folder that nobody has."""
    return str(place() / f"{os.getpid()}-{secrets.token_hex(8)}")


def new_folder() -> str:
    """An empty folder of this process's own, below :data:`VARIABLE` if that is set."""
    given = os.environ.get(VARIABLE)
    top = _claimed(given, os.getpid()) if given else _own(str(place()), os.getpid())
    return tempfile.mkdtemp(dir=top)


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within, all processes of a task on this node have one folder for what each loads as its n-th."""
    before = _numbers.set(itertools.count())
    try:
        yield
    finally:
        _numbers.reset(before)


def filled(fill: Callable[[str], None]) -> str:
    """A folder that ``fill`` has filled, here or, if it is :func:`shared`, in another process of the task."""
    given, numbers = os.environ.get(VARIABLE), _numbers.get()
    if numbers is None or not given:
        folder = new_folder()
        fill(folder)
        return folder
    folder = os.path.join(_claimed(given, os.getpid()), f"input{next(numbers)}")
    draft = f"{folder}.part"
    guard = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not os.path.isdir(folder):
            remove(draft)  # of a process that was killed as it filled it
            os.mkdir(draft, 0o700)
            fill(draft)
            os.rename(draft, folder)
    finally:
        os.close(guard)
    return folder


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Turn an ``OSError`` into a ``StoreUnavailable`` that says what the folders are for."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"files cannot be copied from the store to {os.environ.get(VARIABLE) or place()}",
            why=os.strerror(error.errno) if error.errno else str(error),
            fix="Set UPSHIFT_HOME to a folder that can be written, on a disk with enough room.",
        ) from error


def remove(folder: str) -> bool:
    """Remove a folder, files without permission to write included.

    Returns
    -------
    bool
        False: something is left of it, which belongs to another user.
    """
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):  # it has gone, or is another user's
            os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def sweep() -> None:
    """Remove the folders of processes that were killed."""
    for folder in left_over():
        remove(folder)


def left_over(
    among: Path | None = None,  # where to look; None: :func:`place`
) -> Iterator[str]:
    """The folders of processes that were killed; nobody takes one while it is looked at."""
    top = among or place()
    try:
        names = os.listdir(top)
    except OSError:  # there are none
        return
    for name in names:
        path = str(top / name)
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # somebody else was faster
            continue
        try:
            # Who cannot tell whether a folder is in use, as on a file system without locks, leaves it.
            with contextlib.suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
        finally:
            os.close(folder)


@functools.cache
def _own(place: str, owner: int) -> str:
    sweep()
    folder = _claimed(unused(), owner)
    atexit.register(_remove_own, folder, owner)
    return folder


@functools.cache
def _claimed(folder: str, owner: int) -> str:
    """Make a folder and lock it for as long as this process, or a fork of it, lives."""
    make_folder(place())
    locked(folder)
    return folder


def locked(folder: str) -> int:
    """Make a folder, and lock it against :func:`left_over`; give the descriptor that has the lock.

    Raises
    ------
    OSError
        It cannot be made.
    """
    while True:
        make_folder(Path(folder).parent)
        Path(folder).mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if os.path.exists(folder) and os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return descriptor
            os.close(descriptor)


def _remove_own(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a fork has the same list, and the files are not its own
        remove(folder)
