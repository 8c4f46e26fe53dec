"""Code packages: a project's files as one blob, the same bytes for the same content.

The form is an uncompressed tar: a compressor's output differs between versions of the compressor,
and the same project would get another digest on another machine. Names are sorted; times, owners and
all of the permissions but "executable" are left out.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import attrs

from upshift._version import __version__
from upshift.config.home import home
from upshift.config.sizes import format_size
from upshift.errors import StoreError, StoreUnavailable, UsageError
from upshift.spec.codec import decode, encode
from upshift.store.digest import split
from upshift.store.ignore import unreadable
from upshift.store.memo import Memo, now
from upshift.store.project_files import LeftOut, ProjectFile, Scan

if TYPE_CHECKING:
    from upshift.store.store import Store

LIMIT = 100 * 10**6
"""Bytes. A package goes to every node of every task; what is larger is data."""

_BLOCK = 512


@attrs.frozen(kw_only=True)
class Package:
    """A code package.

    Parameters
    ----------
    digest
        Of the blob in the store.
    bytes
        Size of the blob.
    files
        Names of the files, sorted.
    left_out
        What it does not hold though no ignore file names it.
    """

    digest: str
    bytes: int
    files: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


@attrs.frozen(kw_only=True)
class Preview:
    """What a code package would hold.

    Parameters
    ----------
    bytes
        Size of the files together.
    files, left_out
        As in :class:`Package`.
    """

    bytes: int
    files: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()


def make_package(project: Path, store: Store, *, exclude: Iterable[Path] = ()) -> Package:
    """Put a project's files into the store.

    ``.gitignore`` and ``.upshiftignore`` are honoured as git does, in every folder and in the
    repository around the project. ``UPSHIFT_HOME``, the store, virtual environments, caches and what
    looks like a secret are never in it. Symbolic links are followed within the project only.

    Parameters
    ----------
    project
        The project's folder.
    store
        Where the package goes.
    exclude
        Further folders, and files with secrets, that are left out.

    Raises
    ------
    UsageError
        The project is too large, or a file of it cannot be read.
    StoreUnavailable
        The store cannot be written.
    """
    kept_out = sorted({str(path) for path in (home(), store.root, *exclude)})
    memo = Memo("code package", __version__, os.path.realpath(project), *kept_out)
    known = memo.recall()
    if known is not None and store.find(known["digest"]):
        return decode(Package, known)
    since = now()
    scan = Scan(project, map(Path, kept_out))
    _refuse_too_large(scan.root, scan.files)
    digest, size = store.put(_archive(scan.files))
    names = tuple(entry.name for entry in scan.files)
    package = Package(digest=digest, bytes=size, files=names, left_out=scan.left_out)
    memo.remember(encode(package), scan.watched, since=since)
    return package


def preview_package(project: Path, store: Store, *, exclude: Iterable[Path] = ()) -> Preview:
    """What :func:`make_package` would put into the store; the parameters are the same.

    Raises
    ------
    UsageError
        The project is too large, or a file of it cannot be read.
    """
    scan = Scan(project, (home(), store.root, *exclude))
    _refuse_too_large(scan.root, scan.files)
    return Preview(
        bytes=sum(entry.size for entry in scan.files),
        files=tuple(entry.name for entry in scan.files),
        left_out=scan.left_out,
    )


def unpack(digest: str, store: Store, folder: Path) -> Path:
    """Unpack a code package into a folder of its own, which appears whole or not at all.

    Parameters
    ----------
    digest
        Of the package.
    store
        Where it is.
    folder
        Of all packages. One that is there already is taken as it is.

    Returns
    -------
    Path
        The package's own, below ``folder`` under its digest.

    Raises
    ------
    BlobMissing, BlobDamaged
        The package is not intact.
    StoreError
        It holds something other than files below its own folder; nothing is unpacked then.
    StoreUnavailable
        The folder cannot be written.
    """
    destination = folder / split(digest)[1]
    if _has_entries(destination):
        return destination
    store.check(digest)
    draft = destination.with_name(f".{destination.name}.{secrets.token_hex(6)}")
    try:
        draft.mkdir(parents=True)
        _extract(store.blob_path(digest), draft)
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


def unpacked(digest: str, store: Store) -> Path:
    """The folder of a code package in ``UPSHIFT_HOME``, where it is unpacked once; see :func:`unpack`."""
    return unpack(digest, store, home() / "code")


def _refuse_too_large(root: str, files: Sequence[ProjectFile]) -> None:
    total = sum(entry.size for entry in files)
    if total <= LIMIT:
        return
    largest = sorted(files, key=lambda entry: -entry.size)[:5]
    raise UsageError(
        f"the project {root} is too large for a code package: "
        f"{format_size(total)}, and {format_size(LIMIT)} is the limit",
        why="The largest files are:\n"
        + "\n".join(f"{format_size(entry.size):>8}  {entry.name}" for entry in largest),
        fix="Name what steps do not import in .upshiftignore, in the form of .gitignore, for example:\n"
        f"/{largest[0].name}",
    )


def _archive(files: Sequence[ProjectFile]) -> bytearray:
    archive = bytearray()
    for entry in files:
        try:
            with open(entry.source, "rb") as opened:
                content = opened.read()
        except OSError as error:
            raise unreadable(entry.source, error) from error
        archive += _header(entry, len(content))
        archive += content
        archive += bytes(-len(content) % _BLOCK)
    archive += bytes(2 * _BLOCK)
    return archive


def _header(entry: ProjectFile, size: int) -> bytes:
    info = tarfile.TarInfo(entry.name)
    info.size = size
    info.mode = 0o755 if entry.executable else 0o644
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _extract(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:", encoding="utf-8", errors="surrogateescape") as package:
            members = package.getmembers()
            for member in members:
                _refuse_hostile(member)
            for member in members:
                _write(folder / member.name, member, package.extractfile(member))
    except tarfile.TarError as error:
        raise StoreError(f"{archive} is not a code package", why=str(error)) from error


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
