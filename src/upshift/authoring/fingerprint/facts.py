"""Facts about one source file: its definitions, what binds each name, what its top level does.

Facts follow from the text alone. They are plain tuples, dictionaries and strings, so that they can be
kept on disk; this module must stay cheap to import, and making facts is the business of ``reading``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union

Chain = tuple[str, ...]
Use = tuple[Chain, Union[tuple[int, str], None], bool]
"""What is referred to; see :mod:`upshift.authoring.fingerprint.references`."""

VERSION = 3
"""To be raised whenever the same source gives other facts than before."""


class DecoratorFacts(NamedTuple):
    """One decorator of a definition, or of something inside it."""

    digest: str
    chain: Chain
    uses: tuple[Use, ...]


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
    computed
        Whether a default value of an argument is more than a literal.
    assigned
        Names that a class body binds.
    """

    qualname: str
    digest: str
    documented: str
    uses: tuple[Use, ...]
    decorators: tuple[DecoratorFacts, ...]
    attributes: tuple[str, ...]
    computed: bool
    assigned: tuple[str, ...]


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
    """

    digest: str
    uses: tuple[Use, ...]
    binds: tuple[str, ...]
    acts: bool
    calls: tuple[Chain, ...]
    literal: str


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

    Most of a file is never asked for, so its parts stay packed until they are.

    Parameters
    ----------
    packed
        What :func:`pack` gave.

    Attributes
    ----------
    names
        Names that something at the top level binds.
    functions
        ``"name:line"`` to numbers of units; lambdas on one line share an entry.
    classes
        Qualified name to numbers of units.
    statements
        In order.
    imports
        What is imported at the top level: ``(level, module, names)``.
    stars
        ``(level, module)`` of star imports.
    defined
        Names at the top level that a definition is the last to bind.
    decorated
        Numbers of decorated units at the top level.
    idle
        Top names of imports that nothing in the module refers to.
    """

    __slots__ = (
        "_units",
        "classes",
        "decorated",
        "defined",
        "functions",
        "idle",
        "imports",
        "names",
        "packed",
        "stars",
        "statements",
    )

    functions: dict[str, tuple[int, ...]]
    classes: dict[str, tuple[int, ...]]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    stars: tuple[tuple[int, str], ...]
    defined: tuple[str, ...]
    decorated: tuple[int, ...]
    idle: tuple[str, ...]

    def __init__(self, packed: tuple[Any, ...]) -> None:
        self.packed = packed
        _, _, statements, self.names, *rest = packed
        self._units: dict[int, UnitFacts] = {}
        self.functions, self.classes, self.imports, self.stars, self.defined, self.decorated, self.idle = rest
        self.statements = tuple(map(StatementFacts._make, statements))

    @property
    def whole(self) -> UnitFacts:
        """The module as one unit."""
        return _unit(self.packed[0])

    def unit(self, number: int) -> UnitFacts:
        """The definition with this number."""
        known = self._units.get(number)
        if known is None:
            known = self._units[number] = _unit(self.packed[1][number])
        return known

    def bound(self, name: str) -> tuple[Union[Import, Bound], ...]:
        """What binds a name at the top level, in order; nothing where it is none of :attr:`names`."""
        return tuple(map(_binding, self.names.get(name, ())))


def _unit(packed: tuple[Any, ...]) -> UnitFacts:
    unit = UnitFacts._make(packed)
    return unit._replace(decorators=tuple(map(DecoratorFacts._make, packed[4]))) if packed[4] else unit


def _binding(packed: tuple[Any, ...]) -> Import | Bound:
    return Bound._make(packed) if len(packed) == 2 else Import._make(packed)


def pack(
    whole: UnitFacts,
    units: Iterable[UnitFacts],
    statements: Iterable[StatementFacts],
    bindings: Mapping[str, Iterable[Import | Bound]],
    *others: Any,
) -> tuple[Any, ...]:
    """Facts as exact tuples, dictionaries, strings, numbers and None, which :mod:`marshal` takes.

    Parameters
    ----------
    bindings
        Name at the top level to what binds it.
    others
        The other attributes of :class:`Facts`, in order.
    """
    seen: dict[Use, Use] = {}  # marshal writes one object once

    def uses(given: Iterable[Use]) -> tuple[Use, ...]:
        return tuple([seen.setdefault(use, use) for use in given])

    def unit(unit: UnitFacts) -> tuple[Any, ...]:
        decorators = tuple([(digest, chain, uses(given)) for digest, chain, given in unit.decorators])
        return (*unit[:3], uses(unit.uses), decorators, *unit[5:])

    return (
        unit(whole),
        tuple(map(unit, units)),
        tuple(map(tuple, statements)),
        {name: tuple(map(tuple, bound)) for name, bound in bindings.items()},
        *others,
    )
