"""What was installed becomes few layers: the largest and most stable first, so that images share them."""

from __future__ import annotations

import hashlib
import os
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from upshift.images.daemonless import bytecode
from upshift.images.daemonless.installing import Installed, record_of
from upshift.images.daemonless.layers import Entry
from upshift.images.daemonless.layout import SCRIPTS, Layout, inside
from upshift.images.pep508 import normalized

LARGE = 20 * 10**6
"""Bytes. Such a distribution has a layer of its own."""

MIDDLE = 2 * 10**6
"""Bytes. Such distributions share a layer, and those below it another one."""

_MOST_LARGE = 40  # engines mount some 120 layers
_HEAD = 4096  # bytes of a script in which its interpreter is named
_INTERPRETER = b"@interpreter@"
_JOINED = b"__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"


@attrs.frozen(kw_only=True)
class Piece:
    """What goes into one layer.

    Parameters
    ----------
    what
        For people: ``"torch 2.4.1"``.
    entries
        Its files.
    distribution
        The one that it is, where it has a layer of its own; None: several.
    scripts
        Of what is in it, by name, to be put into the last layer.
    group
        What several distributions from an index are known by together; None: they are not known.
    """

    what: str
    entries: tuple[Entry, ...] = attrs.field(repr=False)
    distribution: Installed | None = None
    scripts: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    group: str | None = None


def pieces_of(installed: Sequence[Installed], packages: Path, layout: Layout) -> list[Piece]:
    """The pieces, the lowest layer first. To the last, which may be empty, :func:`last_entries` are added.

    Parameters
    ----------
    installed
        What was installed.
    packages
        The folder that it is in.
    layout
        Where things are in the image.
    """
    by_size = sorted(installed, key=lambda one: (-one.bytes, one.name))
    large = [one for one in by_size if one.indexed and one.bytes >= LARGE][:_MOST_LARGE]
    rest = [one for one in by_size if one not in large]
    middle = sorted((one for one in rest if one.bytes >= MIDDLE), key=lambda one: one.name)
    small = sorted((one for one in rest if one.bytes < MIDDLE), key=lambda one: one.name)
    pieces = [_piece([one], packages, layout, alone=True) for one in large]
    if middle:
        pieces.append(attrs.evolve(_piece(middle, packages, layout), group=_group(middle)))
    return [*pieces, _piece(small, packages, layout)]


def join_namespaces(installed: Sequence[Installed], packages: Path) -> None:
    """Have folders that distributions share, as those of NVIDIA share ``nvidia``, go on in the image below.

    An empty ``__init__.py`` in such a folder would hide what the image has there.
    """
    for one in installed:
        for file in one.files:
            folder, _, name = file.partition("/")
            if name == "__init__.py" and one.name.startswith(f"{normalized(folder)}-"):
                own = packages / file
                if not own.read_bytes().strip():
                    own.unlink()  # it may be the very file in the installer's cache
                    own.write_bytes(_JOINED)


def last_entries(scripts: Mapping[str, str], layout: Layout) -> Iterator[Entry]:
    """What depends on the image below: scripts, and the line that names the folder with packages."""
    for name, text in scripts.items():
        content = text.encode("utf-8", "surrogateescape").replace(_INTERPRETER, layout.interpreter.encode())
        yield Entry(path=inside(f"{layout.scripts}/{name}"), source=content, executable=True)
    hook, line = layout.hook
    yield Entry(path=inside(hook), source=line.encode())


def _group(several: Sequence[Installed]) -> str | None:
    if not all(one.indexed for one in several):
        return None
    members = " ".join(f"{one.name}=={one.version}" for one in several)
    return "group-" + hashlib.sha256(members.encode()).hexdigest()[:32]


def _piece(group: Sequence[Installed], packages: Path, layout: Layout, *, alone: bool = False) -> Piece:
    entries: list[Entry] = []
    scripts: dict[str, str] = {}
    for one in group:
        own = _scripts_of(one, packages)
        scripts.update(own)
        entries.extend(_entries_of(one, own, packages, layout))
    what = ", ".join(f"{one.name} {one.version}" for one in group) or "paths of packages"
    return Piece(what=what, entries=tuple(entries), distribution=group[0] if alone else None, scripts=scripts)


def _entries_of(
    one: Installed, scripts: Mapping[str, str], packages: Path, layout: Layout
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
            yield Entry(path=inside(layout.place(file)), source=record)
            continue
        executable = bool(source.lstat().st_mode & 0o100)
        yield Entry(path=inside(layout.place(file)), source=source, executable=executable)
        compiled = Path(bytecode.compiled_path(str(source))) if file.endswith(".py") else None
        if compiled is not None and compiled.exists():
            yield Entry(path=inside(f"{layout.site}/{compiled.relative_to(packages)}"), source=compiled)


def _is_joined(file: Path) -> bool:
    return file.name == "__init__.py" and file.stat().st_size == len(_JOINED) and file.read_bytes() == _JOINED


def _scripts_of(one: Installed, packages: Path) -> dict[str, str]:
    """The scripts that name this machine's interpreter, by name; in its place a mark."""
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
