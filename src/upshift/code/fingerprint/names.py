"""From a name in a piece of source to what it means.

::

    use (chain, origin) ──┬─ imported module ── attributes ──┐
                          ├─ closure cell                    ├── function, class   objects.py
                          ├─ name of the module ─────────────┤── constant          bindings.py
                          └─ built-in                        ├── package           its version
                                                             └── cannot be told    widening.py

Names are looked up in the live module, so that whatever rebinds them is seen; in its source where it
is not imported yet, or where the name has no value yet.
"""

from __future__ import annotations

import builtins
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from upshift.code.fingerprint import purity
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import BY_LITERAL, Chain, Import, Use
from upshift.code.fingerprint.nodes import ACTS, READS, READS_SOURCE, REFLECTS, Node
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PROJECT, UPSHIFT, Module
from upshift.code.fingerprint.values import is_code, is_module
from upshift.code.fingerprint.widening import is_loader, widening_of

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

ABSENT = combined(["absent"])
REFLECTION = frozenset(
    {
        "__doc__", "getdoc", "getsource", "getsourcelines", "getcomments", "findsource", "docopt", "help",
    }
)  # fmt: skip
"""Names by which code reads docstrings."""

SOURCE = frozenset({"getsource", "getsourcelines", "getsourcefile", "getcomments", "findsource"})
"""Names by which code reads source text."""

INERT = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, (BuiltinFunctionType, type))
    and not (purity.builtin_acts(name) or widening_of(value))
}
"""Built-in functions and classes that reach nothing else."""

_SILENT = frozenset(
    {"__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__", "__doc__", "__version__"}
)
SPECIAL = REFLECTION | SOURCE | _SILENT
"""Names that mean something by themselves, whatever they are bound to."""

_NOTHING: Any = object()


def resolve(walk: Walk, node: Node, scope: Scope, use: Use) -> None:
    """Add to a node one thing that its source refers to."""
    chain, origin, bare = use
    module = scope.module
    if origin == BY_LITERAL:
        value = scope.look_up(chain)
        if value is not None and not widening_of(value):
            resolve(walk, node, scope, (chain, None, False))
        return
    if origin is not None:
        imported(walk, node, walk.sources.absolute(module, *origin), chain, bare)
        return
    root, rest = chain[0], chain[1:]
    if root in scope.cells:
        value = scope.cells[root]
        if is_module(value):
            through(walk, node, value, rest, bare, module)
        return
    if root in REFLECTION:
        node.marks |= REFLECTS
    if root in SOURCE:
        node.marks |= READS_SOURCE
    value = _NOTHING if module.namespace is None else module.namespace.get(root, _NOTHING)
    if is_module(value):
        node.next.append(walk.binding(module, root))
        through(walk, node, value, rest, bare, module)
    elif root in _SILENT:
        return
    elif value is not _NOTHING:
        _bound(walk, node, module, root, value, bare and not rest)
    elif not _written(walk, node, module, root, rest, bare) and root not in scope.own:
        _builtin(walk, node, module, root)


def _bound(walk: Walk, node: Node, module: Module, name: str, value: Any, bare: bool) -> None:
    """A name of a live module that is bound to anything but a module."""
    node.next.append(walk.binding(module, name))
    _widen(walk, node, value, module)
    if bare and is_code(value):
        node.next.append(walk.docstring(value))


def _builtin(walk: Walk, node: Node, module: Module, name: str) -> None:
    value = getattr(builtins, name, _NOTHING)
    if value is _NOTHING:
        node.add(walk.title(module, name), ABSENT)
        return
    if purity.builtin_acts(name):
        node.marks |= ACTS
    if name in ("open", "input"):
        node.marks |= READS
    _widen(walk, node, value, module)
    if type(value) is FunctionType:
        node.next.append(walk.code(value))


def _widen(walk: Walk, node: Node, value: Any, module: Module) -> None:
    widening = widening_of(value)
    if widening is not None:
        node.marks |= ACTS
        if widening.project:
            node.next.append(walk.everything())
        if widening.module:
            node.next.append(walk.widened(module, widening.reason, deep=True))


# names in source


def _written(walk: Walk, node: Node, module: Module, name: str, rest: Chain, bare: bool) -> bool:
    """Add what the source of a module binds a name to; False if it does not bind it."""
    facts = walk.sources.facts(module.file)
    if facts is None:
        return False
    if name in facts.names:
        node.next.append(walk.written(module, name, rest, bare))
        return True
    if module.namespace is not None or not facts.stars or hasattr(builtins, name):
        return False
    for level, source in facts.stars:
        imported(walk, node, walk.sources.absolute(module, level, source), (name,), bare)
    return True


