"""Live objects: what they are called, where their source is, and what they hold.

A function or class inside a value, or behind another name, is only named. The name says which one it is
as long as it leads there: ``helpers.scale`` is what the module ``helpers`` has under ``scale``. A lambda, a
closure or a function that was bound to something else meanwhile is told apart by what it is made of, so
that two of them that change places are seen.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from upshift.code.fingerprint.digests import code_digest, combined
from upshift.code.fingerprint.loaded import LoadedCode
from upshift.code.fingerprint.pieces import HIDES, Key, Piece
from upshift.code.fingerprint.sources import PROJECT, Module, ProjectSources, python_files
from upshift.code.fingerprint.values import ValueDigest, is_module, value_digest

SKIPPED_ATTRIBUTES = frozenset(
    {"__abstractmethods__", "_abc_impl", "__upshift_options__", "__annotate__", "__annotate_func__"}
)
"""What Python and Upshift leave in a class; from 3.14, a function that gives its annotations."""
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)

_DERIVED = frozenset(
    {
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__",
        "__signature__", "__annotations_cache__", "__static_attributes__", "__firstlineno__",
        "__parameters__",
        "__type_params__", "__orig_bases__", "__classcell__", "__classdictcell__",
        "__protocol_attrs__", "__private_attributes__", "__class_vars__",
    }
)  # fmt: skip
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, list, dict, set, frozenset)


class LiveCode:
    """The live objects of this process and the sources behind them, at one moment."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.sources = ProjectSources(project)
        self.loaded = LoadedCode(self.sources)
        self.nowhere = Module("?")
        """What stands for code that no module is known of."""
        self._objects: dict[int, Any] = {}
        self._tokens: dict[int, str] = {}

    @functools.cached_property
    def module_names(self) -> frozenset[str]:
        """What a file or folder of the project could be imported as, from some folder."""
        names: set[str] = set()
        for file in python_files(self.project.absolute()):
            folder, _, name = file.rpartition(os.sep)
            names.update((name.removesuffix(".py"), folder.rpartition(os.sep)[2]))
        return frozenset(names)

    def code(self, value: Any) -> Key:
        """The key of the piece that a live function, class or module is."""
        self._objects[id(value)] = value  # which is kept: others shall not get its id
        return ("code", id(value))

    def object(self, number: int) -> Any:
        """What :meth:`code` was given."""
        return self._objects[number]

    def module_of(self, value: Any) -> Module:
        """The module that a live function or class says it is from."""
        if type(value) is FunctionType:
            return self.sources.of_namespace(value.__globals__)
        owner = sys.modules.get(value.__module__) if isinstance(value.__module__, str) else None
        return self.nowhere if owner is None else self.sources.of_namespace(vars(owner))

    def is_own(self, function: FunctionType) -> bool:
        """Whether a function was written in the project."""
        return self.sources.of_namespace(function.__globals__).kind == PROJECT

    def seen(self, piece: Piece, value: Any) -> ValueDigest:
        """What a value looks like; the code in it is reached by the piece."""

        def follow(code: Any) -> str:
            piece.reaches.append(self.code(code))
            return self.token(code)

        seen = value_digest(value, follow, self.is_own)
        if seen.hides:
            piece.flags |= HIDES
        return seen

    def functions_in_source(self, function: FunctionType) -> tuple[str, tuple[int, ...]]:
        """The file of a function's code, and its definitions there; none if the file says something else."""
        module, code = self.sources.of_namespace(function.__globals__), function.__code__
        file = file_of_code(module, code)
        facts = self.sources.facts(file)
        if facts is None:
            return file, ()
        found = facts.units(code.co_name, code.co_firstlineno)
        return file, found if found and self.loaded.has(file, code) else ()

    # names

    def token(self, value: Any) -> str:
        """What a function, class or module is called."""
        known = self._tokens.get(id(value))
        if known is None:
            self._objects[id(value)] = value
            known = self._tokens[id(value)] = self._token(value, ())
        return known

    def _token(self, value: Any, within: tuple[int, ...]) -> str:
        """``within`` are the ``id`` of those whose making is being described, outermost first."""
        if is_module(value):
            return f"module {value.__name__}"
        if type(value) is types.BuiltinFunctionType:
            return f"builtin {value.__module__}.{value.__qualname__}"
        module = self.module_of(value)
        owner = module.name if module.kind == PROJECT and module is not self.nowhere else value.__module__
        label = f"{owner}.{value.__qualname__}"
        if id(value) in within:
            return f"{label} again {len(within) - within.index(id(value))}"
        if is_by_name(value):
            return label
        parts = (
            self._of_function(value, within) if type(value) is FunctionType else self._of_class(value, within)
        )
        return f"{label} {combined(parts)}"

    def _of_function(self, function: FunctionType, within: tuple[int, ...]) -> list[str]:
        parts = [code_digest(function.__code__)]
        if self.is_own(function):
            file, units = self.functions_in_source(function)
            facts = self.sources.facts(file)
            if facts is not None and len(units) == 1:  # else several lambdas on a line
                parts = [facts.unit(units[0]).digest]
        for name, value in [*cells_of(function).items(), *defaults_of(function).items()]:
            parts.append(f"{name} {self._held(value, (*within, id(function)))}")
        return parts

    def _of_class(self, cls: type, within: tuple[int, ...]) -> list[str]:
        inside = (*within, id(cls))
        parts = [self._token(base, inside) for base in (*cls.__bases__, type(cls))]
        for name, value in sorted(vars(cls).items()):
            if name in SKIPPED_ATTRIBUTES:
                continue
            if type(value) is FunctionType:
                parts.append(f"{name} {self._token(value, inside)}")
            elif type(value) not in DESCRIPTORS and not is_derived(name, value):
                parts.append(f"{name} {self._held(value, inside)}")
        return parts

    def _held(self, value: Any, within: tuple[int, ...]) -> str:
        return value_digest(value, lambda code: self._token(code, within), self.is_own).digest


