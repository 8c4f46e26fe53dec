"""Source text to :class:`Facts`."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from upshift.code.fingerprint.facts import (
    CONSTANT,
    DYNAMIC,
    READS,
    Bound,
    Chain,
    DecoratorFacts,
    Facts,
    Import,
    StatementFacts,
    UnitFacts,
    Use,
    pack,
    word_of,
)
from upshift.code.fingerprint.normalize import Normal, normalize
from upshift.code.fingerprint.pieces import combined
from upshift.code.fingerprint.references import Decorator, Definition, Reader, called, chain_of, unique
from upshift.code.fingerprint.statements import Statement, memos, statements
from upshift.code.fingerprint.values import value_digest

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_FINDING = frozenset(
    {
        "_pickle", "code", "dill", "doctest", "gc", "imp", "importlib", "importlib_metadata", "inspect",
        "joblib", "logging", "modulefinder", "pickle", "pkg_resources", "pkgutil", "pydoc", "runpy", "site",
        "stevedore", "sys", "unittest", "zipimport",
    }
)  # fmt: skip
"""Packages that have something in them by which code may be found that no name leads to."""
_FINDING_BUILTINS = frozenset({"eval", "exec", "globals", "__import__"})
_WITH_VALUE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def read_facts(source: bytes) -> Facts:
    """The facts about a file with this content.

    Raises
    ------
    SyntaxError, ValueError
        It is not Python.
    RecursionError
        It is nested too deeply.
    """
    tree = ast.parse(source)
    return _FactsOf(tree).facts()


class _Top(NamedTuple):
    """What stands at the top level, and what it refers to."""

    node: ast.AST
    uses: list[Use]
    binds: frozenset[str]
    decorators: list[Decorator]
    flags: int

    @property
    def all_uses(self) -> list[Use]:
        return [*self.uses, *(use for decorator in self.decorators for use in decorator.uses)]


class _Dynamic:
    """What a definition has by which code may be found that no name leads to, and the names in it."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.flags = 0
        self.names: set[str] = set()


