"""What live functions reach."""

from __future__ import annotations

import os
import types
from types import FunctionType
from typing import TYPE_CHECKING, Any

from upshift.authoring.fingerprint.bytecode import code_digest, code_names
from upshift.authoring.fingerprint.facts import UnitFacts
from upshift.authoring.fingerprint.holding import cells_of, defaults_of
from upshift.authoring.fingerprint.names import resolve
from upshift.authoring.fingerprint.nodes import Node
from upshift.authoring.fingerprint.scope import Scope
from upshift.authoring.fingerprint.sources import PROJECT, UPSHIFT, Module
from upshift.authoring.fingerprint.values import is_code, is_module

if TYPE_CHECKING:
    from upshift.authoring.fingerprint.walk import Walk

_SKIPPED_ATTRIBUTES = ("__wrapped__", "__upshift_options__")


def expand_function(walk: Walk, node: Node, function: FunctionType) -> None:
    """Fill in the node of a function."""
    kind, version = walk.sources.kind(function.__globals__)
    if kind == PROJECT:
        _project_function(walk, node, function)
    elif version:
        node.next.append(walk.package(version))
    wrapped = function.__dict__.get("__wrapped__")
    if wrapped is not None:
        _inside(walk, node, wrapped)
    if kind not in (PROJECT, UPSHIFT):
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
    digest, complete = walk.digest(node, value)
    if complete and title:
        node.add(title, digest)


def _project_function(walk: Walk, node: Node, function: FunctionType) -> None:
    module = walk.sources.of_namespace(function.__globals__)
    node.next.append(walk.module(module))
    values = cells_of(function)
    file, units = units_of(walk, module, function)
    if units:
        scope = Scope(module, values)
        for unit in units:
            walk.unit(node, scope, unit, walk.title(module, unit.qualname))
        name = units[0].qualname
    else:
        name = function.__qualname__
        _bytecode(walk, node, function, module, file)
    title = walk.title(module, name)
    for free, value in values.items():
        held(walk, node, value, f"closure {free} of {title}")
    if not units or any(unit.computed for unit in units):
        defaults(walk, node, function, title)
    for attribute, value in function.__dict__.items():
        if attribute not in _SKIPPED_ATTRIBUTES:
            held(walk, node, value, f"attribute {attribute} of {title}")


def units_of(walk: Walk, module: Module, function: FunctionType) -> tuple[str, list[UnitFacts]]:
    """Where a function's source is, and the source; none where it is not what was loaded."""
    code = function.__code__
    file = code.co_filename
    if file != module.file and module.file and not os.path.isabs(file):
        file = module.file if os.path.basename(module.file) == os.path.basename(file) else file
    facts = walk.sources.facts(file)
    if facts is None:
        return file, []
    found = facts.functions.get(f"{code.co_name}:{code.co_firstlineno}", ())
    if not found or not walk.freshness.loaded(file, code):
        return file, []
    return file, [facts.unit(number) for number in found]


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


def defaults(walk: Walk, node: Node, function: FunctionType, name: str) -> None:
    """Add the default values of a function's arguments."""
    for argument, value in defaults_of(function).items():
        held(walk, node, value, f"default {argument} of {name}")


def held(walk: Walk, node: Node, value: Any, title: str) -> None:
    """Add a value that a function holds: its data counts, and its code."""
    digest, _ = walk.digest(node, value)
    node.add(title, digest)
