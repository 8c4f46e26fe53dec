"""A piece of code: what it adds to a fingerprint, and the keys of the pieces that it reaches.

Pieces are plain data. A key says how a piece is made, and of what:

=============================  =====================================================================
``("code", id)``               a live function, class or module
``("source", module, file,     a definition in a file, by name and line or as in ``Facts.units``, where some
what, hidden)``                names are variables of closures; beyond the step's own file the whole module
``("whole", module)``          the whole source of a module, and what the names in it mean
``("names", module)``          every name of a module, and of those that it imports
``("names", module,            the same without the plain values that a script makes for itself
"pickled")``
``("name", module, name)``     a name of a live module
``("imported", module)``       a module that is imported, and nothing else of it
``("docstring", id)``          the docstring of a function or class that is handed on
``("package", "numpy 2.1")``   installed distributions, and what they require
``("project",)``               every module of the project, and all that is installed; with ``"pickled"``
                               as far as a pickle may name it
=============================  =====================================================================

Digests are of texts, or of code by its bytecode where its source is not what was loaded. Line numbers and
file names do not count. Bytecode depends on the minor version of Python, which is part of every
fingerprint anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

from upshift.runtime.storage.digest import digest_of

Key = tuple[Any, ...]

READS = 1
REFLECTS = 2
READS_SOURCE = 4
SUBCLASSES = 8
FRAMES = 16
CHANGES_GIVEN = 32
"""As in :mod:`facts <upshift.code.fingerprint.facts>`: these flags are those of units of source, and more:"""
ACTS = 128
"""Calling it may change something that is not the project's own."""
CHANGES = 4096
"""Calling it does."""
HIDES = 256
"""A value in it may hold data that cannot be seen."""
ALTERS_PATH = 1024
"""It changes, or may change, where modules are imported from."""
UNRESOLVED = 2048
"""It imports what is not there now."""
SEEN = 512
"""It is a value of which everything is seen, wherever it is from."""


class Piece:
    """What one piece of code adds, and reaches.

    Attributes
    ----------
    entries
        Title; digest, version, or what it is called; and the digest with docstrings if there are any.
    reaches
        Keys of other pieces.
    opaque
        Values that cannot be compared where a file is read to make them: title; keys of pieces one of which
        has to hide something; and what makes the value.
    """

    __slots__ = ("entries", "flags", "opaque", "reaches")

    def __init__(self, *reaches: Key, flags: int = 0) -> None:
        self.entries: list[tuple[str, str, str]] = []
        self.reaches: list[Key] = list(reaches)
        self.opaque: list[tuple[str, list[Key], Piece]] = []
        self.flags = flags

    def add(self, title: str, digest: str, documented: str = "") -> None:
        """Add an entry: its title, its digest, and the digest with docstrings."""
        self.entries.append((title, digest, documented))


def combined(parts: Iterable[str]) -> str:
    """The digest of texts, in order; none of them may be two lines that could be two texts."""
    return digest_of("\n".join(parts).encode("utf-8", "surrogatepass"))


def code_digest(code: CodeType) -> str:
    """The digest of what a code object does."""
    return combined(_tokens(code))


def code_names(code: CodeType) -> set[str]:
    """Every name that a code object, or one inside it, may take from its globals or from an object."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= code_names(constant)
    return names


def _tokens(code: CodeType) -> list[str]:
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    tokens = [code.co_name, repr(shape), code.co_code.hex()]
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        tokens.append(repr(names))
    tokens.append(getattr(code, "co_exceptiontable", b"").hex())
    for constant in code.co_consts:
        tokens.append("(")
        tokens.extend(_constant(constant))
        tokens.append(")")
    return tokens


def _constant(constant: object) -> list[str]:
    if isinstance(constant, CodeType):
        return _tokens(constant)
    if isinstance(constant, frozenset):
        return ["frozenset", *sorted(" ".join(_constant(item)) for item in constant)]
    if isinstance(constant, tuple):
        return ["tuple", *(token for item in constant for token in ("(", *_constant(item), ")"))]
    if type(constant) is int:
        return ["int", f"{constant:x}"]  # Python refuses to print a huge number in decimal
    return [type(constant).__name__, repr(constant)]
