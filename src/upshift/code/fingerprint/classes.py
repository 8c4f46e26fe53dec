"""What live classes reach: their source, bases, attributes and fields."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from upshift.code.fingerprint.bindings import FROM_FILE, unknown
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import Facts, UnitFacts
from upshift.code.fingerprint.functions import defaults, file_of_code, held, units_of
from upshift.code.fingerprint.holding import cells_of, live_defaults
from upshift.code.fingerprint.identity import DESCRIPTORS, SKIPPED_ATTRIBUTES, is_by_name, is_derived
from upshift.code.fingerprint.nodes import HIDES, Node
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, UPSHIFT, Module

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

_IMMUTABLE = 1 << 8
"""``Py_TPFLAGS_IMMUTABLETYPE``: written in C; nothing of the project can be in it."""

_FIELD_PARTS = (
    "name",
    "default",
    "default_factory",
    "factory",
    "validator",
    "converter",
    "on_setattr",
    "metadata",
)


def expand_class(walk: Walk, node: Node, cls: type) -> None:
    """Fill in the node of a class."""
    owner = sys.modules.get(cls.__module__) if isinstance(cls.__module__, str) else None
    namespace = _globals_of(cls) if owner is None else vars(owner)
    module = walk.sources.of_namespace(namespace) if namespace else Module(str(cls.__module__))
    if module.kind == UPSHIFT or (owner is not None and cls.__module__ == "builtins"):
        return
    if module.version:
        node.next.append(walk.package(module.version))
    if cls.__flags__ & _IMMUTABLE:
        if module.kind == PROJECT and owner is not None:
            node.next.append(walk.module(module))
        return
    if module.kind != PROJECT:
        if is_by_name(cls):
            return
        module = Module(str(cls.__module__))  # made by a call, such as make_dataclass
    elif namespace:
        node.next.append(walk.module(module))
    title = walk.title(module, cls.__qualname__)
    file = file_of(cls, module)
    facts = walk.sources.facts(file)
    units = class_units(facts, cls.__qualname__)
    for unit in units:
        walk.unit(node, Scope(module, _class_cells(cls, facts), unit.assigned), unit, title)
    node.next.extend(walk.code(base) for base in (*cls.__bases__, type(cls)) if base is not object)
    if any(base is not object and _is_foreign(walk, base) for base in cls.__bases__):
        node.next.append(walk.docstring(cls))
    _attributes(walk, node, cls, module, units, title)
    _fields(walk, node, cls, title)
    if node.marks & HIDES and any(unit.made_reading for unit in units):
        unknown(node, title, FROM_FILE)


def _globals_of(cls: type) -> dict[str, Any]:
    """The globals of a class whose module nobody knows, as its methods have them."""
    functions = _functions(cls)
    return functions[0].__globals__ if functions else {}


def _is_foreign(walk: Walk, base: type) -> bool:
    owner = sys.modules.get(base.__module__)
    return owner is not None and walk.sources.of_namespace(vars(owner)).kind == PACKAGE


def file_of(cls: type, module: Module) -> str | None:
    """The file that a class is written in; a cell of a notebook, for a module without a file."""
    if module.file is not None:
        return module.file
    functions = _functions(cls)
    return functions[0].__code__.co_filename if functions else None


def class_units(facts: Facts | None, qualname: str) -> list[UnitFacts]:
    return [] if facts is None else [facts.unit(number) for number in facts.classes.get(qualname, ())]


def _functions(cls: type) -> list[FunctionType]:
    found: list[FunctionType] = []
    for value in vars(cls).values():
        function = value if type(value) is FunctionType else getattr(value, "__func__", None)
        if type(function) is FunctionType:
            found.append(function)
    return found


def _class_cells(cls: type, facts: Facts | None) -> dict[str, Any]:
    """The variables of the function that a class was made in, as far as its methods hold them.

    Those of a wrapper that a decorator has put in place of a method are other variables.
    """
    cells: dict[str, Any] = {}
    if facts is None or "<locals>" not in cls.__qualname__:
        return cells
    for function in _functions(cls):
        code = function.__code__
        if function.__closure__ and any(
            unit.qualname.startswith(f"{cls.__qualname__}.")
            for unit in facts.functions_at(code.co_name, code.co_firstlineno)
        ):
            cells.update(cells_of(function))
    cells.pop("__class__", None)
    return cells


def _attributes(
    walk: Walk, node: Node, cls: type, module: Module, units: list[UnitFacts], title: str
) -> None:
    assigned = {name for unit in units for name in unit.assigned}
    parts: list[str] = []
    for name, value in sorted(vars(cls).items()):
        if name in SKIPPED_ATTRIBUTES:
            continue
        if type(value) is FunctionType:
            if not _is_in_class(walk, node, name, value, cls, module):
                node.next.append(walk.code(value))
                parts.append(f"{name} {walk.token(value)}")
        elif type(value) not in DESCRIPTORS and (name in assigned or not is_derived(name, value)):
            parts.append(f"{name} {walk.digest(node, value).digest}")
    if parts:
        node.add(f"attributes of {title}", combined(parts))


def _is_in_class(
    walk: Walk, node: Node, name: str, function: FunctionType, cls: type, module: Module
) -> bool:
    """Whether the source of the class, which is in this module, says all about a method."""
    if function.__module__ != cls.__module__ or function.__dict__:
        return False
    qualname = f"{cls.__qualname__}.{name}"
    if function.__globals__ is not module.namespace:
        module = walk.sources.of_namespace(function.__globals__)
    if not function.__closure__ and _is_plain(walk, module, name, qualname, function):
        return True
    _, units = units_of(walk, module, function)
    if {unit.qualname for unit in units} != {qualname}:
        return False
    title = walk.title(module, qualname)
    defaults(walk, node, function, units, title)
    if function.__closure__:
        for free, value in cells_of(function).items():
            if free != "__class__":
                held(walk, node, value, f"closure {free} of {title}")
    return True


def _is_plain(walk: Walk, module: Module, name: str, qualname: str, function: FunctionType) -> bool:
    """Whether a method is the only one of its name on its line of the source, which has its defaults."""
    code = function.__code__
    if code.co_name != name or file_of_code(module, code) != module.file:
        return False
    facts = walk.sources.facts(module.file)
    if facts is None or facts.methods.get(qualname) != (code.co_firstlineno, live_defaults(function)):
        return False
    return not walk.freshness.doubtful(module.file)


def _fields(walk: Walk, node: Node, cls: type, title: str) -> None:
    """The fields of dataclasses, attrs classes and pydantic models: defaults are moved out of the class."""
    own = vars(cls)
    fields: list[Any] = list(own.get("__attrs_attrs__") or ())
    for known in ("__dataclass_fields__", "__pydantic_fields__", "model_fields"):
        if isinstance(own.get(known), dict):
            fields.extend(own[known].values())
    parts: list[str] = []
    for field in fields:
        for part in _FIELD_PARTS:
            value = getattr(field, part, None)
            if value is not None:
                parts.append(f"{part} {walk.digest(node, value).digest}")
    if parts:
        node.add(f"fields of {title}", combined(parts))
