"""Facts about one source file: its definitions, what binds each name, what its top level does.

Facts follow from the text alone, and are packed into bytes, so that they can be kept on disk. This module
must stay cheap to import; making facts is the business of ``reading``.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple, Union

from upshift.runtime.storage.digest import Bytes

Chain = tuple[str, ...]
Use = tuple[Chain, Union[tuple[int, str], None], bool]
"""What is referred to; see :mod:`upshift.code.fingerprint.references`."""
Word = str
"""A use as one text, ``"range"``, ``"=helpers.scale"`` where it is bare: there are very many."""
BARE, ODD = "=", "!"
BY_LITERAL = (-1, "")
"""The origin of what is called as importing functions are, with the name of a module that is written out."""

VERSION = 11
"""To be raised whenever the same source gives other facts than before."""


def word_of(use: Use) -> Word:
    """A use as one text."""
    chain, origin, bare = use
    if not all(map(str.isidentifier, chain)) or (origin and " " in origin[1]):
        return f"{ODD}{use!r}"  # getattr(table, "unit price"), import_module("my helpers")
    came = "" if origin is None else f"{origin[0]} {origin[1]} "
    return f"{BARE if bare else ''}{came}{'.'.join(chain)}"


def root_of(word: Word) -> str:
    """The name in the surrounding scope that a use begins with; no name where an import brings it."""
    if word.startswith(ODD):
        chain, origin, _ = use_of(word)
        return chain[0] if origin is None else ""
    return word.removeprefix(BARE).partition(".")[0]


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
    uses: tuple[Word, ...]


class UnitFacts(NamedTuple):
    """A definition, or the whole module.

    Parameters
    ----------
    qualname
        As Python gives it.
    digest, documented
        Of the source without decorators; without docstrings, and with them.
    uses
        What it refers to, decorators aside.
    decorators
        Its own and those inside it.
    attributes
        Every attribute name in it.
    defaults
        The default values of its arguments, as :func:`holding.written_out` gives them; None where one
        is more than a literal.
    assigned
        Names that a class body binds.
    reads, made_reading
        Whether it may read a file, as far as names tell; and whether its definition does, when it runs.
    """

    qualname: str
    digest: str
    documented: str
    uses: tuple[Word, ...]
    decorators: tuple[DecoratorFacts, ...]
    attributes: tuple[str, ...]
    defaults: str | None
    assigned: tuple[str, ...]
    reads: bool
    made_reading: bool


class StatementFacts(NamedTuple):
    """A statement at the top level that is no definition and no import.

    Parameters
    ----------
    digest, uses
        As in :class:`UnitFacts`.
    binds
        Names that it assigns.
    acts
        Whether it does more than to assign the values of calls to names.
    calls
        What is called for these values; an empty chain for a call of something without a name.
    literal
        Digest of the value that it assigns, where that is written out; else empty.
    reads
        Whether it may read a file, as far as names tell.
    """

    digest: str
    uses: tuple[Word, ...]
    binds: tuple[str, ...]
    acts: bool
    calls: tuple[Chain, ...]
    literal: str
    reads: bool


class Import(NamedTuple):
    """A name at the top level is bound by an import: ``from ..module import attribute``, two levels."""

    level: int
    module: str
    attribute: str | None

    @property
    def chain(self) -> Chain:
        """The attribute, as a chain."""
        return (self.attribute,) if self.attribute else ()


class Bound(NamedTuple):
    """A name at the top level is bound by a definition, or else a statement, with this number."""

    definition: bool
    number: int


class Facts:
    """What is known about a file.

    Most units of a file are never asked for, so they stay packed until they are.

    Parameters
    ----------
    packed
        What :func:`pack` gave.

    Attributes
    ----------
    names
        Names that something at the top level binds; :meth:`bound` says what.
    classes
        Qualified name to numbers of units.
    methods
        Qualified name of a method without computed default values to its first line and its default
        values, where no other function of its name begins on that line.
    statements
        In order.
    imports
        What is imported at the top level: ``(level, module, names)``.
    stars
        ``(level, module)`` of star imports.
    defined
        Names at the top level that a class, or what a decorator may make one, is the last to bind.
    decorated
        Numbers of decorated units at the top level.
    idle
        Top names of imports that nothing in the module refers to.
    docstring
        Digest of the module's docstring; empty if it has none.
    """

    __slots__ = (
        "_at",
        "_functions",
        "_units",
        "classes",
        "decorated",
        "defined",
        "docstring",
        "idle",
        "imports",
        "methods",
        "names",
        "packed",
        "stars",
        "statements",
    )

    classes: dict[str, tuple[int, ...]]
    methods: dict[str, tuple[int, str]]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    stars: tuple[tuple[int, str], ...]
    defined: tuple[str, ...]
    decorated: tuple[int, ...]
    idle: tuple[str, ...]
    docstring: str

    def __init__(self, packed: Bytes) -> None:
        self.packed = memoryview(packed)
        self._at, statements, self.names, self._functions, self.classes, *rest = marshal.loads(packed)
        self.methods, self.imports, self.stars, self.defined, self.decorated, self.idle, self.docstring = rest
        self._units: dict[int, UnitFacts] = {}
        self.statements = tuple(map(StatementFacts._make, statements))

    @property
    def whole(self) -> UnitFacts:
        """The module as one unit."""
        return self._unpacked(0)

    def unit(self, number: int) -> UnitFacts:
        """The definition with this number."""
        known = self._units.get(number)
        if known is None:
            known = self._units[number] = self._unpacked(number + 1)
        return known

    def functions_at(self, name: str, line: int) -> list[UnitFacts]:
        """The functions of this name whose code begins on this line: one, or several lambdas."""
        found = []
        for number in _unpacked_list(self._functions.get(line)):
            unit = self.unit(number)
            if unit.qualname == name or unit.qualname.endswith("." + name):
                found.append(unit)
        return found

    def _unpacked(self, part: int) -> UnitFacts:
        unit = UnitFacts._make(marshal.loads(self.packed[-self._at[part] :]))
        return unit._replace(decorators=tuple(map(DecoratorFacts._make, unit[4]))) if unit[4] else unit

    def bound(self, name: str) -> tuple[Union[Import, Bound], ...]:
        """What binds a name at the top level, in order; nothing where it is none of :attr:`names`."""
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
    whole: UnitFacts,
    units: Iterable[UnitFacts],
    statements: Iterable[StatementFacts],
    bindings: Mapping[str, Iterable[Import | Bound]],
    functions: Mapping[int, list[int]],
    *others: Any,
) -> bytes:
    """Facts as :mod:`marshal` writes them, and after them the units, each by itself.

    Parameters
    ----------
    bindings
        Name at the top level to what binds it.
    functions
        First line to numbers of the units of functions.
    others
        The other attributes of :class:`Facts`, in order.
    """
    parts = [_packed(unit) for unit in (whole, *units)]
    at = [*accumulate(len(part) for part in reversed(parts))][::-1]  # how far from the end
    names = {name: _packed_list(list(map(_packed_binding, bound))) for name, bound in bindings.items()}
    lines = {line: _packed_list(numbers) for line, numbers in functions.items()}
    header = (tuple(at), tuple(map(tuple, statements)), names, lines, *others)
    return b"".join([marshal.dumps(header), *parts])


def _packed(unit: UnitFacts) -> bytes:
    return marshal.dumps((*unit[:4], tuple(map(tuple, unit.decorators)), *unit[5:]))
