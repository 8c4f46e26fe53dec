"""The reached code of a project, explored on demand: the nodes, and what a piece of source adds to one."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from pathlib import Path
from sys import modules
from types import BuiltinFunctionType, FunctionType
from typing import Any

from upshift.code.fingerprint.bindings import expand_binding, is_home
from upshift.code.fingerprint.classes import expand_class
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import BARE, Chain, UnitFacts, Word, root_of, use_of
from upshift.code.fingerprint.freshness import Freshness
from upshift.code.fingerprint.functions import expand_function
from upshift.code.fingerprint.identity import token
from upshift.code.fingerprint.names import (
    INERT,
    REFLECTION,
    SOURCE,
    SPECIAL,
    expand_written,
    resolve,
    through,
)
from upshift.code.fingerprint.nodes import (
    HIDES,
    MODULE,
    READS,
    READS_SOURCE,
    REFLECTS,
    SUBCLASSES,
    Expand,
    Node,
)
from upshift.code.fingerprint.requirements import required
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, Module, Sources
from upshift.code.fingerprint.tangles import Tangle
from upshift.code.fingerprint.toplevel import expand_module, is_upshift
from upshift.code.fingerprint.values import Seen, is_code, is_module, value_digest
from upshift.code.fingerprint.widening import FRAMES, expand_project, expand_widened, widening_of

_NOTHING: Any = object()


class Walk:
    """Nodes, each made once, and the sources behind them.

    Parameters
    ----------
    project
        Folder of the project.
    """

    def __init__(self, project: Path) -> None:
        self.project = project
        self.sources = Sources(project)
        self.freshness = Freshness(self.sources)
        self.nowhere = Module("?")
        """What stands for code that no module is known of."""
        self.classes: dict[int, type] = {}
        """Every class that was reached, by ``id`` of its node."""
        self._inert = Node(_expand_nothing, self).expanded()
        self._code: dict[int, tuple[Node, object]] = {}
        self._nodes: dict[tuple[object, ...], Node] = {}
        self._lineages: dict[str, list[Node]] = {}
        self._tokens: dict[int, tuple[str, object]] = {}
        self._tangle = Tangle(self.is_own)

    # nodes

    def code(self, value: Any) -> Node:
        """The node of a live function, class or module."""
        known = self._code.get(id(value))
        if known is None:
            known = self._code[id(value)] = (self._new_code(value), value)
        return known[0]

    def _new_code(self, value: Any) -> Node:
        if type(value) is FunctionType:
            return Node(expand_function, self, value)
        if is_module(value):
            return Node(through, self, value, (), True, None)
        node = Node(expand_class, self, value)
        self.classes[id(node)] = value
        return node

    def value(self, value: Any, name: str) -> Node:
        """The node of a live object that is no function, class or module: by content."""
        return Node(_expand_value, self, value, name)

    def docstring(self, value: Any) -> Node:
        """The node of the docstring of a function or class that is handed on.

        Whoever gets it may read the docstring, as tools for agents do.
        """
        return self._node(self._nodes, ("docstring", id(value)), _expand_docstring, value)

    def module(self, module: Module) -> Node:
        """The node of what importing a module does."""
        if module.node is None:
            module.node = Node(expand_module, self, module, marks=MODULE)
        return module.node

    def lineage(self, name: str) -> list[Node]:
        """The nodes of a module and of the packages that it is in, as far as they are the project's."""
        known = self._lineages.get(name)
        if known is None:
            known = list(self.lineage(name.rpartition(".")[0])) if name else []
            found = self.sources.find(name) if name else None
            if isinstance(found, Module):
                known.append(self.module(found))
            self._lineages[name] = known
        return known

    def binding(self, module: Module, name: str) -> Node:
        """The node of a name that a live module binds."""
        node = module.bindings.get(name)
        if node is None:
            node = module.bindings[name] = Node(expand_binding, self, module, name)
        return node

    def written(self, module: Module, name: str, rest: Chain, bare: bool) -> Node:
        """The node of a name that has a meaning in source only."""
        key = ("written", name, rest, bare)
        return self._node(module.nodes, key, expand_written, module, name, rest, bare)

    def widened(self, module: Module, reason: str, *, deep: bool = False) -> Node:
        """The node of everything in a module."""
        key = ("widened", reason, deep)
        return self._node(module.nodes, key, expand_widened, module, reason, deep)

    def everything(self) -> Node:
        """The node of every module of the project, one for all that may find code by its name."""
        return self._node(self._nodes, ("project",), expand_project)

    def package(self, version: str) -> Node:
        """The node of an installed distribution, ``"numpy 2.1.0"``, or of several, and what they require."""
        return self._node(self._nodes, ("package", version), _expand_package, version)

    def _node(
        self, nodes: dict[tuple[object, ...], Node], key: tuple[object, ...], expand: Expand, *given: Any
    ) -> Node:
        node = nodes.get(key)
        if node is None:
            node = nodes[key] = Node(expand, self, *given)
        return node

    # source

    def unit(self, node: Node, scope: Scope, unit: UnitFacts, name: str) -> None:
        """Add a unit of source to a node: its digest, and all that it refers to."""
        _, digest, documented, uses, decorators, attributes, _, _, reads, _ = unit
        if reads:
            node.marks |= READS
        documented = documented if documented != digest else ""
        if decorators:
            counting = [d for d in decorators if not self._is_upshift(scope, d.chain)]
            digest = combined([digest, *(decorator.digest for decorator in counting)]) if counting else digest
            for decorator in counting:
                self.uses(node, scope, decorator.uses)
                if documented and self._is_foreign(scope, decorator.chain):
                    node.add(f"docstring of {name}", documented)
        node.add(name, digest, documented)
        if attributes:
            if not REFLECTION.isdisjoint(attributes):
                node.marks |= REFLECTS
            if not SOURCE.isdisjoint(attributes):
                node.marks |= READS_SOURCE
            if "__subclasses__" in attributes:
                node.marks |= SUBCLASSES
            if not FRAMES.isdisjoint(attributes):
                node.next.append(self.everything())
        self.uses(node, scope, uses)

    def uses(self, node: Node, scope: Scope, words: Collection[Word]) -> None:
        """Add to a node what source refers to."""
        module = scope.module
        if scope.cells or scope.own:
            own = {*scope.cells, *scope.own}
            others = []
            for word in words:
                if root_of(word) in own:
                    resolve(self, node, scope, use_of(word))
                else:
                    others.append(word)
            words = others
        known = module.uses
        for word in words:
            meant = known.get(word)
            if meant is None:
                meant = known[word] = self._meant(module, word)
            node.next.append(meant)

    def _meant(self, module: Module, word: Word) -> Node:
        """The node of what source refers to, the same for all units of a module."""
        name = word.removeprefix(BARE)
        if module.namespace is not None and name.isidentifier():
            # Most words are these, and need no node of their own.
            value: Any = module.namespace.get(name, _NOTHING)
            if value is _NOTHING:
                if self._is_inert(module, name):
                    return self._inert
            elif name not in SPECIAL:
                followed, bare = is_code(value), name != word
                if not followed or not (bare or is_module(value)):
                    if followed and is_home(module, name, value):
                        return self.code(value)
                    if not widening_of(value):
                        return self.binding(module, name)
        return Node(resolve, self, Scope(module), use_of(word))

    def _is_inert(self, module: Module, name: str) -> bool:
        """Whether a name that has no value in a module is a plain built-in."""
        facts = self.sources.facts(module.file)
        if facts is None or name in facts.names or name not in INERT:
            return False
        return vars(builtins).get(name) is INERT[name]

    def _is_upshift(self, scope: Scope, chain: Chain) -> bool:
        """Whether a decorator is one of Upshift's own."""
        return bool(chain) and is_upshift(scope.look_up(chain))

    def _is_foreign(self, scope: Scope, chain: Chain) -> bool:
        """Whether a decorator comes from a library, which may read the docstring."""
        value = scope.look_up(chain) if chain else None
        owner = modules.get((value if is_code(value) else type(value)).__module__ or "")
        return owner is not None and self.sources.of_namespace(vars(owner)).kind == PACKAGE

    # values and names

    def digest(self, node: Node, value: Any) -> Seen:
        """What a value looks like; its code is added to the node."""

        def follow(code: Any) -> str:
            widening = widening_of(code)
            if widening is not None:
                node.next.append(self.everything())
            if type(code) is not BuiltinFunctionType:
                node.next.append(self.code(code))
            return self.token(code)

        seen = value_digest(value, follow, self.is_own, self._tangle)
        if seen.hides:
            node.marks |= HIDES
        return seen

    def is_own(self, function: FunctionType) -> bool:
        """Whether a function was written in the project."""
        return self.sources.of_namespace(function.__globals__).kind == PROJECT

    def token(self, value: Any) -> str:
        """What a function, class or module is called; see :mod:`identity`."""
        known = self._tokens.get(id(value))
        if known is None:
            known = self._tokens[id(value)] = (token(self, value), value)
        return known[0]

    def title(self, module: Module, name: str) -> str:
        """What a name of a module is called in a fingerprint; :mod:`upshift.engine.reasons` reads it."""
        return f"{module.name}.{name} ({module.shown})"


def _expand_nothing(walk: Walk, node: Node) -> None:
    """Fill in the node of what reaches nothing."""


def _expand_value(walk: Walk, node: Node, value: Any, name: str) -> None:
    node.add(name, walk.digest(node, value).digest)


def _expand_docstring(walk: Walk, node: Node, value: Any) -> None:
    for name, digest, documented in walk.code(value).expanded().entries:
        if documented:
            node.add(f"docstring of {name}", combined([digest, documented]))


def _expand_package(walk: Walk, node: Node, version: str) -> None:
    for distribution in version.split(", "):
        name, _, number = distribution.partition(" ")
        node.add(f"package {name}", number)
        for below, number in required(name).items():
            node.add(f"required package {below}", number)
