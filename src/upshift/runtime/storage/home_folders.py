"""Folders in ``UPSHIFT_HOME`` that processes share; each is locked by its users, so that ``gc`` leaves it.

``scratch/`` is for files that were read from the store; they go when the process, or its task, ends. One that
nobody has locked is left over from a process that was killed; :func:`sweep` removes it.

``code/DIGEST`` is a code package or a runtime, unpacked once for all processes of a user. It appears whole,
and goes at one moment: what is half there, because somebody was killed, has a name that begins with a dot.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from upshift.errors import StoreError, StoreUnavailable
from upshift.model.configuration import home, make_folder
from upshift.runtime.storage.digest import split

if TYPE_CHECKING:
    import tarfile

    from upshift.runtime.storage.store import Store


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
        # Who cannot tell whether a folder is in use, as on a file system without locks, leaves it.
        with contextlib.suppress(OSError), _alone(path):
            yield path


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
        if (descriptor := _held(folder)) is not None:  # else it was swept before it was locked
            return descriptor


def _remove_own(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a fork has the same list, and the files are not its own
        remove(folder)


# Code

_in_use: dict[str, int] = {}
"""By folder, the descriptor that has the lock of this process."""


Extract = Callable[[Path, Path], None]
"""Writes what is in a file below a folder."""


def unpack(digest: str, store: Store, folder: Path, *, extract: Extract | None = None) -> Path:
    """Unpack a code package into a folder of its own, which appears whole or not at all."""
    destination = folder_of(digest, folder)
    if _has_entries(destination):
        return destination
    archive = store.blob_path(digest)  # which brings it, and is one request less than to look for it first
    store.check(digest)
    draft = destination.with_name(f".{destination.name}.{secrets.token_hex(6)}")
    try:
        make_folder(draft.parent)
        draft.mkdir()
        (extract or _extract)(archive, draft)
        os.rename(draft, destination)
    except OSError as error:
        # Another process was faster; what it unpacked has the same content.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not _has_entries(destination):
            raise StoreUnavailable(
                f"the code package cannot be unpacked into {destination}",
                why=error.strerror or str(error),
                fix="Free the disk, or correct the folder's permissions.",
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return destination


def folder_of(digest: str, folder: Path | None = None) -> Path:
    """Where a package is once it is unpacked: in ``UPSHIFT_HOME``, or below this folder."""
    return (folder or code_place()) / split(digest)[1]


def unpacked(digest: str, store: Store, *, extract: Extract | None = None) -> Path:
    """The folder of a code package in ``UPSHIFT_HOME``, where it is unpacked once; see :func:`unpack`.

    It stays as long as this process, or a fork of it, lives.
    """
    while True:
        folder = unpack(digest, store, code_place(), extract=extract)
        if str(folder) in _in_use or _take(str(folder)):
            return folder


def unpacked_runtime(digest: str, store: Store) -> Path:
    """The same for a runtime package, with bytecode for this Python's version."""
    return unpacked(digest, store, extract=_extract_zip)


def use(folder: str) -> bool:
    """Keep a folder of these as long as this process, or a fork of it, lives. False: there is none."""
    return os.path.isdir(folder) and (folder in _in_use or _take(folder))


def code_place() -> Path:
    """Where all of them are."""
    return home() / "code"


def left_over_code(
    wanted: Collection[bytes],  # digests of the packages that stay all the same
    abandoned: float,  # seconds after which something half done was left by a process that was killed
) -> Iterator[str]:
    """The folders that nobody uses; nobody begins to while one is looked at."""
    try:
        names = sorted(os.listdir(code_place()))
    except OSError:  # there are none
        return
    for name in names:
        path = str(code_place() / name)
        with contextlib.suppress(OSError), _alone(path) as status:
            if name.startswith("."):
                if time.time() - status.st_ctime > abandoned:
                    yield path
                continue
            with contextlib.suppress(ValueError):  # nothing that Upshift has put there
                if bytes.fromhex(name) not in wanted:
                    yield path


def remove_code(folder: str) -> None:
    """Remove one; whoever looks for it meanwhile finds all of it or nothing."""
    path = Path(folder)
    if not path.name.startswith("."):
        path = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        os.rename(folder, path)
    remove(str(path))


def _take(folder: str) -> bool:
    """Lock a folder for as long as this process lives. False: it was removed before."""
    descriptor = _held(folder)
    if descriptor is not None:
        _in_use[folder] = descriptor
    return descriptor is not None


def _held(folder: str) -> int | None:
    """The descriptor that has a shared lock of a folder; None: it is not there any more."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):  # a file system without locks, where nothing is removed
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[os.stat_result]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _extract(archive: Path, folder: Path) -> None:
    import tarfile

    try:
        with tarfile.open(archive, "r:", encoding="utf-8", errors="surrogateescape") as package:
            members = package.getmembers()
            for member in members:
                _refuse_hostile(member)
            for member in members:
                _write(folder / member.name, member, package.extractfile(member))
    except tarfile.TarError as error:
        raise StoreError(f"{archive} is not a code package", why=str(error)) from error


def _extract_zip(archive: Path, folder: Path) -> None:
    import compileall
    import zipfile

    try:
        with zipfile.ZipFile(archive) as runtime:
            runtime.extractall(folder)  # which leaves out what leads out of the folder
    except zipfile.BadZipFile as error:
        raise StoreError(f"{archive} is not a runtime", why=str(error)) from error
    compileall.compile_dir(folder, quiet=2)  # whoever runs it may not write there


def _refuse_hostile(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if member.isreg() and not path.is_absolute() and ".." not in path.parts and path.parts:
        return
    raise StoreError(
        f"the code package holds {member.name!r}, which Upshift never puts there",
        why="It is not a plain file below the package's own folder.",
        fix="Nothing was unpacked. Find out who wrote it into the store.",
    )


def _write(path: Path, member: tarfile.TarInfo, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o755 if member.mode & 0o100 else 0o644), "wb") as file:
        shutil.copyfileobj(content, file)


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
