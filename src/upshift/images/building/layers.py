"""Layers of images: the same bytes for the same files, on every machine.

Names are sorted; owners, times and all of the permissions but "executable" are left out. A layer is a tar,
plain for an engine of this machine, and gzipped for a registry: level 1 is 5 times as fast as the usual one,
for a tenth more.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import attrs

from upshift.errors import RecipeError

TIME = 315532800
"""Time of every file: 1980-01-01, the earliest that a zip file can hold."""

_LEVEL = 1
_GZIP = 16  # added to zlib's window, it writes gzip's header: without a time and a name
_CHUNK = 1 << 20
_WHITEOUT = ".wh."  # https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts


@attrs.frozen(kw_only=True)
class Entry:
    """One file of a layer: its path in the image without the first slash, and a file with its content, or
    that.
    """

    path: str
    source: Path | bytes
    executable: bool = False


@attrs.frozen(kw_only=True)
class Layer:
    """A layer: digest and size as it is stored, and the digest of its tar."""

    digest: str
    diff_id: str
    bytes: int


def write_layer(entries: Iterable[Entry], file: Path, *, compressed: bool = True) -> Layer:
    """Write a layer to a new file. Of two entries with one path the first counts.

    Raises ImageError: a path leads out of the image or means something else in a layer, or a source is no
    plain file. Raises OSError: a file cannot be read, or the layer not be written.
    """
    by_path: dict[str, Entry] = {}
    for entry in entries:
        by_path.setdefault(_checked(entry.path), entry)
    folders = {str(parent) for path in by_path for parent in _parents(path)}
    if both := sorted(folders & by_path.keys()):
        raise _hostile(both[0], "it is a file and a folder")
    with open(file, "xb") as out:
        sink = _Sink(out, compressed=compressed)
        # Every folder is named with its permissions: engines make up those of folders that are not.
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(folders | by_path.keys()):
                _add(archive, path, by_path.get(path))
        return sink.finish()


def _add(archive: tarfile.TarFile, path: str, entry: Entry | None) -> None:
    header = tarfile.TarInfo(path)
    header.mtime = TIME
    header.mode = 0o755 if entry is None or entry.executable else 0o644
    if entry is None:
        header.type = tarfile.DIRTYPE
        archive.addfile(header)
    elif isinstance(entry.source, bytes):
        header.size = len(entry.source)
        archive.addfile(header, io.BytesIO(entry.source))
    else:
        # A link is not followed, and nobody waits for a pipe.
        try:
            fd = os.open(entry.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if entry.source.is_symlink():
                raise _hostile(path, "it is a link") from error
            raise
        with open(fd, "rb") as content:
            status = os.fstat(fd)
            if not os.path.isfile(fd):
                raise _hostile(path, "it is no plain file")
            header.size = status.st_size
            archive.addfile(header, content)


def _checked(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/"):
        raise _hostile(path, "it is absolute")
    if any(part in ("", ".", "..") for part in parts):
        raise _hostile(path, "it has an empty part, '.' or '..'")
    if any(part.startswith(_WHITEOUT) for part in parts):
        raise _hostile(path, f"a name that begins with {_WHITEOUT!r} removes files of the image below")
    if any(ord(character) < 32 or character in "\x7f\\" for character in path):
        raise _hostile(path, "it has a control character or a backslash in it")
    return path


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _hostile(path: str, why: str) -> RecipeError:
    return RecipeError(
        f"the file {path!r} cannot be in a layer of an image",
        why=f"{why}.",
        fix="Find the package that brings it, and do not trust it.",
    )


class _Sink(io.RawIOBase):
    """Takes a tar, and writes it, compressed or not; digests are made on the way."""

    def __init__(self, out: BinaryIO, *, compressed: bool) -> None:
        self._out = out
        window = zlib.MAX_WBITS + _GZIP
        self._compress = zlib.compressobj(_LEVEL, zlib.DEFLATED, window) if compressed else None
        self._stored, self._plain = hashlib.sha256(), hashlib.sha256()
        self._bytes = self._taken = 0
        self._waiting = bytearray()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._taken

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        self._taken += len(data)
        self._waiting += data
        if len(self._waiting) >= _CHUNK:
            self._drain()
        return len(data)

    def finish(self) -> Layer:
        self._drain()
        diff_id = f"sha256:{self._plain.hexdigest()}"
        if self._compress is None:
            return Layer(digest=diff_id, diff_id=diff_id, bytes=self._taken)
        self._store(self._compress.flush())
        return Layer(digest=f"sha256:{self._stored.hexdigest()}", diff_id=diff_id, bytes=self._bytes)

    def _drain(self) -> None:
        self._plain.update(self._waiting)
        if self._compress is None:
            self._out.write(self._waiting)
        else:
            self._store(self._compress.compress(self._waiting))
        self._waiting = bytearray()

    def _store(self, data: bytes) -> None:
        self._stored.update(data)
        self._out.write(data)
        self._bytes += len(data)
