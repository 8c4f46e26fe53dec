"""Where packages are in an image, how they are divided into layers that images share, and the layers' tars.

Packages have a folder of their own, the same in every image, so that a layer with torch does not depend on
the image below. One line in the interpreter's own ``site-packages`` puts this folder before its other
packages: it hides other versions that the image has, and nothing has to be removed. The interpreter stays the
image's own, so that programs of the image see the packages, too.

The same files make the same bytes on every machine: names are sorted; owners, times and all permissions but
"executable" are left out. A layer is a plain tar for an engine on this machine, and gzipped for a registry:
level 1 is 5 times as fast as the usual level, and a tenth larger.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import posixpath
import sys
import tarfile
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import attrs

from upshift.errors import RecipeError
from upshift.images.base import Contents, LockedPackage
from upshift.images.building import bytecode
from upshift.images.building.packages import SCRIPTS, Installed
from upshift.images.parents.known import minor
from upshift.images.recipes.reading import normalized

TIME = 315532800
"""Time of every file: 1980-01-01, the earliest that a zip file can hold."""

_LEVEL = 1
_GZIP = 16  # added to zlib's window, it writes gzip's header: without a time and a name
_CHUNK = 1 << 20
_WHITEOUT = ".wh."  # https://github.com/opencontainers/image-spec/blob/main/layer.md#whiteouts

LARGE = 20 * 10**6
"""Bytes. A distribution from this size on has a layer of its own."""

MIDDLE = 2 * 10**6
"""Bytes. Distributions from this size on share a layer, and smaller ones another one."""

DATA = ("etc", "include", "share")
"""Folders of what was installed that belong beside the interpreter's, not among the packages."""

_MOST_LARGE = 40  # engines mount some 120 layers
_HEAD = 4096  # bytes of a script in which its interpreter is named
_INTERPRETER = b"@interpreter@"
_JOINED = b"__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
_LINKED = ("bin", "lib", "lib64", "sbin")  # links into /usr on every distribution of today

# One line, as the module site wants it. It appends the folder and what its .pth files name, then moves all
# that before the first of the interpreter's own folders. In an image on top of another one those of the other
# are its own, too.
_LINE = (
    "import site, sys; _n = len(sys.path); site.addsitedir({site!r}); "
    "_own = {own!r} + site.getsitepackages(); "
    "_at = min(map(sys.path.index, filter(sys.path.__contains__, _own)), default=_n); "
    "sys.path[_at:] = sys.path[_n:] + sys.path[_at:_n]\n"
)


@attrs.frozen(kw_only=True)
class Entry:
    path: str  # in the image, without the first slash
    source: Path | bytes  # a file with the content, or the content
    executable: bool = False


@attrs.frozen(kw_only=True)
class Layer:
    """The identity of a layer."""

    digest: str  # as it is stored
    diff_id: str  # of its tar
    bytes: int  # as it is stored


def write_layer(entries: Iterable[Entry], file: Path, *, compressed: bool = True) -> Layer:
    """Write a layer to a new file. Of two entries with one path the first counts."""
    by_path: dict[str, Entry] = {}
    for entry in entries:
        by_path.setdefault(_checked(entry.path), entry)
    folders = {str(parent) for path in by_path for parent in PurePosixPath(path).parents} - {"."}
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
                raise _hostile(path, "it is not a regular file")
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


def _hostile(path: str, why: str) -> RecipeError:
    return RecipeError(
        f"the file {path!r} cannot be in a layer of an image",
        why=f"{why}.",
        fix="Find the package that brings it, and do not trust it.",
    )


class _Sink(io.RawIOBase):
    """Writes a tar, compressed or not, and computes its digests."""

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