def expand_written(walk: Walk, node: Node, module: Module, name: str, rest: Chain, bare: bool) -> None:
    """Fill in the node of a name that has a meaning in source only."""
    facts = walk.sources.facts(module.file)
    assert facts is not None
    node.next.append(walk.module(module))
    scope = Scope(module)
    for what in facts.bound(name):
        if isinstance(what, Import):
            target = walk.sources.absolute(module, what.level, what.module)
            node.add(walk.title(module, name), combined([target, str(what.attribute)]))
            imported(walk, node, target, (*what.chain, *rest), bare)
        elif what.definition:
            unit = facts.unit(what.number)
            walk.unit(node, scope, unit, walk.title(module, unit.qualname))
        else:
            statement = facts.statements[what.number]
            node.add(f"constant {walk.title(module, name)}", statement.digest)
            walk.uses(node, scope, statement.uses)


# modules and their attributes


def imported(walk: Walk, node: Node, name: str, chain: Chain, bare: bool) -> None:
    """Add attributes of a module that source imports by name."""
    live = sys.modules.get(name)
    if isinstance(live, ModuleType):
        node.next.extend(walk.lineage(name))
        through(walk, node, live, chain, bare, None)
        return
    found = walk.sources.find(name)
    if found is None:
        node.add(f"module {name}", ABSENT)
    elif isinstance(found, str):
        _foreign(walk, node, (*name.split("."), *chain), found)
    else:
        node.next.extend(walk.lineage(name))
        _unimported(walk, node, found, chain, bare)


def _unimported(walk: Walk, node: Node, module: Module, chain: Chain, bare: bool) -> None:
    if not chain:
        if bare:
            node.next.append(walk.widened(module, "used as a value"))
    elif not _written(walk, node, module, chain[0], chain[1:], bare):
        _submodule(walk, node, module, chain, bare)


def _submodule(walk: Walk, node: Node, module: Module, chain: Chain, bare: bool) -> None:
    submodule = f"{module.name}.{chain[0]}"
    if walk.sources.find(submodule) is not None:
        imported(walk, node, submodule, chain[1:], bare)
    elif chain[0] not in _SILENT:
        node.next.append(walk.widened(module, chain[0]))


def through(
    walk: Walk, node: Node, live: ModuleType, chain: Chain, bare: bool, within: Module | None
) -> None:
    """Add what a chain of attributes leads to from a live module.

    Parameters
    ----------
    within
        The module whose code says so: what a dynamic look-up there may reach.
    """
    namespace = vars(live)
    owner = walk.sources.of_namespace(namespace)
    if owner.kind == UPSHIFT:
        return
    if owner.kind != PROJECT:
        _foreign_attributes(walk, node, live, chain, owner.version, within)
        if bare and not chain and is_loader(live):
            node.next.append(walk.everything())
        return
    node.next.append(walk.module(owner))
    if not chain:
        if bare:
            node.next.append(walk.widened(owner, "used as a value"))
        return
    name, rest = chain[0], chain[1:]
    value = namespace.get(name, _NOTHING)
    if value is _NOTHING:
        value = sys.modules.get(f"{live.__name__}.{name}", _NOTHING)
    if is_module(value):
        if name in namespace:
            node.next.append(walk.binding(owner, name))
        through(walk, node, value, rest, bare, within)
    elif name in _SILENT:
        return
    elif value is not _NOTHING:
        _bound(walk, node, owner, name, value, bare and not rest)
    elif not _written(walk, node, owner, name, rest, bare):
        _submodule(walk, node, owner, chain, bare)


def _foreign_attributes(
    walk: Walk, node: Node, live: ModuleType, chain: Chain, version: str, within: Module | None
) -> None:
    """A library's module, which may have been patched with something of the project."""
    _foreign(walk, node, (*live.__name__.split("."), *chain), version)
    value: Any = live
    for name in chain:
        if not is_module(value):
            return
        value = vars(value).get(name)
    if is_code(value) and not is_module(value):
        node.next.append(walk.code(value))
    _widen(walk, node, value, within or walk.nowhere)


def _foreign(walk: Walk, node: Node, path: Chain, version: str) -> None:
    if version:
        node.next.append(walk.package(version))
        if purity.package_acts(path):
            node.marks |= ACTS
    elif path[0] in sys.stdlib_module_names and purity.standard_acts(path):
        node.marks |= ACTS
