"""Facts about one source file: its definitions, what binds each name, what its top level does.

Facts follow from the text alone, and are packed into bytes, so that processes can keep them: in one file per
project in ``UPSHIFT_HOME/fingerprints`` (:class:`KeptFacts`). This module must stay cheap to import;
:mod:`upshift.code.fingerprint.parsing` makes facts.

Kept facts are found by the content of the source file, never by its time stamps: an edit within the
resolution of a clock, or a file restored with an old date, is never mistaken. The file is replaced
atomically, so that several processes can read and write it at once; whoever writes last wins, and the
loser's files are read again some day. A damaged file counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Union

from upshift.model.configuration import home, make_folder
from upshift.runtime.storage.digest import Bytes, algorithm, digest_of
from upshift.runtime.storage.files import replacing

Chain = tuple[str, ...]
Use = tuple[Chain, Union[tuple[int, str], None], bool]
"""Names and attributes that are used; the import that brings them; whether the value is handed on."""
Word = str
"""A use as one text, ``"range"``, ``"=helpers.scale"`` where the value is handed on: there are very many."""
BARE, ODD = "=", "!"
CONSTANT = ":"
"""Marks a constant in :attr:`Facts.whole`."""
BY_LITERAL = (-1, "")
"""The origin of what is called as importing functions are, with the name of a module that is written out."""

VERSION = 12
"""To be raised whenever the same source gives other facts than before."""

READS = 1
"""It may read a file, as far as names tell."""
REFLECTS = 2
"""It may read docstrings."""
READS_SOURCE = 4
"""It may read source text, comments and all."""
SUBCLASSES = 8
"""It looks for subclasses."""
FRAMES = 16
"""It gets at all that a module has, or at modules, through an attribute."""
CHANGES_GIVEN = 32
"""It changes a part of an argument."""
DYNAMIC = REFLECTS | READS_SOURCE | SUBCLASSES | FRAMES


def word_of(use: Use) -> Word:
    """A use as one text."""
    chain, origin, bare = use
    if not all(map(str.isidentifier, chain)) or (origin and " " in origin[1]):
        return f"{ODD}{use!r}"  # getattr(table, "unit price"), import_module("my helpers")
    came = "" if origin is None else f"{origin[0]} {origin[1]} "
    return f"{BARE if bare else ''}{came}{'.'.join(chain)}"


def use_of(word: Word) -> Use:
    """What :func:`word_of` was given."""
    if word.startswith(ODD):
        from ast import literal_eval  # rare

        use: Use = literal_eval(word[1:])
        return use
    *came, path = word.removeprefix(BARE).split(" ")
    chain = tuple(path.split(".")) if path else ()
    return chain, (int(came[0]), came[1]) if came else None, word.startswith(BARE)


class DecoratorFacts(NamedTuple):
    """One decorator of a definition, or of something inside it."""

    digest: str
    chain: Chain
    words: tuple[Word, ...]


class UnitFacts(NamedTuple):
    """A definition; ``digest`` leaves out decorators and docstrings, ``documented`` only decorators.

    ``assigned`` are the names that a class body binds, ``changed`` those outside of which it changes a part.
    """

    qualname: str
    digest: str
    documented: str
    words: tuple[Word, ...]
    decorators: tuple[DecoratorFacts, ...]
    assigned: tuple[str, ...]
    changed: tuple[str, ...]
    flags: int


class StatementFacts(NamedTuple):
    """A statement at the top level, or in the body of a pipeline, that is no definition and no import.

    ``acts``: it does more than to assign the values of ``calls`` to names. ``literal``: the digest of the
    value that it assigns, where that is written out. ``arguments``: those of the function that it is in.
    """

    digest: str
    words: tuple[Word, ...]
    binds: tuple[str, ...]
    acts: bool
    calls: tuple[Chain, ...]
    literal: str = ""
    reads: bool = False
    arguments: tuple[str, ...] = ()


class Import(NamedTuple):
    """A name at the top level is bound by an import: ``from ..module import attribute``, two levels."""

    level: int
    module: str
    attribute: str | None


class Bound(NamedTuple):
    """A name at the top level is bound by a definition, or else a statement, with this number."""

    definition: bool
    number: int


class Facts:
    """What is known about a file. Most of its units are never asked for, and stay packed until they are."""

    whole: str
    """The digest without docstrings; then each definition and constant at the top level with the beginning of
    its own digest, so that an edit can be named: ``blake3:… f=1a2b3c4d :CFG=5e6f7a8b =9c0d1e2f``."""
    documented: str
    """The digest with docstrings."""
    docstring: str
    """The digest of the module's docstring; empty if there is none."""
    words: tuple[Word, ...]
    """What all of the file refers to, but for what runs only as a script, and for :attr:`dynamic`."""
    flags: int
    """Those of the statements at the top level."""
    dynamic: dict[str, tuple[tuple[Word, ...], int]]
    """Name of a definition to words and flags, of it and of those that it names, by which code may be found
    that no name leads to."""
    statements: tuple[StatementFacts, ...]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    """What is imported at the top level: ``(level, module, names)``."""
    idle: tuple[str, ...]
    """Names of imports that nothing in the file refers to."""
    defined: tuple[str, ...]
    """Names that a class, or what a decorator may make one, is the last to bind."""
    decorated: tuple[int, ...]
    """Numbers of decorated units at the top level."""
    decorators: tuple[tuple[str, Chain], ...]
    """Digest and chain of all decorators, with those inside."""
    bodies: dict[int, tuple[StatementFacts, ...]]
    """Number of a decorated function to the statements of its body that may do more than call steps."""
    names: dict[str, Any]
    functions: dict[int, Any]
    classes: dict[str, Any]

    def __init__(self, packed: Bytes) -> None:
        self.packed = memoryview(packed)
        self._at, header = marshal.loads(packed)
        vars(self).update(header)
        self.statements = tuple(map(StatementFacts._make, self.statements))
        self.bodies = {number: tuple(map(StatementFacts._make, body)) for number, body in self.bodies.items()}
        self._units: dict[int, UnitFacts] = {}

    def unit(self, number: int) -> UnitFacts:
        """The definition with this number."""
        known = self._units.get(number)
        if known is None:
            unit = UnitFacts._make(marshal.loads(self.packed[-self._at[number] :]))
            known = unit._replace(decorators=tuple(map(DecoratorFacts._make, unit.decorators)))
            self._units[number] = known
        return known

    def units(self, name: str, line: int = 0) -> tuple[int, ...]:
        """The functions of this name whose code begins on this line, one or several lambdas; or else the
        classes of this qualified name."""
        if not line:
            return tuple(_unpacked_list(self.classes.get(name)))
        found = []
        for number in _unpacked_list(self.functions.get(line)):
            qualname = self.unit(number).qualname
            if qualname == name or qualname.endswith("." + name):
                found.append(number)
        return tuple(found)

    def bound(self, name: str) -> tuple[Union[Import, Bound], ...]:
        """What binds a name at the top level, in order; nothing where nothing does."""
        return tuple(map(_unpacked_binding, _unpacked_list(self.names.get(name))))


