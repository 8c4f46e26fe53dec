"""Code packages and runtimes, unpacked once for all processes of a user: ``UPSHIFT_HOME/code/DIGEST``.

Each is locked by the processes that use it, and by their forks, so that ``gc`` takes none from them. It
appears whole, and goes at one moment: what is half there, because somebody was killed, has a name that
begins with a dot.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from upshift.errors import StoreError, StoreUnavailable
from upshift.model.configuration import home, make_folder
from upshift.runtime.storage import scratch
from upshift.runtime.storage.digest import split

if TYPE_CHECKING:  # what is unpacked already takes no archive to be opened
    import tarfile

    from upshift.runtime.storage.store import Store

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
    return (folder or place()) / split(digest)[1]


def unpacked(digest: str, store: Store, *, extract: Extract | None = None) -> Path:
    """The folder of a code package in ``UPSHIFT_HOME``, where it is unpacked once; see :func:`unpack`.

    It stays as long as this process, or a fork of it, lives.
    """
    while True:
        folder = unpack(digest, store, place(), extract=extract)
        if str(folder) in _in_use or _take(str(folder)):
            return folder


def unpacked_runtime(digest: str, store: Store) -> Path:
    """The same for a runtime package, with bytecode for this Python's version."""
    return unpacked(digest, store, extract=_extract_zip)


def use(folder: str) -> bool:
    """Keep a folder of these as long as this process, or a fork of it, lives. False: there is none."""
    return os.path.isdir(folder) and (folder in _in_use or _take(folder))


def place() -> Path:
    """Where all of them are."""
    return home() / "code"


def left_over(
    wanted: Collection[bytes],  # digests of the packages that stay all the same
    abandoned: float,  # seconds after which something half done was left by a process that was killed
) -> Iterator[str]:
    """The folders that nobody uses; nobody begins to while one is looked at."""
    try:
        names = sorted(os.listdir(place()))
    except OSError:  # there are none
        return
    for name in names:
        path = str(place() / name)
        with contextlib.suppress(OSError), _alone(path) as status:
            if name.startswith("."):
                if time.time() - status.st_ctime > abandoned:
                    yield path
                continue
            with contextlib.suppress(ValueError):  # nothing that Upshift has put there
                if bytes.fromhex(name) not in wanted:
                    yield path


def remove(folder: str) -> None:
    """Remove one; whoever looks for it meanwhile finds all of it or nothing."""
    path = Path(folder)
    if not path.name.startswith("."):
        path = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        os.rename(folder, path)
    scratch.remove(str(path))


def _take(folder: str) -> bool:
    """Lock a folder for as long as this process lives. False: it was removed before."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with contextlib.suppress(OSError):  # a file system without locks, where gc removes none
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        there = os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        there = False
    if there:
        _in_use[folder] = descriptor
    else:
        os.close(descriptor)
    return there


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
