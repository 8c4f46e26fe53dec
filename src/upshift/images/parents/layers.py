"""A look into the layers of an image, which are read once and stored nowhere: :func:`survey`.

What a layer showed is kept by its digest in ``UPSHIFT_HOME/cache/images/seen``: images share layers, and a
layer never changes. Losing that folder costs time, nothing else.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import tarfile
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from upshift.errors import ImageError
from upshift.images import cache
from upshift.images.base import Announce, Contents, Parent
from upshift.images.parents import traces
from upshift.images.parents.traces import Traces
from upshift.model.settings.sizes import format_size

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries

SOURCE = "its layers"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image specification, 'Image Layer Filesystem Changeset'
_FORMAT = 2
_AT_ONCE = 3
_BLOCK = 1 << 17  # bytes that are read at once: of a large layer, 10 KiB as by default would be many


def survey(parent: Parent, registries: Registries, announce: Announce | None = None) -> Contents:
    """What is in an image, by its layers; ``announce`` is told before any are read.

    Raises ImageError: a layer cannot be read.
    """
    stop = threading.Event()
    new = [digest for digest in parent.layers if kept(digest) is None]
    if new and announce is not None:
        size = "" if parent.bytes is None else f", {format_size(parent.bytes)}"
        announce(f"{parent.reference}: nothing is known of what is in it; its layers are read once{size}")

    def seen(digest: str) -> Traces:
        shown = kept(digest)
        if shown is None:
            shown = read_layer(_until(stop, registries.blob(parent.reference, digest)), digest)
            keep(digest, shown)
        return shown

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upshift-survey") as pool:
        try:
            layers = list(pool.map(seen, parent.layers))
        except BaseException:
            stop.set()  # what is not of use any more ends soon
            raise
    return traces.contents(traces.stacked(layers), parent.environment, SOURCE)


def _until(stop: threading.Event, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if stop.is_set():
            raise ImageError("nobody wants this layer any more")
        yield chunk


def read_layer(chunks: Iterable[bytes], name: str) -> Traces:
    """What a layer shows, as it is stored: a tar archive, compressed or not.

    Paths are names here and lead nowhere: nothing is unpacked.

    Raises ImageError: it is no layer, or a damaged one.
    """
    stream = _Stream(chunks, name)
    marks: dict[str, None] = {}
    texts: dict[str, str] = {}
    links: dict[str, str] = {}
    removed: list[str] = []
    emptied: list[str] = []
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", bufsize=_BLOCK) as archive:
            for member in archive:
                archive.members.clear()  # type: ignore[attr-defined] # else it keeps each of them
                path = posixpath.normpath("/" + member.name).lstrip("/")
                folder, base = posixpath.split(path)
                if base == _OPAQUE:
                    emptied.append(folder)
                elif base.startswith(_WHITEOUT):
                    removed.append(posixpath.join(folder, base[len(_WHITEOUT) :]))
                elif member.issym():
                    if traces.wants_link(path):
                        links[path] = member.linkname
                elif marked := traces.marked(path):
                    marks[marked] = None
                if member.isreg() and traces.wants_text(path, member.size):
                    content = archive.extractfile(member)
                    assert content is not None
                    texts[path] = traces.said_by(path, content.read().decode("utf-8", "replace"))
        stream.drain()
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise ImageError(f"layer {name} is damaged", why=f"{error}") from None
    return Traces(
        marks=tuple(marks), texts=texts, links=links, removed=tuple(removed), emptied=tuple(emptied)
    )


class _Decompressor(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


class _Stream:
    """The uncompressed bytes of a layer, as a file that is read once."""

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        self._chunks = iter(chunks)
        self._name = name
        self._rest = b""
        self._plain = self._uncompressed()

    def read(self, size: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < size:
            part = next(self._plain, None)
            if part is None:
                break
            parts.append(part)
            have += len(part)
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]

    def drain(self) -> None:
        """Read it to the end, so that whoever sends it can check all of it."""
        self._rest = b""
        for _ in self._chunks:
            pass

    def _uncompressed(self) -> Iterator[bytes]:
        first = b""
        for chunk in self._chunks:
            first += chunk
            if len(first) >= 4:
                break
        if not first.startswith((_GZIP, _ZSTD)):
            yield first
            yield from self._chunks
            return
        new = _gunzip if first.startswith(_GZIP) else self._unzstd
        decompressor = new()
        data = first
        while True:
            try:
                plain = decompressor.decompress(data)
            except Exception as error:  # that of zstd has a class of its own, in a module that may be missing
                raise tarfile.ReadError(str(error)) from None
            yield plain
            data = decompressor.unused_data if decompressor.eof else b""
            while not data:
                more = next(self._chunks, None)
                if more is None:
                    if not decompressor.eof:
                        raise EOFError("it ends in the middle")
                    return
                data = more
            if decompressor.eof:
                if not data.strip(b"\0"):
                    return
                decompressor = new()

    def _unzstd(self) -> _Decompressor:
        for module, name in (
            ("compression.zstd", "ZstdDecompressor"),
            ("backports.zstd", "ZstdDecompressor"),
        ):
            with contextlib.suppress(ImportError):
                found: Any = getattr(__import__(module, fromlist=[name]), name)
                new: _Decompressor = found()
                return new
        raise ImageError(
            f"layer {self._name} is compressed with zstd, which this Python cannot read",
            fix="pip install 'upshift[images]'",
        )


def _gunzip() -> _Decompressor:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


def _file(digest: str) -> Path:
    name = re.sub(r"[^a-zA-Z0-9]", "-", digest)  # a registry may call a layer anything
    return cache.folder(cache.SEEN) / f"{name}.{_FORMAT}.json"


def kept(digest: str) -> Traces | None:
    """What was seen of a layer, or of an image as a whole, before; None: nothing."""
    try:
        return traces.from_json(cache.used(_file(digest)).read_text())
    except (OSError, ValueError):
        return None


def keep(digest: str, seen: Traces) -> None:
    """Keep what was seen; where that cannot be, it is looked at again next time."""
    with cache.keeping(_file(digest)) as file:
        file.write_text(traces.as_json(seen))
