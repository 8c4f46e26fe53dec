"""Source text to :class:`Facts`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import (
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
from upshift.code.fingerprint.holding import NO_DEFAULTS
from upshift.code.fingerprint.normalize import Normal, normalize
from upshift.code.fingerprint.readers import is_reader
from upshift.code.fingerprint.references import (
    Decorator,
    Definition,
    Reader,
    called,
    chain_of,
    unique,
)
from upshift.code.fingerprint.values import value_digest

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


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


class _FactsOf:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._reader = Reader()
        self._statements: list[StatementFacts] = []
        self._pending: list[tuple[ast.AST, list[Use], list[Decorator], frozenset[str], frozenset[str]]] = []
        self._bindings: dict[str, list[Import | Bound]] = {}
        self._imports: list[tuple[int, str, tuple[str, ...]]] = []
        self._whole_uses: list[Use] = []
        self._whole_decorators: list[Decorator] = []
        self._attributes: set[str] = set()

    def facts(self) -> Facts:
        tops: list[ast.AST] = []
        hints = [node for node in self._tree.body if isinstance(node, ast.If) and _is_for_hints(node.test)]
        for node in _flattened(self._tree.body):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                tops.append(node)
                self._read(node)
        definitions = self._reader.definitions
        parts: list[ast.AST] = [self._tree, *tops, *(definition.node for definition in definitions)]
        digests = normalize(self._tree, parts)
        index = {id(definition.node): number for number, definition in enumerate(definitions)}
        functions: dict[int, list[int]] = {}
        classes: dict[str, tuple[int, ...]] = {}
        for number, definition in enumerate(definitions):
            if isinstance(definition.node, ast.ClassDef):
                classes[definition.qualname] = (*classes.get(definition.qualname, ()), number)
            else:
                functions.setdefault(definition.line, []).append(number)
        methods: dict[str, tuple[int, str]] = {}
        for line, numbers in functions.items():
            names = Counter(definitions[number].qualname.rpartition(".")[2] for number in numbers)
            for definition in map(definitions.__getitem__, numbers):
                owner, _, name = definition.qualname.rpartition(".")
                if owner in classes and names[name] == 1 and definition.defaults is not None:
                    methods[definition.qualname] = (line, definition.defaults)
        decorated = []
        for top, uses, decorators, binds, attributes in self._pending:
            if isinstance(top, _DEFINITIONS):
                self._bind(binds, Bound(True, index[id(top)]))
                if top.decorator_list:
                    decorated.append(index[id(top)])
            else:
                self._bind(binds, Bound(False, len(self._statements)))
                self._statements.append(_statement(top, uses, decorators, binds, attributes, digests))
        bound = frozenset(self._bindings)
        for hint in (statement for node in hints for statement in node.body):
            if isinstance(hint, (ast.Import, ast.ImportFrom)):
                self._bind_imports(hint, bound)
        return Facts(
            pack(
                self._whole(digests),
                [_unit(definition, digests) for definition in definitions],
                self._statements,
                self._bindings,
                functions,
                classes,
                methods,
                tuple(dict.fromkeys(self._imports)),
                tuple((level, module) for level, module, names in self._imports if "*" in names),
                tuple(name for name, bound in self._bindings.items() if self._may_be_class(bound[-1])),
                tuple(decorated),
                tuple(self._idle()),
                _docstring(self._tree),
            )
        )

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            self._imports.extend((0, alias.name, ()) for alias in node.names)
        else:
            names = tuple(alias.name for alias in node.names)
            self._imports.append((node.level, node.module or "", names))
        self._bind_imports(node)

    def _bind_imports(
        self, node: ast.Import | ast.ImportFrom, except_for: frozenset[str] = frozenset()
    ) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.ImportFrom):
                source = Import(node.level, node.module or "", alias.name)
            elif alias.asname:
                source = Import(0, alias.name, None)
            else:
                name = alias.name.partition(".")[0]
                source = Import(0, name, None)
            if name != "*" and name not in except_for:
                self._bind([name], source)

    def _read(self, node: ast.AST) -> None:
        uses, bound, decorators, attributes = self._reader.statement(node)
        self._pending.append((node, uses, decorators, bound, attributes))
        self._whole_uses.extend(uses)
        self._whole_decorators.extend(decorators)
        self._attributes |= attributes

    def _bind(self, names: frozenset[str] | list[str], what: Import | Bound) -> None:
        for name in names:
            self._bindings.setdefault(name, []).append(what)

    def _may_be_class(self, what: Import | Bound) -> bool:
        if isinstance(what, Import) or not what.definition:
            return False
        node: Any = self._reader.definitions[what.number].node
        return isinstance(node, ast.ClassDef) or bool(node.decorator_list)

    def _whole(self, digests: dict[int, Normal]) -> UnitFacts:
        normal = digests[id(self._tree)]
        return UnitFacts(
            qualname="",
            digest=normal.digest,
            documented=normal.documented,
            uses=tuple(map(word_of, unique(self._whole_uses))),
            decorators=tuple(_decorator(decorator, digests) for decorator in self._whole_decorators),
            attributes=tuple(sorted(self._attributes)),
            defaults=NO_DEFAULTS,
            assigned=(),
            reads=False,
            made_reading=False,
        )

    def _idle(self) -> Iterator[str]:
        mentioned = {chain[0] for chain, origin, _ in self._all_uses() if origin is None and chain}
        for name, bound in self._bindings.items():
            for what in bound:
                if isinstance(what, Import) and name not in mentioned:
                    yield name

    def _all_uses(self) -> Iterator[Use]:
        yield from self._whole_uses
        for decorator in self._whole_decorators:
            yield from decorator.uses


def _docstring(tree: ast.Module) -> str:
    text = ast.get_docstring(tree, clean=False)
    return "" if text is None else combined([text])


def _unit(definition: Definition, digests: dict[int, Normal]) -> UnitFacts:
    normal = digests[id(definition.node)]
    return UnitFacts(
        qualname=definition.qualname,
        digest=normal.digest,
        documented=normal.documented,
        uses=tuple(map(word_of, definition.uses)),
        decorators=tuple(_decorator(decorator, digests) for decorator in definition.decorators),
        attributes=tuple(sorted(definition.attributes)),
        defaults=definition.defaults,
        assigned=tuple(sorted(definition.assigned)),
        reads=any(map(is_reader, definition.attributes)),
        made_reading=definition.made_reading,
    )


def _decorator(decorator: Decorator, digests: dict[int, Normal]) -> DecoratorFacts:
    return DecoratorFacts(
        digests[id(decorator.node)].digest, decorator.chain, tuple(map(word_of, decorator.uses))
    )


def _statement(
    node: ast.AST,
    uses: list[Use],
    decorators: list[Decorator],
    binds: frozenset[str],
    attributes: frozenset[str],
    digests: dict[int, Normal],
) -> StatementFacts:
    inner = [use for decorator in decorators for use in decorator.uses]
    value = getattr(node, "value", None) if isinstance(node, (*_ASSIGNMENTS, ast.Expr)) else None
    return StatementFacts(
        digest=digests[id(node)].digest,
        uses=tuple(map(word_of, unique([*uses, *inner]))),
        binds=tuple(sorted(binds)),
        acts=_acts(node),
        calls=tuple(dict.fromkeys(_calls(value))) if value is not None else (),
        literal=_literal(node),
        reads=any(map(is_reader, (*attributes, *(chain[0] for chain, _, _ in uses if chain)))),
    )


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
    raise AssertionError(f"{value!r} is no literal")


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


def _is_for_hints(test: ast.expr) -> bool:
    return chain_of(test)[-1:] == ("TYPE_CHECKING",)


def _is_guard(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare):
        return any(chain_of(side) == ("__name__",) for side in (test.left, *test.comparators))
    return _is_for_hints(test)
