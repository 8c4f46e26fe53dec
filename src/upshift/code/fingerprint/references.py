"""What a piece of source refers to, by scope: the names that it takes from outside itself.

A use is ``(chain, origin, bare)``. The chain is a name and the attributes taken from it,
``("helpers", "scale")``. The origin is None where the name comes from the surrounding scope, or
``(level, module)`` where an import inside the function brings it; the chain then starts at that
module. A use is bare where its value is handed on, rather than called or looked into: whoever gets a
module as a value may take anything from it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from upshift.code.fingerprint.facts import (
    BY_LITERAL,
    CHANGES_GIVEN,
    FRAMES,
    READS,
    READS_SOURCE,
    REFLECTS,
    SUBCLASSES,
    Chain,
    Use,
)

_IMPORTERS = frozenset({"import_module", "__import__", "find_spec"})
_VARIABLE = re.compile(r"@([^\W\d]\w*)")
_IN_TEXT = {"query": _VARIABLE, "eval": re.compile(r"([^\W\d]\w*)")}
"""Methods that evaluate a text, and the names in it that may be those of Python variables."""
_OWN = frozenset({"self", "cls"})
_REFLECTION = frozenset(
    {
        "__doc__", "getdoc", "getsource", "getsourcelines", "getcomments", "findsource", "docopt", "help",
    }
)  # fmt: skip
_SOURCE = frozenset({"getsource", "getsourcelines", "getsourcefile", "getcomments", "findsource"})
_FRAMES = frozenset(
    {
        "__globals__", "__builtins__", "f_globals", "f_builtins", "f_locals", "f_back", "tb_frame",
        "gi_frame", "cr_frame", "ag_frame", "load_module", "exec_module", "find_spec", "find_module",
        "find_loader",
    }
)  # fmt: skip
_READERS = frozenset(
    {
        "open", "input", "read", "readline", "readlines", "load", "loadtxt", "genfromtxt", "fromfile",
        "memmap", "get_data",
    }
)  # fmt: skip
"""Names of what reads files, with those that begin with ``read_``."""
_OPERATORS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
_REFER_TO_NOTHING = frozenset(
    [
        *(str, bytes, int, bool, float, complex, type(None), type(...)),
        *(ast.Constant, ast.Pass, ast.Break, ast.Continue),
        *(kind for family in _OPERATORS for kind in family.__subclasses__()),
    ]
)
"""What can be inside a node, and has neither names nor nodes inside it."""


class Decorator(NamedTuple):
    """A decorator: its expression, the name that it comes from, and what it refers to."""

    node: ast.expr
    chain: Chain
    uses: list[Use]


class Definition(NamedTuple):
    """A function, lambda or class, and what it refers to."""

    node: ast.AST
    qualname: str
    line: int
    uses: list[Use]
    decorators: list[Decorator]
    assigned: frozenset[str]
    changed: frozenset[str]
    flags: int


class _Scope:
    """Names of one function, class or module, while it is read."""

    def __init__(self, prefix: str, hides: bool) -> None:
        self.prefix = prefix
        self.hides = hides
        self.bound: set[str] = set()
        self.shared: set[str] = set()
        self.imports: dict[str, tuple[tuple[int, str], Chain]] = {}
        self.uses: list[Use] = []
        self.decorators: list[Decorator] = []
        self.attributes: set[str] = set()
        self.arguments: set[str] = set()
        self.changed: set[str] = set()
        """Names of which a part is changed; an empty one for what has no name."""

    def changed_outside(self) -> set[str]:
        """The names that are changed here and belong to another scope."""
        return self.changed - (self.bound - self.shared) - _OWN if self.hides else self.changed

    def free(self, uses: list[Use]) -> list[Use]:
        """The uses of names that the scope does not bind itself."""
        if not self.hides:
            return uses
        hidden = self.bound - self.shared
        free: list[Use] = []
        for use in uses:
            chain, origin, bare = use
            if origin is not None or not chain or chain[0] in self.shared:
                free.append(use)
            elif chain[0] in self.imports:
                source, attributes = self.imports[chain[0]]
                free.append((attributes + chain[1:], source, bare))
            elif chain[0] not in hidden:
                free.append(use)
        return free


class Reader:
    """Reads a module statement by statement."""

    def __init__(self, tree: ast.AST) -> None:
        self.definitions: list[Definition] = []
        self._scope = _Scope("", hides=False)
        self._tree = tree
        self._in_texts: frozenset[str] | None = None

    def statement(self, node: ast.AST) -> tuple[list[Use], frozenset[str], list[Decorator], int]:
        """Uses, names bound, decorators and flags of what stands at the top level."""
        scope = self._scope = _Scope("", hides=False)
        self.visit(node)
        self._in_text(node)
        uses = unique(scope.uses)
        return uses, frozenset(scope.bound), scope.decorators, _flags(uses, scope)

    def visit(self, node: ast.AST) -> None:
        _VISITORS[node.__class__](self, node)

    def _children(self, node: ast.AST) -> None:
        values = node.__dict__
        for field in node._fields:
            value: Any = values.get(field)
            kind = value.__class__
            if kind is list:
                self._all(value)
            elif kind not in _REFER_TO_NOTHING:
                _VISITORS[kind](self, value)

    def _all(self, nodes: list[Any]) -> None:
        for node in nodes:
            kind = node.__class__
            if kind not in _REFER_TO_NOTHING:
                _VISITORS[kind](self, node)

    # names and attributes

    def _use(self, chain: Chain, bare: bool) -> None:
        self._scope.uses.append((chain, None, bare))

    def _Name(self, node: ast.Name) -> None:
        if node.ctx.__class__ is ast.Load:
            self._scope.uses.append(((node.id,), None, True))
            return
        self._scope.bound.add(node.id)
        if node.id in self._scope.shared:
            self._use((node.id,), bare=False)

    def _Attribute(self, node: ast.Attribute) -> None:
        self._change(node)
        self._reach(node, bare=True)

    def _Subscript(self, node: ast.Subscript) -> None:
        self._change(node)
        self._children(node)

    def _change(self, node: ast.Attribute | ast.Subscript) -> None:
        """Note whose part is assigned or deleted."""
        if node.ctx.__class__ is ast.Load:
            return
        owner: ast.expr = node
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            owner = owner.value
        self._scope.changed.add(owner.id if isinstance(owner, ast.Name) else "")

    def _reach(self, node: ast.AST, bare: bool) -> None:
        """Visit an expression that is looked into where ``bare`` is false."""
        attributes: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            attributes.append(inner.attr)
            inner = inner.value
        self._scope.attributes.update(attributes)
        if isinstance(inner, ast.Name) and (attributes or isinstance(inner.ctx, ast.Load)):
            self._use((inner.id, *reversed(attributes)), bare)
        elif not (
            isinstance(inner, ast.Call) and self._import_call(inner, tuple(reversed(attributes)), bare)
        ):
            self.visit(inner)

    def _Call(self, node: ast.Call) -> None:
        if self._import_call(node, (), True):
            return
        name = chain_of(node.func)
        if name and name[-1] == "getattr" and len(node.args) >= 2:
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                looked_into = ast.Attribute(node.args[0], attribute.value, ast.Load())
                self._reach(looked_into, bare=True)
                self._all(node.args[2:])
                return
        self._reach(node.func, bare=False)
        self._all(node.args)
        self._all(node.keywords)

    def _import_call(self, node: ast.Call, attributes: Chain, bare: bool) -> bool:
        """Read ``import_module("helpers")``, and what is taken from it; False if it is no such call."""
        target = node.args[0] if len(node.args) == 1 else None
        if not isinstance(target, ast.Constant) or not isinstance(target.value, str):
            return False
        name = chain_of(node.func)[-1:]
        if not name or name[0] not in _IMPORTERS:
            return False
        module = target.value.lstrip(".")
        origin = (len(target.value) - len(module), module)
        self._scope.uses.append((chain_of(node.func), BY_LITERAL, False))
        self._scope.uses.append(((), origin, False))
        if name[0] == "__import__":  # it gives the top package
            origin = (0, module.partition(".")[0])
        self._scope.uses.append((attributes, origin, bare))
        self._all(node.keywords)
        return True

    # imports inside a function or class

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name if alias.asname else alias.name.partition(".")[0]
            self._bind_import(alias.asname or top, (0, top), ())
            self._scope.uses.append(((), (0, alias.name), False))

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        source = (node.level, node.module or "")
        self._scope.uses.append(((), source, False))
        for alias in node.names:
            self._scope.uses.append(((alias.name,), source, False))  # it may be a module
            self._bind_import(alias.asname or alias.name, source, (alias.name,))

    def _bind_import(self, name: str, source: tuple[int, str], attributes: Chain) -> None:
        scope = self._scope
        scope.bound.add(name)
        if scope.hides and name not in scope.shared:
            scope.imports[name] = (source, attributes)
        else:
            scope.uses.append((attributes, source, True))

    # what binds names besides assignment

    def _Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self._scope.shared.update(node.names)
        for name in node.names:
            self._use((name,), bare=False)

    _Nonlocal = _Global

    def _ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._scope.bound.add(node.name)
        self._children(node)

    def _MatchAs(self, node: Any) -> None:
        if node.name:
            self._scope.bound.add(node.name)
        self._children(node)

    _MatchStar = _MatchAs

    def _MatchMapping(self, node: Any) -> None:
        if node.rest:
            self._scope.bound.add(node.rest)
        self._children(node)

    # scopes

    def _nested(self, node: Any) -> None:
        self._enter(self._scope.prefix, True, lambda: self._children(node))

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _nested

    def _enter(self, prefix: str, hides: bool, read: Any) -> _Scope:
        outer = self._scope
        inner = self._scope = _Scope(prefix, hides)
        read()
        self._scope = outer
        outer.changed |= inner.changed_outside()
        outer.uses.extend(inner.free(inner.uses))
        for decorator in inner.decorators:
            outer.decorators.append(decorator._replace(uses=inner.free(decorator.uses)))
        outer.attributes |= inner.attributes
        return inner

    def _Lambda(self, node: ast.Lambda) -> None:
        self._function(node, "<lambda>", [], lambda: self.visit(node.body))

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.bound.add(node.name)
        if node.name in self._scope.shared:
            self._use((node.name,), bare=False)
        self._function(node, node.name, node.decorator_list, lambda: self._all(node.body))

    _AsyncFunctionDef = _FunctionDef

    def _function(self, node: Any, name: str, decorators: list[ast.expr], read_body: Any) -> None:
        outer = self._scope
        first_use, first_decorator = len(outer.uses), len(outer.decorators)
        line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        self._decorators(decorators)
        defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        self._all(defaults)
        arguments = _arguments(node.args)
        for annotation in [*(a.annotation for a in arguments), getattr(node, "returns", None)]:
            self._annotation(annotation)

        def read() -> None:
            self._scope.arguments.update(a.arg for a in arguments)
            self._scope.bound |= self._scope.arguments
            self._type_parameters(node)
            read_body()
            self._in_text(node)

        qualname = outer.prefix + name
        inner = self._enter(qualname + ".<locals>.", True, read)
        uses = unique(outer.uses[first_use:])
        self.definitions.append(
            Definition(
                node=node,
                qualname=qualname,
                line=line,
                uses=uses,
                decorators=outer.decorators[first_decorator:],
                assigned=frozenset(),
                changed=frozenset(inner.changed_outside()),
                flags=_flags(uses, inner),
            )
        )

    def _in_text(self, node: ast.AST) -> None:
        """Names in texts that a library evaluates in the scope of its caller."""
        methods = _IN_TEXT.keys() & self._scope.attributes
        if methods and self._in_texts is None:
            self._in_texts = frozenset(
                name for text in _texts(self._tree) for name in _VARIABLE.findall(text)
            )
        for method in methods:
            here = (name for text in _texts(node) for name in _IN_TEXT[method].findall(text))
            for name in sorted({*here, *(self._in_texts or ())}):
                self._use((name,), bare=True)

    def _ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._scope
        outer.bound.add(node.name)
        first_use, first_decorator = len(outer.uses), len(outer.decorators)
        self._decorators(node.decorator_list)
        for base in [*node.bases, *(keyword.value for keyword in node.keywords)]:
            self._reach(base, bare=False)

        def read() -> None:
            self._type_parameters(node)
            self._all(node.body)

        qualname = outer.prefix + node.name
        # Methods do not see what the class body binds, so the scope hides nothing.
        inner = self._enter(qualname + ".", False, read)
        uses = unique(outer.uses[first_use:])
        self.definitions.append(
            Definition(
                node=node,
                qualname=qualname,
                line=node.lineno,
                uses=uses,
                decorators=outer.decorators[first_decorator:],
                assigned=frozenset(inner.bound),
                changed=frozenset(inner.changed_outside()),
                flags=_flags(uses, inner),
            )
        )

    def _type_parameters(self, node: Any) -> None:
        for parameter in getattr(node, "type_params", ()):
            self._scope.bound.add(parameter.name)
            self._children(parameter)

    def _decorators(self, decorators: list[ast.expr]) -> None:
        scope = self._scope
        for decorator in decorators:
            outer, scope.uses = scope.uses, []
            self._reach(decorator, bare=False)
            uses, scope.uses = scope.uses, outer
            scope.decorators.append(Decorator(decorator, chain_of(called(decorator)), unique(uses)))

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def _annotation(self, annotation: ast.expr | None) -> None:
        if annotation is None:
            return
        for part in ast.walk(annotation):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                try:
                    self._annotation(ast.parse(part.value, mode="eval").body)
                except SyntaxError:
                    continue  # Literal["a b"], or a text for Annotated
        self._reach(annotation, bare=False)


class _Visitors(dict[type, Callable[[Reader, Any], None]]):
    """What reads each kind of node."""

    def __missing__(self, kind: type) -> Callable[[Reader, Any], None]:
        visitor = self[kind] = getattr(Reader, f"_{kind.__name__}", Reader._children)
        return visitor


_VISITORS = _Visitors()


def unique(uses: list[Use]) -> list[Use]:
    """The uses, each once, in order of first appearance."""
    return list(dict.fromkeys(uses))


def chain_of(node: ast.AST) -> Chain:
    """The name and attributes that an expression is; empty where it is something else."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return (node.id, *reversed(attributes)) if isinstance(node, ast.Name) else ()


def called(node: ast.AST) -> ast.AST:
    """What an expression calls first: ``a.b`` of ``a.b(1)(2)``; the expression itself if no call."""
    while isinstance(node, ast.Call):
        node = node.func
    return node


def _texts(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    optional = [arguments.vararg, arguments.kwarg]
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return named + [argument for argument in optional if argument is not None]


def _flags(uses: Iterable[Use], scope: _Scope) -> int:
    names = scope.attributes.union(chain[0] for chain, origin, _ in uses if chain and origin is None)
    flags = 0
    if not _ANY_SPECIAL.isdisjoint(names):
        for flag, special in _SPECIAL:
            if not special.isdisjoint(names):
                flags |= flag
    if any(name.startswith("read_") for name in names):
        flags |= READS
    return flags if scope.arguments.isdisjoint(scope.changed - _OWN) else flags | CHANGES_GIVEN


_SPECIAL = (
    (READS, _READERS),
    (REFLECTS, _REFLECTION),
    (READS_SOURCE, _SOURCE),
    (SUBCLASSES, frozenset({"__subclasses__"})),
    (FRAMES, _FRAMES),
)
_ANY_SPECIAL = frozenset().union(*(special for _, special in _SPECIAL))
