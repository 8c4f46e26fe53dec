"""Files that appear whole or not at all, and errors of the file system in a user's words.

On a folder that machines share by NFS, a client believes for a while what it has looked up (nfs(5), "Data and
metadata coherence"): for up to ``acdirmax`` seconds, for instance, that there is no such file. It asks its
server when a file or folder is opened, and sends what was written when one is closed. :func:`ask_again`,
:func:`fresh` and :func:`hand_on` do that on purpose; on a disk they cost some microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from upshift.errors import StoreUnavailable
from upshift.model import configuration

_FIXES = {
    errno.ENOSPC: "Free some space, or choose another store.",
    errno.EDQUOT: "Free some space, or choose another store.",
    errno.EROFS: "Choose a store that can be written: store = … in upshift.toml, or UPSHIFT_STORE.",
    errno.EACCES: "Give this user access to it, or choose another store: store = …, or UPSHIFT_STORE.",
    errno.EPERM: "Give this user access to it, or choose another store: store = …, or UPSHIFT_STORE.",
    errno.ENOTDIR: "The store must be a folder: set store = … in upshift.toml, or UPSHIFT_STORE.",
    errno.EOPNOTSUPP: "A store needs a file system with hard links: choose another store.",
    errno.EMFILE: "Raise the limit on open files (`ulimit -n`).",
}
_Seen = TypeVar("_Seen")
Signature = tuple[int, int, int, int]
"""Size, time of the last change of content and of status (nanoseconds), inode."""
_CHANCE = random.SystemRandom()  # a step may have seeded the one of the module, and must not miss a number
_ATTEMPTS = 50
_PAUSE = 0.01
"""At most, in seconds, before a file that was replaced while it was read is read again."""
_PIECE = 1 << 30
_CHUNK = 1 << 20
_FIX = "See that the store's file system is mounted and healthy, or choose another store."


@contextlib.contextmanager
def available(action: str, path: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StoreUnavailable`` that names path, reason and fix."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"the store cannot be {action}: {path}",
            why=os.strerror(error.errno) if error.errno else str(error),
            fix=_FIXES.get(error.errno or 0, _FIX),
        ) from error


def temporary(folder: str) -> str:
    """A name for a file that is not complete yet; it tells which process of which boot it belongs to."""
    return f"{folder}/{boot_id()[:8]}-{os.getpid()}-{os.urandom(8).hex()}"


@functools.cache
def boot_id() -> str:
    """Identifies this boot of this machine's kernel; ``"unknown"`` where the system does not say."""
    return _line("/proc/sys/kernel/random/boot_id")


