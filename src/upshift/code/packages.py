"""Code packages: a project's files as one blob, the same bytes for the same content.

The form is an uncompressed tar: a compressor's output differs between versions of the compressor,
and the same project would get another digest on another machine. Names are sorted; times, owners and
all of the permissions but "executable" are left out.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift._version import __version__
from upshift.code.project_files import LeftOut, ProjectFile, Scan, unreadable
from upshift.errors import UsageError
from upshift.model.home import home
from upshift.model.settings.sizes import format_size
from upshift.model.spec.codec import decode, encode
from upshift.runtime.storage.memo import Memo, now

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store

LIMIT = 100 * 10**6
"""Bytes. A package goes to every node of every task; what is larger is data."""

_BLOCK = 512


@attrs.frozen(kw_only=True)
class Package:
    """A code package."""

    digest: str  # of the blob in the store
    bytes: int  # size of the blob
    files: tuple[str, ...]  # names of the files, sorted
    left_out: tuple[LeftOut, ...] = ()  # what it does not hold though no ignore file names it


@attrs.frozen(kw_only=True)
class PackagePart:
    """One file or folder at the top of a project, as far as a code package holds it."""

    name: str  # its name; a folder's ends with a slash
    # files, bytes: how many files it is, and their size together
    files: int
    bytes: int


@attrs.frozen(kw_only=True)
class Preview:
    """What a code package would hold."""

    bytes: int  # of the files together
    # files, left_out: as in :class:`Package`
    files: tuple[str, ...]
    parts: tuple[PackagePart, ...] = ()  # what is at the top of the project, the largest first
    left_out: tuple[LeftOut, ...] = ()


def make_package(
    project: Path,
    store: Store,  # where the package goes
    *,
    exclude: Iterable[Path] = (),  # further folders, and files with secrets, that are left out
) -> Package:
    """Put a project's files into the store.

    ``.gitignore`` and ``.upshiftignore`` are honoured as git does, in every folder and in the
    repository around the project. ``UPSHIFT_HOME``, the store, virtual environments, caches and what
    looks like a secret are never in it. Symbolic links are followed within the project only.

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
        parts=_parts(scan.files),
        left_out=scan.left_out,
    )


def _parts(files: Sequence[ProjectFile]) -> tuple[PackagePart, ...]:
    found: dict[str, PackagePart] = {}
    for entry in files:
        top, slash, _ = entry.name.partition("/")
        known = found.get(top + slash, PackagePart(name=top + slash, files=0, bytes=0))
        found[known.name] = attrs.evolve(known, files=known.files + 1, bytes=known.bytes + entry.size)
    return tuple(sorted(found.values(), key=lambda part: (-part.bytes, part.name)))


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
        fix="Name what steps do not import in .upshiftignore, in the form of .gitignore, for example the "
        f"largest file, of {format_size(largest[0].size)}:\n/{largest[0].name}",
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