def title(module: Module, name: str) -> str:
    """What a name of a module is called in a fingerprint; :mod:`upshift.engine.keys` reads it."""
    return f"{module.name}.{name} ({module.shown})" if name else f"{module.name} ({module.shown})"


def is_derived(name: str, value: Any) -> bool:
    """Whether an attribute of a class is only what Python or a library made of its source.

    Anything with a plain name is more than that, and so is code or plain data with a special one, such
    as ``__add__`` or ``__match_args__``, which Python itself looks up.
    """
    if not (name.startswith("__") and name.endswith("__")):
        return False
    if name in _DERIVED or name.startswith(("__pydantic_", "__attrs_", "__dataclass_")):
        return True
    return not (callable(value) or hasattr(type(value), "__get__") or type(value) in _PLAIN)


def is_by_name(value: Any) -> bool:
    """Whether the qualified name of a function or class leads to it."""
    owner = sys.modules.get(value.__module__) if isinstance(value.__module__, str) else None
    if owner is not None:
        found: Any = vars(owner)
    else:
        found = value.__globals__ if type(value) is FunctionType else {}
    if found.get(value.__qualname__) is value:
        return True
    for name in value.__qualname__.split("."):
        members = found if type(found) is dict else vars(found) if isinstance(found, type) else {}
        found = members.get(name)
        found = found.__func__ if type(found) in (staticmethod, classmethod) else found
    return found is value


def is_importable(value: Any) -> bool:
    """Whether another process finds a function, class or module by its name."""
    if is_module(value) or type(value) is types.BuiltinFunctionType:
        return True
    return value.__module__ != "__main__" and value.__module__ in sys.modules and is_by_name(value)


def is_home(module: Module, name: str, value: Any) -> bool:
    """Whether a function or class was made where it is bound, under this name."""
    if value.__qualname__ != name:
        return False
    if type(value) is FunctionType:
        return value.__globals__ is module.namespace
    owner = sys.modules.get(value.__module__)
    return owner is not None and vars(owner) is module.namespace


def says_all(live: LiveCode, module: Module, function: FunctionType) -> bool:
    """Whether the source of a module says all about a function of its own, but for default values."""
    code = function.__code__
    return (
        function.__closure__ is None
        and not function.__dict__
        and code.co_filename == module.file
        and function.__globals__ is module.namespace
        and code.co_name == function.__name__
        and live.loaded.has(module.file, code)
    )


def is_upshift(value: Any) -> bool:
    """Whether an object is one of Upshift's own, or an instance of one of its classes."""
    name: Any = value.__name__ if is_module(value) else None
    if name is None:
        code = type(value) is FunctionType or isinstance(value, type)
        name = (value if code else type(value)).__module__
    return isinstance(name, str) and name.partition(".")[0] == "upshift"


def file_of_code(module: Module, code: CodeType) -> str:
    """The file that code of a module was written in."""
    file = code.co_filename
    if file != module.file and module.file and not os.path.isabs(file):
        return module.file if os.path.basename(module.file) == os.path.basename(file) else file
    return file


def cells_of(function: FunctionType) -> dict[str, Any]:
    """The free variables of a function that are bound, by name."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # its variable is not bound yet
            continue
    return found


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """The default values of a function's arguments, by name."""
    code = function.__code__
    positional = function.__defaults__ or ()
    # A decorator may have given it those of another function, and so more than it has arguments.
    names = [str(number) for number in range(len(positional) - code.co_argcount)]
    names += code.co_varnames[max(0, code.co_argcount - len(positional)) : code.co_argcount]
    return {**dict(zip(names, positional, strict=True)), **(function.__kwdefaults__ or {})}
