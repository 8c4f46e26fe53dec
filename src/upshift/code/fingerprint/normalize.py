"""Source without what does not matter: comments, layout, positions, docstrings.

One pass over the syntax tree writes a flat list of tokens; a part of the tree is a slice of that
list, and its digest the digest of the slice. Decorators are kept apart, because whether one counts
depends on what it is: ``@step(retries=3)`` does not change what a function does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from upshift.code.fingerprint.pieces import combined

_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_ignores", "decorator_list"})
_DECORATED = frozenset({ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef})
_DOCUMENTED = _DECORATED | {ast.Module}
_OPERATORS = [
    kind for family in (ast.operator, ast.unaryop, ast.boolop, ast.cmpop) for kind in family.__subclasses__()
]
_TEXTS: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((str, bytes, bool, float, complex, type(None), type(...)), repr),
    int: hex,  # Python refuses to print a huge number in decimal
    ast.Name: lambda node: f"Name\n{node.id!r}",
    ast.Constant: lambda node: f"Constant\n{_TEXTS[node.value.__class__](node.value)}",
    **dict.fromkeys(_OPERATORS, lambda node: node.__class__.__name__),
}
"""How what has no other node in it is written."""


class Normal(NamedTuple):
    """Digests of a part of a syntax tree: without docstrings, and with them."""

    digest: str
    documented: str


def normalize(tree: ast.Module, parts: Collection[ast.AST]) -> dict[int, Normal]:
    """The digests of parts of a module and of all its decorators, by ``id`` of the node.

    Raises RecursionError where the source is nested too deeply.
    """
    writer = _Writer({id(part) for part in parts})
    writer.write(tree)
    for part in parts:
        if id(part) not in writer.digests:
            writer.write(part)
    return writer.digests


class _Writer:
    def __init__(self, wanted: set[int]) -> None:
        self.digests: dict[int, Normal] = {}
        self._wanted = wanted
        self._tokens: list[str] = []
        self._docstrings: list[str] = []

    def write(self, node: ast.AST) -> None:
        kind = node.__class__
        tokens = self._tokens
        first, first_docstring = len(tokens), len(self._docstrings)
        docstring = None
        if kind in _DOCUMENTED:
            docstring = _docstring(node)
            if docstring is not None:
                self._docstrings.append(repr(docstring.value))
        tokens.append(kind.__name__)
        values = node.__dict__
        for field in _FIELDS[kind]:
            value: Any = values.get(field)
            text = _TEXTS.get(value.__class__)
            if text is not None:
                tokens.append(text(value))
            elif value.__class__ is not list:
                self.write(value)
            else:
                tokens.append("[")
                for item in value:
                    text = _TEXTS.get(item.__class__)
                    if text is not None:
                        tokens.append(text(item))
                    elif docstring is None or item.__dict__.get("value") is not docstring:
                        self.write(item)
                tokens.append("]")
        if kind in _DECORATED:
            for decorator in values["decorator_list"]:
                self._write_apart(decorator)
        if id(node) in self._wanted:
            self.digests[id(node)] = _digests(tokens[first:], self._docstrings[first_docstring:])

    def _write_apart(self, decorator: ast.expr) -> None:
        tokens, self._tokens = self._tokens, []
        self._wanted.add(id(decorator))
        self.write(decorator)
        self._tokens = tokens


class _Fields(dict[type, tuple[str, ...]]):
    """The parts that count of each kind of node."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        fields = self[kind] = tuple(field for field in kind._fields if field not in _IGNORED)
        return fields


_FIELDS = _Fields()


def _digests(tokens: list[str], docstrings: list[str]) -> Normal:
    digest = combined(tokens)
    return Normal(digest, combined([digest, *docstrings]) if docstrings else digest)


def _docstring(node: ast.AST) -> ast.Constant | None:
    body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None
