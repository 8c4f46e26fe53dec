"""What is in an image, read from the image itself.

:func:`inspect_layers` streams the layers from a registry, :func:`inspect_running` runs the Python of an image
that a container engine has. What was found is cached by digest in ``UPSHIFT_HOME/cache/images/seen``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import posixpath
import re
import tarfile
import threading
import uuid
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from upshift.errors import ImageError
from upshift.images import cache
from upshift.images.base import Announce, Contents, Parent
from upshift.images.parents import traces
from upshift.images.parents.traces import Traces
from upshift.model.settings.sizes import format_size

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.registries.client import Registries

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image specification, 'Image Layer Filesystem Changeset'
_FORMAT = 2
_AT_ONCE = 3
_BLOCK = 1 << 17  # bytes that are read at once: of a large layer, 10 KiB as by default would be many

_PATIENCE = 60.0  # seconds for a container to start and to list some folders
_TO_REMOVE = 30.0
_NO_SUCH_PROGRAM, _NOT_STARTED = 127, 126  # 126: for any reason that the engine's runtime had
_NOT_THERE = ("not found", "no such file")


def inspect_layers(parent: Parent, registries: Registries, announce: Announce | None = None) -> Contents:
    """What is in an image, by its layers; ``announce`` is told before any are read."""
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

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upshift-inspect") as pool:
        try:
            layers = list(pool.map(seen, parent.layers))
        except BaseException:
            stop.set()  # ends the other downloads
            raise
    return traces.contents(traces.stacked(layers), parent.environment, "its layers")


def _until(stop: threading.Event, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        if stop.is_set():
            raise ImageError("the inspection has ended")
        yield chunk


def read_layer(chunks: Iterable[bytes], name: str) -> Traces:
    """The traces in a layer, which is a tar archive, compressed or not. Nothing is unpacked."""
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


class _Stream:
    """The uncompressed bytes of a layer, as a file to be read once."""

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
        gzipped = first.startswith(_GZIP)

        def new() -> Any:
            return zlib.decompressobj(zlib.MAX_WBITS | 16) if gzipped else self._unzstd()

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

    def _unzstd(self) -> Any:
        for module in ("compression.zstd", "backports.zstd"):
            with contextlib.suppress(ImportError):
                return importlib.import_module(module).ZstdDecompressor()
        raise ImageError(
            f"layer {self._name} is compressed with zstd, which this Python cannot read",
            fix="pip install 'upshift[images]'",
        )


def _file(digest: str) -> Path:
    name = re.sub(r"[^a-zA-Z0-9]", "-", digest)  # a registry may call a layer anything
    return cache.folder(cache.SEEN) / f"{name}.{_FORMAT}.json"


def kept(digest: str) -> Traces | None:
    """The cached traces of a layer or an image; None: there are none."""
    return cache.recalled(_file(digest), traces.from_json)


def keep(digest: str, seen: Traces) -> None:
    cache.remember(_file(digest), traces.as_json(seen))


# For any Python from 3.4 on. It lists names; what they mean is decided here.
_SCRIPT = r"""
import glob, json, os, sys, sysconfig
marks, texts = [], {}
def text(path, most=16384):
    try:
        with open(path, errors="replace") as file:
            said = file.read(most + 1)
    except OSError:
        return
    if len(said) <= most:
        texts[path] = said
called, real, library = sys.executable, os.path.realpath(sys.executable), sysconfig.get_path("stdlib")
links = {called: real} if called != real else {}
text(os.path.join(sys.prefix, "pyvenv.cfg"))
folders = [path for path in sys.path if path.endswith("-packages")] + [sysconfig.get_path("purelib")]
for folder in sorted(set(folders)):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith((".dist-info", ".egg-info")):
            marks.append(os.path.join(folder, name))
    text(os.path.join(folder, "torch", "version.py"))
for path in (real, os.path.join(library, "os.py")):
    if os.path.exists(path):
        marks.append(path)
for path in ("/usr/local/cuda-*", "/opt/rocm-*", "/lib/ld-musl-*", "/usr/local/cuda/lib64/libcudart.so.*",
             "/usr/local/cuda*/compat/libcuda.so*"):
    marks.extend(sorted(glob.glob(path)))
for path in ("/usr/local/cuda/version.json", "/usr/local/cuda/version.txt", "/opt/rocm/.info/version"):
    text(path)
text("/usr/lib/os-release")
text("/etc/os-release")
text("/etc/passwd")
text("/var/lib/dpkg/status", 16777216)
python = ".".join(map(str, sys.version_info[:3]))
print(json.dumps({"python": python, "marks": marks, "texts": texts, "links": links}))
"""


def inspect_running(
    parent: Parent, engine: ContainerEngine, announce: Announce | None = None
) -> Contents | None:
    """What is in an image that the engine has; None: it cannot be started, which says nothing.

    The image's ``python3`` runs for a moment, without a network, and lists what there is. What it said is
    kept by the image's digest. ``announce`` is told where the engine did not answer in time.
    """
    seen = kept(parent.digest)
    if seen is None:
        try:
            seen = _seen(parent, engine)
        except ImageError as error:
            if announce is not None:
                announce(f"{parent.reference}: it could not be looked into: {error.what}")
        if seen is None:
            return None
        keep(parent.digest, seen)
    return traces.contents(seen, parent.environment, "a look into the image")


def _seen(parent: Parent, engine: ContainerEngine) -> Traces | None:
    container = f"upshift-look-{uuid.uuid4().hex[:12]}"
    command = ["run", "--rm", "--name", container, "--pull", "never", "--network", "none"]
    command += ["--entrypoint", "python3", parent.reference.full, "-I", "-c", _SCRIPT]
    try:
        answer = engine.run(command, check=False, timeout=_PATIENCE)
    except BaseException:  # only the command has ended
        with contextlib.suppress(ImageError):
            engine.run(["rm", "--force", container], check=False, timeout=_TO_REMOVE)
        raise
    if _lacks_python(answer.returncode, answer.stderr):
        return Traces()
    try:
        said = json.loads(answer.stdout.splitlines()[-1])
        named = {path.lstrip("/"): text for path, text in said["texts"].items()}
        return Traces(
            marks=tuple(path.lstrip("/") for path in said["marks"]),
            texts={path: traces.said_by(path, text) for path, text in named.items()},
            links={path.lstrip("/"): target for path, target in said["links"].items()},
            python=said["python"],
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _lacks_python(status: int, said: str) -> bool:
    """An engine that can start nothing says nothing of the image."""
    missing = any(words in said.lower() for words in _NOT_THERE)
    return status == _NO_SUCH_PROGRAM or (status == _NOT_STARTED and missing)
