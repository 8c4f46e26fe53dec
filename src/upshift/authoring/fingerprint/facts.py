"""Facts about one source file: its definitions, what binds each name, what its top level does.

Facts follow from the text alone. They are plain tuples, dictionaries and strings, so that they can be
kept on disk; this module must stay cheap to import, and making facts is the business of ``reading``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Union

Chain = tuple[str, ...]
Use = tuple[Chain, Union[tuple[int, str], None], bool]
"""What is referred to; see :mod:`upshift.authoring.fingerprint.references`."""

VERSION = 2
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


class Facts(NamedTuple):
    """What is known about a file.

    Parameters
    ----------
    whole
        The module as one unit.
    units
        Its definitions.
    functions
        ``"name:line"`` to indices of units; lambdas on one line share an entry.
    classes
        Qualified name to indices of units.
    statements
        In order.
    bindings
        Name at the top level to what binds it.
    imports
        What is imported at the top level: ``(level, module, names)``.
    stars
        ``(level, module)`` of star imports.
    decorated
        Indices of decorated units at the top level.
    idle
        Top names of imports that nothing in the module refers to.
    """

    whole: UnitFacts
    units: tuple[UnitFacts, ...]
    functions: dict[str, tuple[int, ...]]
    classes: dict[str, tuple[int, ...]]
    statements: tuple[StatementFacts, ...]
    bindings: dict[str, tuple[Union[Import, Bound], ...]]
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    stars: tuple[tuple[int, str], ...]
    decorated: tuple[int, ...]
    idle: tuple[str, ...]


def unpack(packed: tuple[Any, ...]) -> Facts:
    """The facts that :func:`plain` was given."""
    whole, units, functions, classes, statements, bindings, *rest = packed
    return Facts(
        _unit(whole),
        tuple(map(_unit, units)),
        functions,
        classes,
        tuple(map(StatementFacts._make, statements)),
        {name: tuple(map(_binding, bound)) for name, bound in bindings.items()},
        *rest,
    )


def _unit(packed: tuple[Any, ...]) -> UnitFacts:
    decorators = packed[4]
    if decorators:
        made = tuple(map(DecoratorFacts._make, decorators))
        packed = (*packed[:4], made, *packed[5:])
    return UnitFacts(*packed)


def _binding(packed: tuple[Any, ...]) -> Import | Bound:
    return Bound(*packed) if len(packed) == 2 else Import(*packed)


def plain(value: Any) -> Any:
    """Facts as exact tuples, dictionaries, strings, numbers and None."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value
