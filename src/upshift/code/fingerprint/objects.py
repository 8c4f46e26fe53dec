"""What live functions and classes reach: their source, and what they hold beside it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from upshift.code.fingerprint.facts import READS
from upshift.code.fingerprint.live import (
    DESCRIPTORS,
    SKIPPED_ATTRIBUTES,
    LiveCode,
    cells_of,
    defaults_of,
    is_by_name,
    is_derived,
    is_upshift,
    says_all,
    title,
)
from upshift.code.fingerprint.names import FROM_FILE, add_flags, add_words, resolve, through, unknown
from upshift.code.fingerprint.outside import widen
from upshift.code.fingerprint.pieces import HIDES, Piece, code_digest, code_names, combined
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, UPSHIFT, Module
from upshift.code.fingerprint.values import is_code, is_module

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
_SKIPPED = ("__wrapped__", "__upshift_function__", "__upshift_options__")
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


def code_piece(live: LiveCode, number: int) -> Piece:
    """A live function, class, module or built-in function."""
    value = live.object(number)
    piece = Piece()
    widen(piece, value, None)
    if type(value) is FunctionType:
        _function(live, piece, value)
    elif is_module(value):
        through(live, piece, value, (), True, None)
    elif type(value) is not BuiltinFunctionType:
        _class(live, piece, value)
    return piece


def docstring_piece(live: LiveCode, number: int) -> Piece:
    """The docstring of a function or class that is handed on: whoever gets it may read it."""
    value = live.object(number)
    piece = Piece(live.code(value))
    for key in code_piece(live, number).reaches:
        facts = live.sources.facts(key[2]) if key[0] == "source" else None
        if facts is not None:
            for unit in map(facts.unit, facts.units(*key[3])):
                if unit.documented != unit.digest:
                    piece.add(f"docstring of {title(key[1], unit.qualname)}", unit.documented)
    return piece


# functions


def _function(live: LiveCode, piece: Piece, function: FunctionType) -> None:
    module = live.sources.of_namespace(function.__globals__)
    if module.kind == PROJECT:
        _own_function(live, piece, module, function)
    elif module.version:
        piece.reaches.append(("package", module.version))
    if function.__dict__ and function.__dict__.get("__wrapped__") is not None:
        _inside(live, piece, function.__dict__["__wrapped__"])
    if module.kind not in (PROJECT, UPSHIFT):
        _foreign_function(live, piece, function)


def _foreign_function(live: LiveCode, piece: Piece, function: FunctionType) -> None:
    """A function of a library may hold functions of the project: a decorator made it."""
    registry = vars(function).get("registry")
    if isinstance(registry, types.MappingProxyType):  # singledispatch, whose closure caches what it saw
        for implementation in registry.values():
            _inside(live, piece, implementation)
        return
    for free, value in cells_of(function).items():
        _inside(live, piece, value, f"closure {free} of {live.token(function)}")
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if callable(value):
            _inside(live, piece, value)


def _inside(live: LiveCode, piece: Piece, value: Any, label: str = "") -> None:
    """Reach the code that a value holds; its data counts as well, if it has a label and can be told."""
    if is_code(value):
        piece.reaches.append(live.code(value))
        return
    digest, complete, _, _ = live.seen(piece, value)
    if complete and label:
        piece.add(label, digest)


def _own_function(live: LiveCode, piece: Piece, module: Module, function: FunctionType) -> None:
    code = function.__code__
    file: str | None = module.file
    units: tuple[int, ...] = ()
    in_source = says_all(live, module, function) and live.sources.facts(file) is not None
    if not in_source:
        file, units = live.functions_in_source(function)
        in_source = bool(units)
    name = title(module, function.__qualname__)
    if in_source:
        piece.reaches.append(("source", module, file, (code.co_name, code.co_firstlineno), code.co_freevars))
        _add_dynamic(live, piece, module, function.__qualname__)
    else:
        _bytecode(live, piece, module, function)
    if function.__defaults__ or function.__kwdefaults__:
        piece.add(f"defaults of {name}", combined([defaults_of_function(live, piece, function)]))
    if function.__closure__:
        _add_cells(live, piece, file, cells_of(function), units, name)
    for attribute, value in function.__dict__.items():
        if attribute not in _SKIPPED:
            piece.add(f"attribute {attribute} of {name}", live.seen(piece, value).digest)
    if piece.flags & HIDES and in_source and _reads(live, file, (code.co_name, code.co_firstlineno)):
        piece.add(*unknown(name, FROM_FILE))


def _reads(live: LiveCode, file: str | None, what: tuple[Any, ...]) -> bool:
    """Whether a definition may read a file."""
    facts = live.sources.facts(file)
    return facts is not None and any(facts.unit(n).flags & READS for n in facts.units(*what))


def defaults_of_function(live: LiveCode, piece: Piece, function: FunctionType) -> str:
    """What the default values of arguments are, which need not be those that the source spells out."""
    positional, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    if _PLAIN.issuperset(map(type, (*positional, *named.values()))):
        return f"{positional!r} {named!r}"
    return combined(f"{n} {live.seen(piece, value).digest}" for n, value in defaults_of(function).items())


def _add_cells(
    live: LiveCode, piece: Piece, file: str | None, cells: dict[str, Any], units: tuple[int, ...], label: str
) -> None:
    """Variables of a closure. Of modules only what is taken from them counts."""
    for free, value in cells.items():
        piece.add(f"closure {free} of {label}", live.seen(piece, value).digest)
    modules = {name: value for name, value in cells.items() if is_module(value)}
    facts = live.sources.facts(file)
    if modules and facts is not None:
        around = Module("?", namespace=modules)
        shown = Piece()
        add_words(live, shown, around, [word for n in units for word in facts.unit(n).words])
        piece.reaches += [key for key in shown.reaches if key[0] != "name" or key[1] is not around]


def _add_dynamic(live: LiveCode, piece: Piece, module: Module, qualname: str) -> None:
    """What a definition, or one that it names, may find by other ways than names; of a whole module, too."""
    facts = live.sources.facts(module.file)
    words, flags = facts.dynamic.get(qualname.partition(".")[0], ((), 0)) if facts is not None else ((), 0)
    add_flags(piece, flags)
    add_words(live, piece, module, words)


def _bytecode(live: LiveCode, piece: Piece, module: Module, function: FunctionType) -> None:
    """The code itself, and everything that a name in it may mean."""
    code = function.__code__
    piece.add(f"{title(module, function.__qualname__)} as loaded", code_digest(code))
    names = code_names(code)
    for name in sorted(names):
        value = function.__globals__.get(name)
        if value is not None or name in function.__globals__:
            resolve(live, piece, module, ((name,), None, False))
        if is_module(value):
            for attribute in sorted(names & vars(value).keys()):
                resolve(live, piece, module, ((name, attribute), None, True))
    piece.reaches.append(("imported", module))


# classes


def _class(live: LiveCode, piece: Piece, cls: type) -> None:
    owner = sys.modules.get(cls.__module__) if isinstance(cls.__module__, str) else None
    namespace = next((f.__globals__ for f in _functions(cls)), None) if owner is None else vars(owner)
    module = live.sources.of_namespace(namespace) if namespace else Module(str(cls.__module__))
    if module.kind == UPSHIFT or (owner is not None and cls.__module__ == "builtins"):
        return
    if module.version:
        piece.reaches.append(("package", module.version))
    if cls.__flags__ & _IMMUTABLE:
        if module.kind == PROJECT and owner is not None:
            piece.reaches.append(("whole", module))
        return
    if module.kind != PROJECT:
        if is_by_name(cls):
            return
        module = Module(str(cls.__module__))  # made by a call, such as make_dataclass
    name = title(module, cls.__qualname__)
    file = module.file or next((f.__code__.co_filename for f in _functions(cls)), None)
    facts = live.sources.facts(file)
    in_source = facts is not None and bool(facts.units(cls.__qualname__))
    if in_source:
        piece.reaches.append(("source", module, file, (cls.__qualname__,), tuple(_class_cells(live, cls))))
        _add_dynamic(live, piece, module, cls.__qualname__)
    elif namespace and module.kind == PROJECT:
        piece.reaches.append(("imported", module))
    piece.reaches += [live.code(base) for base in (*cls.__bases__, type(cls)) if base is not object]
    if any(_is_foreign(live, base) for base in cls.__bases__):
        piece.reaches.append(("docstring", *live.code(cls)[1:]))
    _attributes(live, piece, cls, module, in_source, name)
    _fields(live, piece, cls, name)
    if piece.flags & HIDES and _reads(live, file, (cls.__qualname__,)):
        piece.add(*unknown(name, FROM_FILE))


def _is_foreign(live: LiveCode, base: type) -> bool:
    owner = sys.modules.get(base.__module__)
    return base is not object and owner is not None and live.sources.of_namespace(vars(owner)).kind == PACKAGE


def _functions(cls: type) -> Iterator[FunctionType]:
    for value in vars(cls).values():
        function = value if type(value) is FunctionType else getattr(value, "__func__", None)
        if type(function) is FunctionType:
            yield function


def _class_cells(live: LiveCode, cls: type) -> dict[str, Any]:
    """The variables of the function that a class was made in, as far as its methods hold them.

    Those of a wrapper that a decorator has put in place of a method are other variables.
    """
    cells: dict[str, Any] = {}
    for function in _functions(cls) if "<locals>" in cls.__qualname__ else ():
        if function.__closure__ and function.__code__.co_name == function.__qualname__.rpartition(".")[2]:
            file, units = live.functions_in_source(function)
            facts = live.sources.facts(file)
            if facts is not None and any(
                facts.unit(n).qualname.startswith(f"{cls.__qualname__}.") for n in units
            ):
                cells.update(cells_of(function))
    cells.pop("__class__", None)
    return cells


def _attributes(live: LiveCode, piece: Piece, cls: type, module: Module, in_source: bool, label: str) -> None:
    parts: list[str] = []
    defaults: list[str] = []
    for name, value in sorted(vars(cls).items()):
        if name in SKIPPED_ATTRIBUTES:
            continue
        if type(value) is FunctionType:
            if not _is_in_class(live, piece, name, value, cls, module):
                piece.reaches.append(live.code(value))
                parts.append(f"{name} {live.token(value)}")
            elif value.__defaults__ or value.__kwdefaults__:
                defaults.append(f"{name} {defaults_of_function(live, piece, value)}")
        elif type(value) in DESCRIPTORS:
            continue
        elif not is_derived(name, value) or (name == "__annotations__" and not in_source):
            parts.append(f"{name} {live.seen(piece, value).digest}")
    if parts:
        piece.add(f"attributes of {label}", combined(parts))
    if defaults:
        piece.add(f"defaults of {label}", combined(defaults))


def _is_in_class(
    live: LiveCode, piece: Piece, name: str, function: FunctionType, cls: type, module: Module
) -> bool:
    """Whether the source of the class says all about a method, but for what it holds, which is added."""
    code = function.__code__
    if function.__module__ != cls.__module__ or function.__dict__ or code.co_name != name:
        return False
    if function.__qualname__ != f"{cls.__qualname__}.{name}" or function.__globals__ is not module.namespace:
        return False
    if code.co_filename != module.file or not live.loaded.has(module.file, code):
        file, units = live.functions_in_source(function)
        facts = live.sources.facts(file)
        if facts is None or {facts.unit(n).qualname for n in units} != {function.__qualname__}:
            return False
    for free, value in cells_of(function).items() if function.__closure__ else ():
        if free != "__class__":
            label = f"closure {free} of {title(module, function.__qualname__)}"
            piece.add(label, live.seen(piece, value).digest)
    return True


def _fields(live: LiveCode, piece: Piece, cls: type, label: str) -> None:
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
                parts.append(f"{part} {live.seen(piece, value).digest}")
    if parts:
        piece.add(f"fields of {label}", combined(parts))


# methods that are run on their own, such as a step of a class-style pipeline

_DYNAMIC = frozenset({"__dict__", "__getattribute__", "__class__", "getattr"})


def method_piece(live: LiveCode, number: int, owner: int) -> Piece:
    """What a method takes from ``self``, by name, and no more: another step of its class does not count."""
    method, cls = live.object(number), live.object(owner)
    piece = Piece()
    seen: set[str] = set()
    pending: list[FunctionType] = [method]
    for function in pending:  # grows while it is walked
        names = code_names(function.__code__)
        if not _DYNAMIC.isdisjoint(names):
            piece.reaches.append(live.code(cls))
            return piece
        for name in sorted(names - seen):
            seen.add(name)
            for base in cls.__mro__:
                value = vars(base).get(name)
                if value is None or live.module_of(base).kind != PROJECT:
                    continue
                if is_upshift(value) or hasattr(value, "__upshift_options__"):
                    continue  # another step of the class, named as the next one
                label = f"{base.__module__}.{base.__qualname__}.{name}"
                piece.add(label, live.seen(piece, value).digest)
                inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
                if type(inner) is FunctionType:
                    pending.append(inner)
    return piece


def owner_of(method: FunctionType) -> type | None:
    """The class that a method was defined in, by its qualified name."""
    path, _, _ = method.__qualname__.rpartition(".")
    if not path or path.endswith("<locals>"):
        return None
    value: object = sys.modules.get(method.__module__)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, type) else None
