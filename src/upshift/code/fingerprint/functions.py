"""What live functions reach."""

from __future__ import annotations

import os
import types
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from upshift.code.fingerprint.bindings import FROM_FILE, unknown
from upshift.code.fingerprint.bytecode import code_digest, code_names
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import UnitFacts
from upshift.code.fingerprint.holding import NO_DEFAULTS, cells_of, defaults_of, live_defaults
from upshift.code.fingerprint.names import resolve
from upshift.code.fingerprint.nodes import HIDES, Node
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PROJECT, UPSHIFT, Module
from upshift.code.fingerprint.values import is_code, is_module

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

_SKIPPED_ATTRIBUTES = ("__wrapped__", "__upshift_function__", "__upshift_options__")


def expand_function(walk: Walk, node: Node, function: FunctionType) -> None:
    """Fill in the node of a function."""
    module = walk.sources.of_namespace(function.__globals__)
    if module.kind == PROJECT:
        _project_function(walk, node, module, function)
    elif module.version:
        node.next.append(walk.package(module.version))
    own = function.__dict__
    if own and own.get("__wrapped__") is not None:
        _inside(walk, node, own["__wrapped__"])
    if module.kind != PROJECT and module.kind != UPSHIFT:
        _foreign_function(walk, node, function)


def _foreign_function(walk: Walk, node: Node, function: FunctionType) -> None:
    """A function of a library may hold functions of the project: a decorator made it."""
    registry = vars(function).get("registry")
    if isinstance(registry, types.MappingProxyType):  # singledispatch, whose closure caches what it saw
        for implementation in registry.values():
            _inside(walk, node, implementation)
        return
    for free, value in cells_of(function).items():
        _inside(walk, node, value, f"closure {free} of {walk.token(function)}")
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if callable(value):
            _inside(walk, node, value)


def _inside(walk: Walk, node: Node, value: Any, title: str = "") -> None:
    """Reach the code that a value holds; its data counts as well, if it has a title and can be told."""
    if is_code(value):
        node.next.append(walk.code(value))
        return
    digest, complete, _ = walk.digest(node, value)
    if complete and title:
        node.add(title, digest)


def _project_function(walk: Walk, node: Node, module: Module, function: FunctionType) -> None:
    node.next.append(walk.module(module))
    values = cells_of(function)
    file, units = units_of(walk, module, function)
    title = walk.title(module, units[0].qualname if units else function.__qualname__)
    if not units:
        _bytecode(walk, node, function, module, file)
    scope = Scope(module, values)
    for unit in units:
        walk.unit(node, scope, unit, title if len(units) == 1 else walk.title(module, unit.qualname))
    for free, value in values.items():
        held(walk, node, value, f"closure {free} of {title}")
    defaults(walk, node, function, units, title)
    for attribute, value in function.__dict__.items():
        if attribute not in _SKIPPED_ATTRIBUTES:
            held(walk, node, value, f"attribute {attribute} of {title}")
    if node.marks & HIDES and any(unit.made_reading for unit in units):
        unknown(node, title, FROM_FILE)


def units_of(walk: Walk, module: Module, function: FunctionType) -> tuple[str, list[UnitFacts]]:
    """Where a function's source is, and the source; none where it is not what was loaded."""
    code = function.__code__
    file = file_of_code(module, code)
    facts = walk.sources.facts(file)
    if facts is None:
        return file, []
    found = facts.functions_at(code.co_name, code.co_firstlineno)
    return file, found if found and walk.freshness.loaded(file, code) else []


def file_of_code(module: Module, code: CodeType) -> str:
    """The file that code of a module was written in."""
    file = code.co_filename
    if file != module.file and module.file and not os.path.isabs(file):
        return module.file if os.path.basename(module.file) == os.path.basename(file) else file
    return file


def _bytecode(walk: Walk, node: Node, function: FunctionType, module: Module, file: str) -> None:
    """The code itself, and everything that a name in it may mean."""
    code = function.__code__
    node.add(f"{walk.title(module, function.__qualname__)} as loaded", code_digest(code))
    names = code_names(code)
    scope = Scope(module, own=tuple(names))
    for name in sorted(names):
        value = function.__globals__.get(name)
        resolve(walk, node, scope, ((name,), None, False))
        if is_module(value):
            for attribute in sorted(names & vars(value).keys()):
                resolve(walk, node, scope, ((name, attribute), None, True))
    if walk.sources.facts(file) is not None:
        # The file says something else: a fresh interpreter would run that.
        node.next.append(walk.widened(module, "changed since it was imported"))


def defaults(walk: Walk, node: Node, function: FunctionType, units: list[UnitFacts], name: str) -> None:
    """Add the default values of a function's arguments, unless its source spells them out."""
    live = live_defaults(function)
    if live is None or {unit.defaults for unit in units} != {live}:
        for argument, value in defaults_of(function).items():
            held(walk, node, value, f"default {argument} of {name}")
        if units and live == NO_DEFAULTS:
            node.add(f"defaults of {name}", combined(["none"]))


def held(walk: Walk, node: Node, value: Any, title: str) -> None:
    """Add a value that a function holds: its data counts, and its code."""
    node.add(title, walk.digest(node, value).digest)