# Every object that is unpacked takes time, and most are never looked at. So a list of one item is packed
# as the item, which is never a list itself.


def _packed_list(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else items


def _unpacked_list(packed: Any) -> list[Any]:
    if packed is None:
        return []
    return packed if type(packed) is list else [packed]


# And what binds a name, other than an import, is a number; a negative one for a statement.


def _packed_binding(bound: Import | Bound) -> int | tuple[Any, ...]:
    if isinstance(bound, Import):
        return tuple(bound)
    return bound.number if bound.definition else ~bound.number


def _unpacked_binding(packed: Any) -> Import | Bound:
    if type(packed) is tuple:
        return Import._make(packed)
    return Bound(True, packed) if packed >= 0 else Bound(False, ~packed)


def pack(
    units: Iterable[UnitFacts],
    names: Mapping[str, list[Import | Bound]],
    functions: Mapping[int, list[int]],
    classes: Mapping[str, list[int]],
    **others: Any,
) -> bytes:
    """Facts as :mod:`marshal` writes them, and after them the units, each by itself."""
    parts = [marshal.dumps((*unit[:4], tuple(map(tuple, unit.decorators)), *unit[5:])) for unit in units]
    at = tuple(accumulate(len(part) for part in reversed(parts)))[::-1]  # how far from the end
    header = {
        "names": {name: _packed_list(list(map(_packed_binding, bound))) for name, bound in names.items()},
        "functions": {line: _packed_list(numbers) for line, numbers in functions.items()},
        "classes": {qualname: _packed_list(numbers) for qualname, numbers in classes.items()},
        **others,
    }
    return b"".join([marshal.dumps((at, header)), *parts])


_CHECKSUM = 64


class KeptFacts:
    """The facts about the files of one project."""

    def __init__(self, project: Path) -> None:
        # Facts hold digests, and marshal and the grammar are those of this version of Python.
        name = f"{project.absolute()}\0{algorithm()}\0{sys.implementation.cache_tag}\0{VERSION}"
        self._file = kept(f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.facts")
        self._packed: dict[str, tuple[str, Bytes]] | None = None
        self._changed = False

    def get(self, path: str, digest: str) -> Facts | None:
        """The facts about a file, if its content had this digest when they were put."""
        packed = self._facts().get(path)
        return None if packed is None or packed[0] != digest else Facts(packed[1])

    def put(self, path: str, digest: str, facts: Facts) -> None:
        """Remember the facts about a file, to be written by :meth:`save`."""
        self._facts()[path] = (digest, facts.packed)
        self._changed = True

    def _facts(self) -> dict[str, tuple[str, Bytes]]:
        if self._packed is None:
            self._packed = _read(self._file)
        return self._packed

    def save(self) -> None:
        """Write what is new."""
        if not self._changed or self._packed is None:
            return
        self._changed = False
        newest = {**_read(self._file), **self._packed}
        kept = {path: facts for path, facts in newest.items() if os.path.exists(path)}
        index = {path: (digest, len(packed)) for path, (digest, packed) in kept.items()}
        body = b"".join([marshal.dumps(index), *(packed for _, packed in kept.values())])
        keep(self._file, _checksum(body) + body)


def _read(file: Path) -> dict[str, tuple[str, Bytes]]:
    try:
        content = file.read_bytes()
    except OSError:
        return {}
    body = memoryview(content)[_CHECKSUM:]
    if not body or content[:_CHECKSUM] != _checksum(body):
        return {}
    index: dict[str, tuple[str, int]] = marshal.loads(body)  # ignores what comes after it
    end = len(body) - sum(size for _, size in index.values())
    packed: dict[str, tuple[str, Bytes]] = {}
    for path, (digest, size) in index.items():
        start, end = end, end + size
        packed[path] = (digest, body[start:end])
    return packed


def _checksum(body: Bytes) -> bytes:
    return digest_of(body).rpartition(":")[2].encode()


# small files that only save time


def kept(name: str) -> Path:
    """Where the file of this name is, in ``UPSHIFT_HOME/fingerprints``."""
    return home() / "fingerprints" / name


def keep(file: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. A folder that cannot be written is no error."""
    with contextlib.suppress(OSError):
        make_folder(file.parent)
        with replacing(file) as draft:
            draft.write_bytes(content)
