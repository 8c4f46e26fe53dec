"""Digests: of several texts, and of code by its bytecode where its source is not what was loaded.

Line numbers and file names do not count. Bytecode depends on the minor version of Python, which is
part of every fingerprint anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType

from upshift.runtime.storage.digest import digest_of


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
