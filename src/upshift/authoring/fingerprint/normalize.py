"""Source without what does not matter: comments, layout, positions, docstrings.

One pass over the syntax tree writes a flat list of tokens; a part of the tree is a slice of that
list, and its digest the digest of the slice. Decorators are kept apart, because whether one counts
depends on what it is: ``@step(retries=3)`` does not change what a function does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from upshift.authoring.fingerprint.digests import combined

_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "decorator_list"})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Normal(NamedTuple):
    """Digests of a part of a syntax tree: without docstrings, and with them."""

    digest: str
    documented: str


def normalize(tree: ast.Module, parts: Iterable[ast.AST]) -> dict[int, Normal]:
    """The digests of parts of a module and of all its decorators.

    Parameters
    ----------
    tree
        The module.
    parts
        Nodes of it.

    Returns
    -------
    dict
        ``id(node)`` to its digests.

    Raises
    ------
    RecursionError
        The source is nested too deeply.
    """
    writer = _Writer({id(part) for part in parts})
    writer.write(tree)
    return writer.digests


class _Writer:
    def __init__(self, wanted: set[int]) -> None:
        self.digests: dict[int, Normal] = {}
        self._wanted = wanted
        self._tokens: list[str] = []
        self._docstrings: list[str] = []
        self._fields: dict[type, tuple[str, ...]] = {}

    def write(self, node: ast.AST) -> None:
        kind = node.__class__
        tokens = self._tokens
        first, first_docstring = len(tokens), len(self._docstrings)
        tokens.append(kind.__name__)
        docstring = _docstring(node) if isinstance(node, _DOCUMENTED) else None
        if docstring is not None:
            self._docstrings.append(repr(docstring.value))
        for field in self._fields.get(kind) or self._fields_of(kind):
            value = getattr(node, field, None)
            if value.__class__ is list:
                tokens.append("[")
                for item in value:
                    if not isinstance(item, ast.AST):
                        tokens.append(repr(item))
                    elif docstring is None or getattr(item, "value", None) is not docstring:
                        self.write(item)
                tokens.append("]")
            elif isinstance(value, ast.AST):
                self.write(value)
            else:
                # Python refuses to print a huge number in decimal, never in hexadecimal.
                tokens.append(hex(value) if value.__class__ is int else repr(value))
        for decorator in getattr(node, "decorator_list", ()):
            self._write_apart(decorator)
        if id(node) in self._wanted:
            self.digests[id(node)] = _digests(tokens[first:], self._docstrings[first_docstring:])

    def _write_apart(self, decorator: ast.expr) -> None:
        tokens, self._tokens = self._tokens, []
        self._wanted.add(id(decorator))
        self.write(decorator)
        self._tokens = tokens

    def _fields_of(self, kind: type[ast.AST]) -> tuple[str, ...]:
        fields = tuple(field for field in kind._fields if field not in _IGNORED)
        self._fields[kind] = fields
        return fields


def _digests(tokens: list[str], docstrings: list[str]) -> Normal:
    digest = combined(tokens)
    return Normal(digest, combined([digest, *docstrings]) if docstrings else digest)


def _docstring(node: ast.AST) -> ast.Constant | None:
    body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None