@attrs.frozen(kw_only=True)
class ImageLayout:
    """Where Python and packages are in an image."""

    python: str  # minor version of its Python
    # interpreter, site_packages: paths of that Python, and of its packages
    interpreter: str
    site_packages: str
    # Images of Upshift that it is made from, one on top of the other; each has a folder of its own
    below: int = 0

    @classmethod
    def of(cls, contents: Contents, path: str = "") -> ImageLayout:
        """On top of an image whose Python is known, with this ``PATH``."""
        assert contents.python and contents.interpreter and contents.site_packages
        folders = path.split(":")
        return cls(
            python=minor(contents.python),
            interpreter=contents.interpreter,
            site_packages=contents.site_packages,
            below=sum(f"{_prefix(level)}/{SCRIPTS}" in folders for level in range(len(folders))),
        )

    @property
    def scripts(self) -> str:
        return f"{_prefix(self.below)}/{SCRIPTS}"

    @property
    def site(self) -> str:
        return self._site_of(self.below)

    @property
    def hook(self) -> tuple[str, str]:
        """What has the interpreter find the packages: a file, and its line."""
        name = f"_upshift{self.below + 1 if self.below else ''}.pth"
        # While a virtual environment is set up, getsitepackages() does not name it yet.
        own = [*(self._site_of(level) for level in range(self.below)), self.site_packages]
        return f"{self.site_packages}/{name}", _LINE.format(site=self.site, own=own)

    @property
    def compiles(self) -> bool:
        """Whether bytecode can be made here: by the same minor version of Python."""
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        return sys.implementation.name == "cpython" and self.python == here

    def place(self, file: str) -> str:
        """Where a file that was installed is."""
        top, _, rest = file.partition("/")
        if top == SCRIPTS:
            return f"{self.scripts}/{rest}"
        if top in DATA:  # what reads them looks below sys.prefix
            return f"{posixpath.dirname(posixpath.dirname(self.interpreter))}/{file}"
        return f"{self.site}/{file}"

    def _site_of(self, level: int) -> str:
        return f"{_prefix(level)}/lib/python{self.python}/site-packages"


def _prefix(level: int) -> str:
    return "/opt/upshift" + (f"-{level + 1}" if level else "")


def _inside(path: str) -> str:
    """A path in a layer. Folders that are links are not named: a layer would put a folder in their place."""
    path = posixpath.normpath(path).strip("/")
    return f"usr/{path}" if path.partition("/")[0] in _LINKED else path


@attrs.frozen(kw_only=True)
class LayerContent:
    """The files of one layer: those of one large package, or of several packages."""

    what: str  # for people: `"torch 2.4.1"`
    entries: tuple[Entry, ...] = attrs.field(repr=False)  # its files
    bytes: int = 0  # their size, by which large packages are ordered; 0: it is no large one
    # By what a layer with these files is known; None: it is not, since it depends on the image below
    key: str | None = None
    # Of what is in it, by name, for the last layer
    scripts: Mapping[str, str] = attrs.field(factory=dict, repr=False)


def layer_contents(
    installed: Sequence[tuple[LockedPackage, Installed]],
    packages: Path,
    layout: ImageLayout,
    variant: str,
) -> list[LayerContent]:
    """What each layer holds, the lowest first; the last may be empty, and gets :func:`last_entries`.

    ``packages`` is the folder that all of it was installed into; ``variant`` says what a package's
    files depend on beside the package: see :func:`key_of`.
    """
    by_size = sorted(installed, key=lambda pair: (-pair[1].bytes, pair[1].name))
    large = [pair for pair in by_size if pair[0].wheel and pair[1].bytes >= LARGE][:_MOST_LARGE]
    rest = sorted((pair for pair in by_size if pair not in large), key=lambda pair: pair[1].name)
    middle = [pair for pair in rest if pair[1].bytes >= MIDDLE]
    small = [pair for pair in rest if pair[1].bytes < MIDDLE]
    pieces = [_layer_content([pair], packages, layout, variant, size=pair[1].bytes) for pair in large]
    if middle:
        pieces.append(_layer_content(middle, packages, layout, variant))
    return [*pieces, attrs.evolve(_layer_content(small, packages, layout, variant), key=None)]


def key_of(packages: Sequence[LockedPackage], variant: str) -> str | None:
    """The key of the record of a layer with these packages; None: it has none, since something is compiled or
    has no hash.
    """
    if not all(one.wheel and one.hashes for one in packages):
        return None
    text = "\n".join([variant, *(one.line for one in packages)])
    return hashlib.sha256(text.encode()).hexdigest()


