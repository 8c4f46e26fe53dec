"""Live objects: what they are called, where their source is, and what they hold.

A function or class inside a value, or behind another name, is only named. The name says which one it is
as long as it leads there: ``helpers.scale`` is what the module ``helpers`` has under ``scale``. A lambda, a
closure or a function that was bound to something else meanwhile is told apart by what it is made of, so
that two of them that change places are seen.

Whether the code that is loaded is the code in the file (:class:`LoadedCode`): a notebook that imported
``helpers.py`` runs the old code after the file was edited, while a task in a fresh interpreter runs the
new. A file that is older than this process cannot have changed since it was imported, unless Python took
bytecode from before the last edit. Any other is compared: with the bytecode that Python wrote when it
imported it, or else function by function, and constant by constant, with what is there now. What cannot
be seen is an edit between import and now of nothing but a computed constant, where Python writes no
bytecode.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from upshift.code.fingerprint.facts import Import
from upshift.code.fingerprint.pieces import HIDES, Key, Piece, code_digest, combined
from upshift.code.fingerprint.sources import PROJECT, Module, ProjectSources, python_files
from upshift.code.fingerprint.values import ValueDigest, is_module, value_digest
from upshift.runtime.usercode import importing_began, older_bytecode

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


_MARGIN = 0.05
"""Seconds by which the clock of a file system may be behind: the kernel's coarse clock ticks at 100 Hz
or more. The clock of a file server may be further behind, which this cannot see."""

_FORKED = 0x40
"""``PF_FORKNOEXEC`` in Linux' ``include/linux/sched.h``: the code may be older than the process."""
_HEADER = 16
"""Bytes before the code in a file of bytecode (PEP 552): magic, flags, time in seconds, size."""


class LoadedCode:
    """Answers for the files of one analysis."""

    def __init__(self, sources: ProjectSources) -> None:
        self._sources = sources
        self._started = _process_start()
        self._doubtful: dict[str, bool] = {}
        self._compiled: dict[str, CodeType | None] = {}
        self._written: dict[str, frozenset[str]] = {}
        self._stale: dict[Module, bool] = {}

    def has(self, file: str, code: CodeType) -> bool:
        """Whether this code is in the file."""
        return not self._is_doubtful(file) or code_digest(code) in self._functions_of(file)

    def is_stale(self, module: Module) -> bool:
        """Whether a live module is not what its file says now."""
        file = module.file
        if file is None or module.namespace is None or not self._is_doubtful(file):
            return False
        known = self._stale.get(module)
        if known is None:
            known = self._stale[module] = self._differs(file, module)
        return known

    def _is_doubtful(self, file: str) -> bool:
        """Whether the file may have changed since it was imported, as far as times tell."""
        known = self._doubtful.get(file)
        if known is None:
            status = self._sources.status(file)  # none of a cell of a notebook, which cannot change
            known = self._doubtful[file] = status is not None and (
                self._is_young(status) or older_bytecode(file, status.st_mtime_ns)
            )
        return known

    def _is_young(self, status: os.stat_result) -> bool:
        started = self._started
        return started is None or max(status.st_mtime, status.st_ctime) > started - _MARGIN

    def _differs(self, file: str, module: Module) -> bool:
        if not all(self.has(file, code) for code in _functions(module) if code.co_filename == file):
            return True
        imported, written = self._imported(file), self._code_of(file)
        if imported is None or written is None:
            return not self._has_constants(module)
        return imported is not written and code_digest(imported) != code_digest(written)

    def _imported(self, file: str) -> CodeType | None:
        """The code that this process wrote or found when it imported a file; None if that is not known."""
        status = self._sources.status(file)
        try:
            cached = importlib.util.cache_from_source(file)
            with open(cached, "rb") as stream:
                content = stream.read()
                written = os.fstat(stream.fileno()).st_mtime_ns
        except (OSError, ValueError, NotImplementedError):
            return None
        assert status is not None
        stamp = (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little")
        stamp += (status.st_size & 0xFFFFFFFF).to_bytes(4, "little")
        if written > status.st_mtime_ns and content[8:_HEADER] == stamp:
            return self._code_of(file)  # nothing happened since
        if self._started is None or written / 1e9 < self._started:
            return None  # it may be from before, and this process writes none
        try:
            code = marshal.loads(content[_HEADER:])
        except (ValueError, EOFError, TypeError):
            return None
        return code if isinstance(code, CodeType) else None

    def _has_constants(self, module: Module) -> bool:
        """Whether plain constants that are written out have the values that are written."""
        facts = self._sources.facts(module.file)
        for number, statement in enumerate(facts.statements if facts is not None else ()):
            for name in statement.binds if statement.literal else ():
                value = (module.namespace or {}).get(name)
                bound = facts.bound(name) if facts is not None else ()
                if len(bound) != 1 or isinstance(bound[0], Import) or bound[0].number != number:
                    continue
                if type(value) in (bool, int, float, str) and _plain(value) != statement.literal:
                    return False
        return True

    def _code_of(self, file: str) -> CodeType | None:
        if file not in self._compiled:
            content, code = self._sources.content(file), None
            if content is not None:
                try:
                    code = compile(content, file, "exec", dont_inherit=True)
                except (SyntaxError, ValueError, RecursionError):
                    code = None
            self._compiled[file] = code
        return self._compiled[file]

    def _functions_of(self, file: str) -> frozenset[str]:
        if file not in self._written:
            code = self._code_of(file)
            self._written[file] = frozenset() if code is None else frozenset(_all_digests(code))
        return self._written[file]


def _plain(value: object) -> str:
    return value_digest(value, str, bool).digest


def _functions(module: Module) -> Iterator[CodeType]:
    """The code of the functions and methods that a live module has."""
    for value in list((module.namespace or {}).values()):
        members: list[Any] = [value]
        if issubclass(type(value), type):
            members = [getattr(member, "__func__", member) for member in vars(value).values()]
        for member in members:
            if type(member) is FunctionType and member.__globals__ is module.namespace:
                yield member.__code__


def _all_digests(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield code_digest(constant)
            yield from _all_digests(constant)


@functools.cache
def _start_of(pid: int) -> float | None:
    try:
        with open("/proc/self/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
        boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError):
        return None
    if int(fields[6]) & _FORKED:
        return None
    return time.time() - boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _process_start() -> float | None:
    """When this process started, in seconds since the epoch; None where that tells nothing.

    A command imports the user's modules later than it starts, and knows when.
    """
    return importing_began() or _start_of(os.getpid())