class _FactsOf:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._reader = Reader(tree)
        self._memos = memos(tree)
        self._tops: list[_Top] = []
        self._names: dict[str, list[Import | Bound]] = {}
        self._imports: list[tuple[int, str, tuple[str, ...]]] = []

    def facts(self) -> Facts:
        rest = self._read()
        bodies = {
            self._numbers[id(top.node)]: list(statements(top.node))
            for top in self._tops
            if isinstance(top.node, _FUNCTIONS) and top.node.decorator_list
        }
        parts: list[ast.AST] = [*rest, *(top.node for top in self._tops)]
        parts += [definition.node for definition in self._definitions]
        parts += [part for body in bodies.values() for one in body for part in (one.node, *one.others)]
        self._digests = normalize(self._tree, parts)
        of_top_level = self._bind_all()
        functions: dict[int, list[int]] = {}
        classes: dict[str, list[int]] = {}
        for number, definition in enumerate(self._definitions):
            if isinstance(definition.node, ast.ClassDef):
                classes.setdefault(definition.qualname, []).append(number)
            else:
                functions.setdefault(definition.line, []).append(number)
        uses, dynamic = self._uses()
        whole, documented = self._whole(rest)
        others = [top for top in self._tops if id(top.node) not in self._numbers]
        return Facts(
            pack(
                [self._unit(definition) for definition in self._definitions],
                self._names,
                functions,
                classes,
                whole=whole,
                documented=documented,
                words=tuple(dict.fromkeys(map(word_of, uses))),
                flags=functools.reduce(operator.or_, (top.flags for top in others), 0),
                dynamic=dynamic,
                statements=tuple(map(tuple, of_top_level)),
                imports=tuple(dict.fromkeys(self._imports)),
                decorated=tuple(
                    self._numbers[id(top.node)]
                    for top in self._tops
                    if isinstance(top.node, _DEFINITIONS) and top.node.decorator_list
                ),
                defined=tuple(name for name, bound in self._names.items() if self._may_be_class(bound[-1])),
                idle=tuple(self._idle(uses)),
                bodies={number: tuple(map(tuple, self._effects(body))) for number, body in bodies.items()},
                decorators=tuple(
                    (self._digests[id(decorator.node)].digest, decorator.chain)
                    for top in self._tops
                    for decorator in top.decorators
                ),
                docstring=_docstring(self._tree),
            )
        )

    def _read(self) -> list[ast.AST]:
        """Read the top level; what is there beside definitions."""
        rest: list[ast.AST] = []
        for node in _flattened(self._tree.body):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
                rest.append(node)
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                self._tops.append(_Top(node, *self._reader.statement(node)))
                if not isinstance(node, _DEFINITIONS):
                    rest.append(node)
        self._definitions = self._reader.definitions
        self._numbers = {id(definition.node): number for number, definition in enumerate(self._definitions)}
        return rest

    def _bind_all(self) -> list[StatementFacts]:
        """Note what binds each name; the statements among them."""
        found: list[StatementFacts] = []
        for top in self._tops:
            number = self._numbers.get(id(top.node))
            if number is not None:
                self._bind(top.binds, Bound(True, number))
            else:
                self._bind(top.binds, Bound(False, len(found)))
                found.append(self._statement(top.node, top.all_uses, top.binds, top.flags))
        return found

    def _uses(self) -> tuple[list[Use], dict[str, tuple[tuple[str, ...], int]]]:
        """What the file refers to; by definition, what may find code by other ways than names."""
        finding = self._finding()
        uses: list[Use] = []
        dynamic: dict[str, _Dynamic] = {}
        for top in self._tops:
            if not isinstance(top.node, _DEFINITIONS):
                uses += [use for use in top.all_uses if not _of_path(use)]
                continue
            found = dynamic.setdefault(top.node.name, _Dynamic())
            found.flags |= top.flags & DYNAMIC
            for use in self._counting(top.node.name, top.all_uses):
                chain, origin, _ = use
                if origin is None:
                    found.names.add(chain[0])
                    finds = chain[0] in finding
                else:
                    finds = origin[0] == 0 and origin[1].partition(".")[0] in _FINDING
                (found.uses if finds else uses).append(use)
        return uses, _closed(dynamic)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            self._imports.extend((0, alias.name, ()) for alias in node.names)
        else:
            names = tuple(alias.name for alias in node.names)
            self._imports.append((node.level, node.module or "", names))
        self._bind_imports(node)

    def _bind_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.ImportFrom):
                source = Import(node.level, node.module or "", alias.name)
            elif alias.asname:
                source = Import(0, alias.name, None)
            else:
                name = alias.name.partition(".")[0]
                source = Import(0, name, None)
            if name != "*":
                self._bind([name], source)

    def _bind(self, names: Iterable[str], what: Import | Bound) -> None:
        for name in names:
            self._names.setdefault(name, []).append(what)

    def _finding(self) -> frozenset[str]:
        """Names by which code may be found that no other name leads to."""
        return _FINDING_BUILTINS.union(
            name
            for name, bound in self._names.items()
            if any(isinstance(b, Import) and b.module.partition(".")[0] in _FINDING for b in bound)
        )

    def _may_be_class(self, what: Import | Bound) -> bool:
        if isinstance(what, Import) or not what.definition:
            return False
        node: Any = self._definitions[what.number].node
        return isinstance(node, ast.ClassDef) or bool(node.decorator_list)

    def _whole(self, rest: list[ast.AST]) -> tuple[str, str]:
        found: dict[str, list[Normal]] = {}
        constants: dict[str, list[str]] = {}
        others: list[str] = []
        for top in self._tops:
            if isinstance(top.node, _DEFINITIONS):
                found.setdefault(top.node.name, []).append(self._digests[id(top.node)])
        for node in rest:
            name, digest = _assigned_name(node), self._digests[id(node)].digest
            (constants.setdefault(CONSTANT + name, []) if name else others).append(digest)
        parts = {name: combined(one.digest for one in of_all) for name, of_all in sorted(found.items())}
        named = {**parts, **{name: combined(of_all) for name, of_all in sorted(constants.items())}}
        named[""] = combined(others)
        parts[""] = combined(self._digests[id(node)].digest for node in rest)  # in their order
        documented = [
            _docstring(self._tree),
            *(one.documented for of_all in found.values() for one in of_all),
        ]
        short = " ".join(f"{name}={digest.partition(':')[2][:8]}" for name, digest in named.items())
        whole = combined(f"{name} {digest}" for name, digest in parts.items())
        return f"{whole} {short}", combined([whole, *documented])

    def _idle(self, uses: Iterable[Use]) -> Iterator[str]:
        mentioned = {chain[0] for chain, origin, _ in uses if origin is None and chain}
        for name, bound in self._names.items():
            if name not in mentioned and any(isinstance(what, Import) for what in bound):
                yield name

    def _counting(self, function: str, uses: list[Use]) -> list[Use]:
        """What a function refers to, but for the dictionary in which it keeps what it has computed before."""
        if function not in self._memos.values():
            return uses
        return [use for use in uses if use[1] is not None or self._memos.get(use[0][0]) != function]

    def _unit(self, definition: Definition) -> UnitFacts:
        normal = self._digests[id(definition.node)]
        return UnitFacts(
            qualname=definition.qualname,
            digest=normal.digest,
            documented=normal.documented,
            words=tuple(map(word_of, self._counting(definition.qualname, definition.uses))),
            decorators=tuple(map(self._decorator, definition.decorators)),
            assigned=tuple(sorted(definition.assigned)),
            changed=tuple(sorted(definition.changed)),
            flags=definition.flags,
        )

    def _decorator(self, decorator: Decorator) -> DecoratorFacts:
        digest = self._digests[id(decorator.node)].digest
        return DecoratorFacts(digest, decorator.chain, tuple(map(word_of, decorator.uses)))

    def _effects(self, body: Iterable[Statement]) -> Iterator[StatementFacts]:
        """The statements of a pipeline's body that may do something to others."""
        for one in body:
            uses: list[Use] = []
            for part in (one.node, *one.others):
                of_part, _, decorators, _ = Reader(part).statement(part)
                uses += [*of_part, *(use for decorator in decorators for use in decorator.uses)]
            free = [use for use in uses if use[1] is not None or use[0][0] not in one.own]
            said = self._statement(one.node, free, frozenset(), 0)
            calls = tuple(chain for chain in said.calls if not chain or chain[0] not in one.own)
            acts = bool(calls) if isinstance(one.node, ast.Expr) else one.changes
            if acts or calls:
                digests = [said.digest, *(self._digests[id(other)].digest for other in one.others)]
                yield said._replace(digest=combined(digests), acts=acts, calls=calls, arguments=one.arguments)

    def _statement(self, node: ast.AST, uses: list[Use], binds: frozenset[str], flags: int) -> StatementFacts:
        value = getattr(node, "value", None) if isinstance(node, _WITH_VALUE) else None
        return StatementFacts(
            digest=self._digests[id(node)].digest,
            words=tuple(word_of(use) for use in unique(uses) if not _of_path(use)),
            binds=tuple(sorted(binds)),
            acts=_acts(node),
            calls=tuple(dict.fromkeys(_calls(value))) if value is not None else (),
            literal=_literal(node),
            reads=bool(flags & READS),
        )


