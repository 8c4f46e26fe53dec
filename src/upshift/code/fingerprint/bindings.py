"""What a name of a live module is bound to: code, a name of another module, or a constant."""

from __future__ import annotations

import builtins
import os
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from upshift.code.fingerprint import purity
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import Bound, Facts, Import
from upshift.code.fingerprint.names import imported
from upshift.code.fingerprint.nodes import ACTS, HIDES, READS, SEEN, Node, marks_of, reachable
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PACKAGE, STANDARD, Module
from upshift.code.fingerprint.values import is_code, is_module

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

FROM_FILE = "made from a file, cannot be compared"


def expand_binding(walk: Walk, node: Node, module: Module, name: str) -> None:
    """Fill in the node of a name.

    Which object it is bound to counts by itself: two functions that swap their names are both still
    reached.
    """
    assert module.namespace is not None
    value = module.namespace[name]
    node.next.append(walk.module(module))
    if is_module(value):
        node.add(walk.title(module, name), walk.token(value))
        return
    if is_code(value):
        node.next.append(walk.code(value))
        if not is_home(module, name, value):
            node.add(walk.title(module, name), walk.token(value))
            if _acts(walk, value):
                node.marks |= ACTS
            made = _made_reading(walk, module, name)
            if made and marks_of(reachable([walk.code(value)], modules=False)) & HIDES:
                unknown(node, walk.title(module, name), FROM_FILE)
        return
    home = _home(walk, module, name, value)
    if home is not None:
        node.add(walk.title(module, name), f"{home[0].name}.{home[1]}")
        node.next.append(walk.binding(*home))
        return
    _constant(walk, node, module, name, value)


def is_home(module: Module, name: str, value: Any) -> bool:
    """Whether a function or class was made where it is bound, under this name."""
    if value.__qualname__ != name:
        return False
    if type(value) is FunctionType:
        return value.__globals__ is module.namespace
    owner = sys.modules.get(value.__module__)
    return owner is not None and vars(owner) is module.namespace


def _acts(walk: Walk, value: Any) -> bool:
    """Whether calling a function or class of a library may act on something."""
    owner = sys.modules.get(getattr(value, "__module__", None) or "")
    if owner is None:
        return False
    kind = walk.sources.of_namespace(vars(owner)).kind
    if kind not in (PACKAGE, STANDARD):
        return False
    path = (owner.__name__.partition(".")[0], *value.__qualname__.split("."))
    if kind == PACKAGE:
        return purity.package_acts(path)
    return owner is not builtins and purity.standard_acts(path)


def _home(walk: Walk, module: Module, name: str, value: Any) -> tuple[Module, str] | None:
    """The live module of the project that a constant was imported from, and its name there."""
    facts = walk.sources.facts(module.file)
    if facts is None:
        return None
    bound = facts.bound(name)
    sources = [Import(level, source, name) for level, source in facts.stars]
    if bound:
        sources = [what for what in bound if isinstance(what, Import) and what.attribute]
        if len(sources) < len(bound):
            return None
    for source in sources:
        found = walk.sources.find(walk.sources.absolute(module, source.level, source.module))
        attribute = source.attribute or name
        if not isinstance(found, Module) or found.namespace is None or found is module:
            continue
        if attribute in found.namespace and found.namespace[attribute] is value:
            return found, attribute
    return None


def _constant(walk: Walk, node: Node, module: Module, name: str, value: Any) -> None:
    digest, complete, hides = walk.digest(node, value)
    if not hides:
        node.marks |= SEEN
    title = f"constant {walk.title(module, name)}"
    if complete and not walk.freshness.doubtful(module.file):
        node.add(title, digest)
        return
    facts = walk.sources.facts(module.file)
    if facts is not None and name in facts.names:
        written = facts.bound(name)
        if complete and _is_literal(facts, written, digest):
            node.add(title, digest)
            return
        if hides and _made_reading(walk, module, name):
            unknown(node, title, FROM_FILE)
        parts = _as_written(walk, node, module, facts, name)
        node.add(title, combined([digest, *parts]) if parts else digest)
    elif complete:
        node.add(title, digest)
    else:
        # Nothing says what it is, so it is never the same as in another process.
        unknown(node, title, "cannot be compared")


def unknown(node: Node, title: str, reason: str) -> None:
    """Add what is never the same as in another process."""
    node.add(f"{title} ({reason})", combined([os.urandom(16).hex()]))


def _made_reading(walk: Walk, module: Module, name: str) -> bool:
    """Whether what is bound to a name may be made of what a file holds."""
    facts = walk.sources.facts(module.file)
    bound = () if facts is None else facts.bound(name)
    numbers = [what.number for what in bound if isinstance(what, Bound) and not what.definition]
    if facts is None or not numbers:
        return False
    making = Node(_expand_nothing, walk)
    for statement in map(facts.statements.__getitem__, numbers):
        if statement.reads:
            return True
        walk.uses(making, Scope(module), statement.uses)
    return bool(marks_of(reachable([making], modules=False, making=True)) & READS)


def _expand_nothing(walk: Walk, node: Node) -> None:
    """Fill in a node that has been filled in."""


def _is_literal(facts: Facts, written: tuple[Import | Bound, ...], digest: str) -> bool:
    """Whether the one statement that binds a constant spells out this very value."""
    only = written[0]
    if len(written) > 1 or isinstance(only, Import) or only.definition:
        return False
    return facts.statements[only.number].literal == digest


def _as_written(walk: Walk, node: Node, module: Module, facts: Facts, name: str) -> list[str]:
    """The statements that bind a constant."""
    parts: list[str] = []
    scope = Scope(module)
    for what in facts.bound(name):
        if isinstance(what, Import):
            target = walk.sources.absolute(module, what.level, what.module)
            parts.append(f"{target} {what.attribute}")
            imported(walk, node, target, what.chain, bare=False)
        elif what.definition:
            unit = facts.unit(what.number)
            walk.unit(node, scope, unit, walk.title(module, unit.qualname))
        else:
            statement = facts.statements[what.number]
            parts.append(statement.digest)
            walk.uses(node, scope, statement.uses)
    return parts