def join_namespaces(installed: Sequence[Installed], packages: Path) -> None:
    """Let packages that distributions share, such as ``nvidia``, continue in the image below.

    An empty ``__init__.py`` in such a package would hide the modules that the image has in it.
    """
    for one in installed:
        for file in one.files:
            folder, _, name = file.partition("/")
            if name == "__init__.py" and one.name.startswith(f"{normalized(folder)}-"):
                own = packages / file
                if not own.read_bytes().strip():
                    own.unlink()  # it may be the very file in the installer's cache
                    own.write_bytes(_JOINED)


def last_entries(scripts: Mapping[str, str], layout: ImageLayout) -> Iterator[Entry]:
    """The files that depend on the image below: scripts, and the line that names the folder with packages."""
    for name, text in scripts.items():
        content = text.encode("utf-8", "surrogateescape").replace(_INTERPRETER, layout.interpreter.encode())
        yield Entry(path=_inside(f"{layout.scripts}/{name}"), source=content, executable=True)
    hook, line = layout.hook
    yield Entry(path=_inside(hook), source=line.encode())


def _layer_content(
    group: Sequence[tuple[LockedPackage, Installed]],
    packages: Path,
    layout: ImageLayout,
    variant: str,
    size: int = 0,
) -> LayerContent:
    entries: list[Entry] = []
    scripts: dict[str, str] = {}
    for _, one in group:
        own = _scripts_of(one, packages)
        scripts.update(own)
        entries.extend(_entries_of(one, own, packages, layout))
    what = ", ".join(f"{one.name} {one.version}" for _, one in group) or "paths of packages"
    return LayerContent(
        what=what,
        entries=tuple(entries),
        bytes=size,
        key=key_of([locked for locked, _ in group], variant),
        scripts=scripts,
    )


def _entries_of(
    one: Installed, scripts: Mapping[str, str], packages: Path, layout: ImageLayout
) -> Iterator[Entry]:
    own = {f"{SCRIPTS}/{name}" for name in scripts}
    joined = {file for file in one.files if _is_joined(packages / file)}
    moved = {file: posixpath.relpath(layout.place(file), layout.site) for file in one.files}
    for file in one.files:
        source = packages / file
        if file in own:
            continue
        if file.endswith(".dist-info/RECORD"):
            record = record_of(source.read_bytes(), own | joined, moved)
            yield Entry(path=_inside(layout.place(file)), source=record)
            continue
        executable = bool(source.lstat().st_mode & 0o100)
        yield Entry(path=_inside(layout.place(file)), source=source, executable=executable)
        compiled = Path(bytecode.compiled_path(str(source))) if file.endswith(".py") else None
        if compiled is not None and compiled.exists():
            yield Entry(path=_inside(f"{layout.site}/{compiled.relative_to(packages)}"), source=compiled)


def record_of(content: bytes, changed: Container[str], places: Mapping[str, str]) -> bytes:
    """A ``RECORD`` as it is in an image: sorted, and without what is about this machine.

    ``changed`` are files that have other content now, and so no digest; ``places`` says where each file is,
    relative to the folder of packages.
    """
    rows = [row for row in csv.reader(io.StringIO(content.decode())) if row]
    kept = {places[name]: ["", ""] if name in changed else rest for name, *rest in rows if name in places}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([name, *rest] for name, rest in sorted(kept.items()))
    return out.getvalue().encode()


def _is_joined(file: Path) -> bool:
    return file.name == "__init__.py" and file.stat().st_size == len(_JOINED) and file.read_bytes() == _JOINED


def _scripts_of(one: Installed, packages: Path) -> dict[str, str]:
    """The scripts whose first line names the interpreter, by name, with a placeholder in its place."""
    found = {}
    for file in one.files:
        if not file.startswith(f"{SCRIPTS}/"):
            continue
        content = (packages / file).read_bytes()
        head = content[:_HEAD]
        interpreter = os.fsencode(sys.executable)
        if head.startswith(b"#!") and interpreter in head:
            changed = head.replace(interpreter, _INTERPRETER, 1) + content[_HEAD:]
            found[file.removeprefix(f"{SCRIPTS}/")] = changed.decode("utf-8", "surrogateescape")
    return found