def _of_path(use: Use) -> bool:
    """Whether it is ``sys.path``, which has been changed by now where the top level changes it."""
    return use[0][:2] == ("sys", "path")


def _closed(found: dict[str, _Dynamic]) -> dict[str, tuple[tuple[str, ...], int]]:
    """What each definition has, and those that it names."""
    growing = True
    while growing:
        growing = False
        for one in found.values():
            for other in [found[name] for name in one.names if name in found]:
                more = [use for use in other.uses if use not in one.uses]
                growing = growing or bool(more or other.flags & ~one.flags)
                one.uses.extend(more)
                one.flags |= other.flags
    return {
        name: (tuple(map(word_of, one.uses)), one.flags)
        for name, one in found.items()
        if one.uses or one.flags
    }


def _docstring(tree: ast.Module) -> str:
    text = ast.get_docstring(tree, clean=False)
    return "" if text is None else combined([text])


def _literal(node: ast.AST) -> str:
    """The digest of the value, where one name is assigned a value that is written out."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return ""
    try:
        value = ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ""
    return value_digest(value, _no_code, _no_code).digest


def _no_code(value: object) -> Any:
    raise AssertionError(f"{value!r} is not a literal")


def _acts(node: ast.AST) -> bool:
    if isinstance(node, (ast.Pass, ast.Assert)):
        return False
    if isinstance(node, ast.Assign):
        return not all(_is_name(target) for target in node.targets)
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        return not _is_name(node.target)
    return node.__class__.__name__ != "TypeAlias"


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(_is_name(item) for item in target.elts)
    if isinstance(target, ast.Starred):
        return _is_name(target.value)
    return isinstance(target, ast.Name)


def _calls(node: ast.AST) -> Iterator[Chain]:
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Call):
        yield _callee(node)
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _callee(call: ast.Call) -> Chain:
    """What is called; for a method of what another call gave, that call's own name."""
    inner: ast.AST = call.func
    while isinstance(inner, (ast.Attribute, ast.Call)) and not chain_of(inner):
        inner = inner.value if isinstance(inner, ast.Attribute) else called(inner)
    if isinstance(inner, ast.Constant):
        return ("str",)  # a method of a literal
    return chain_of(inner)


# top levels and bodies of functions, statement by statement


def _flattened(body: list[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
    """The statements of a module, those under ``if`` and ``try`` each by itself, and the conditions.

    What runs only as a script, or only for a type checker, does not count: workers import the module.
    """
    for node in body:
        if isinstance(node, ast.If):
            if not _is_guard(node.test):
                yield node.test
                yield from _flattened(node.body)
            yield from _flattened(node.orelse)
        elif isinstance(node, ast.Try) or node.__class__.__name__ == "TryStar":
            yield from _flattened(node.body)  # type: ignore[attr-defined]
            for handler in node.handlers:  # type: ignore[attr-defined]
                yield from _flattened(handler.body)
            yield from _flattened(node.orelse)  # type: ignore[attr-defined]
            yield from _flattened(node.finalbody)  # type: ignore[attr-defined]
        else:
            yield node


def _assigned_name(node: ast.AST) -> str:
    """The name that a statement assigns to, if it is one and the statement nothing else."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    plain = isinstance(node, (ast.Assign, ast.AnnAssign)) and len(targets) == 1
    return targets[0].id if plain and isinstance(targets[0], ast.Name) else ""


def _is_for_hints(test: ast.expr) -> bool:
    return chain_of(test)[-1:] == ("TYPE_CHECKING",)


def _is_guard(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare):
        return any(chain_of(side) == ("__name__",) for side in (test.left, *test.comparators))
    return _is_for_hints(test)