@functools.cache
def machine_id() -> str:
    """Identifies this machine; ``"unknown"`` where the system does not say."""
    return _line("/etc/machine-id")


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.readline().strip() or "unknown"
    except OSError:
        return "unknown"


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Write a file beside another one and put it in its place: a reader has the one or the other, whole."""
    draft = file.with_name(f".{file.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield draft
        os.replace(draft, file)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def create(path: str, *, mode: int = 0o666, access: int = os.O_WRONLY) -> int:
    """Open a new file, making its folder if need be."""
    flags = access | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        configuration.make_folder(Path(path).parent)
        return os.open(path, flags, mode)


def ask_again(path: str) -> None:
    """Have an NFS client ask its server the next time that something at this path is looked for.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        There is no folder in which it could be.
    """
    folder = os.path.dirname(path) or os.curdir
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags)
    except FileNotFoundError:  # or that is what the client believes
        if folder in (os.curdir, os.sep):
            raise
        ask_again(folder)
        descriptor = os.open(folder, flags)
    os.close(descriptor)


def fresh(path: str, look: Callable[[], _Seen]) -> _Seen:
    """What ``look`` finds at a path; where that is nothing at first, an NFS client has to ask its server."""
    missing = False
    for left in reversed(range(_ATTEMPTS)):
        try:
            return look()
        except FileNotFoundError:
            if missing:
                raise
            missing = True
        except OSError as error:
            if error.errno != errno.ESTALE or not left:  # stale: another client has replaced it meanwhile
                raise
            time.sleep(_CHANCE.uniform(0, _PAUSE))  # else one that goes on replacing it may be in step
        ask_again(path)
    raise AssertionError("the last attempt returns or raises")


def exists(path: str) -> bool:
    """Whether there is something at a path, for every client of NFS."""
    try:
        fresh(path, lambda: os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def hand_on(descriptor: int) -> None:
    """Have others see what was written to a file that stays open: any close has an NFS client send it."""
    os.close(os.dup(descriptor))


def move(draft: str, path: str, *, power: bool) -> None:
    """Put a complete file where it belongs, in place of what is there; see :func:`with_folder`."""
    own = os.stat(draft)

    def rename() -> None:
        try:
            os.rename(draft, path)
        except FileNotFoundError:
            # Over NFS a request may be sent twice: then the draft has been moved by the first one.
            try:
                there = fresh(path, lambda: os.stat(path))
            except FileNotFoundError:
                there = None
            if there is None or not os.path.samestat(own, there):
                raise

    with_folder(path, rename, power=power)


def link(draft: str, path: str, *, power: bool) -> bool:
    """Put a complete file where nothing is yet, under a second name; False: something is. As :func:`move`."""
    try:
        with_folder(path, lambda: os.link(draft, path), power=power)
    except FileExistsError:
        # Over NFS a request may be sent twice: then it is our own link that is there (open(2), O_EXCL). How
        # many names a file has, a client asks its server when it opens the file.
        with open(draft, "rb", buffering=0) as file:
            return os.fstat(file.fileno()).st_nlink == 2
    return True


def with_folder(path: str, operation: Callable[[], None], *, power: bool) -> None:
    """Do what puts an entry at ``path``; make its folder where that is missing, or is removed meanwhile.

    With ``power`` the entry is on disk when this returns, and so are those of the folders that were made.
    """
    folder = os.path.dirname(path)
    made: list[str] = []
    for attempt in reversed(range(_ATTEMPTS)):
        try:
            operation()
            break
        except FileNotFoundError:  # or somebody has just removed the folder, since it was empty
            if not attempt:
                raise
            with contextlib.suppress(FileNotFoundError):  # and one above it at this very moment
                made += make_folder(folder)
    if power:
        for parent in (folder, *made):
            sync_folder(parent)


def make_folder(folder: str) -> list[str]:
    """Make a folder, and give those above it that have a new entry by that."""
    parents: list[str] = []
    there = folder
    while not os.path.isdir(there):
        there = os.path.dirname(there)
        parents.append(there)
    configuration.make_folder(Path(folder))
    return parents


def write_all(fd: int, view: memoryview) -> None:
    """Write all of it: a single call writes 2 GiB at most."""
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(path: str) -> None:
    """Flush a folder's entries to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def copy(source: int, destination: int) -> None:
    """Copy the rest of an open file; on some file systems both share the content from then on."""
    try:
        while os.copy_file_range(source, destination, _PIECE):
            pass
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        while chunk := os.read(source, _CHUNK):
            write_all(destination, memoryview(chunk))


def discard(path: str) -> None:
    """Remove a temporary file, wherever it got to."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def stale(folder: str, older: float) -> Iterator[tuple[str, int]]:
    """The files that nobody has touched for ``older`` seconds: path, and size in bytes."""
    limit = time.time() - older
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # it has just got where it belongs
                continue
            # Not its modification time: that of a blob about to be put in place is a stamp.
            if status.st_ctime <= limit:
                yield entry.path, status.st_size


def signature(status: os.stat_result) -> Signature:
    """What changes when the file does, or the folder's list of entries."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def signature_of(path: str) -> Signature | None:
    """The signature of a file or folder as it is now, or None where there is none."""
    try:
        return signature(os.stat(path, follow_symlinks=False))
    except OSError:
        return None
