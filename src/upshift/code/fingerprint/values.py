"""The digest of a live value, by content: the same in every process that holds an equal value.

Plain data is written out; everything else through what :mod:`pickle` would store of it, whatever
the order of its sets and whether two equal parts are one object. Functions, classes and modules
inside are not written out but handed to the caller, who follows them. What a class of the project says
of its state to pickle need not be all of it, so its attributes count as well. A part that cannot be
stored (a connection) counts by its type and what can be seen of it, and the caller is told.

A value is written out as a tree, where a part that others share is written with each of them, so that it
makes no difference whether two equal parts are one object. Sixty tables of a database that know each other
would never come to an end so: what is too large is written object by object, each with a number.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import enum
import functools
import os
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from upshift.code.fingerprint.pieces import code_digest, combined
from upshift.runtime.storage.digest import digest_of

LARGEST = 20_000
"""Objects in a value that is written out as a tree."""
DEEPEST = 100
"""Objects within each other in such a value."""
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_LONG = 1000
_GENERIC_ALIASES = (types.GenericAlias, types.UnionType)
_HEAP_TYPE = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: made by a class statement, or like one."""
_EMPTY = (type(threading.Lock()), type(threading.RLock()))
"""What says nothing about any data, though it cannot be stored."""
_SUSPENDED = {
    types.GeneratorType: ("gi_code", "gi_frame"),
    types.CoroutineType: ("cr_code", "cr_frame"),
    types.AsyncGeneratorType: ("ag_code", "ag_frame"),
}
_REDUCTIONS = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
"""Methods by which a class says what pickle stores of its objects."""
_CONTENTS: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: [part for item in dict.items(value) for part in item],
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: lambda value: (set(set.__iter__(value)),),
    frozenset: lambda value: (set(frozenset.__iter__(value)),),
    str: lambda value: (str.__repr__(value),),
    bytes: lambda value: (bytes.__repr__(value),),
    int: lambda value: (int.__format__(value, "x"),),
    float: lambda value: (float.__repr__(value),),
}
"""What objects of classes made from these hold besides attributes."""


class ValueDigest(NamedTuple):
    """What a value looks like.

    The digest is of all that can be seen. ``complete``: that is everything. ``hides``: there may be data that
    cannot be seen. ``unordered``: there are sets in it, whose order differs from process to process.
    """

    digest: str
    complete: bool
    hides: bool
    unordered: bool = False


def is_module(value: object) -> bool:
    """Whether it is a module. Not ``isinstance``, which asks a proxy what it claims to be."""
    return issubclass(type(value), types.ModuleType)


def is_code(value: object) -> bool:
    """Whether it is a function, class or module: what is followed rather than written out."""
    kind = type(value)
    return kind is types.FunctionType or issubclass(kind, (type, types.ModuleType))


def value_digest(
    value: object,
    # called with each function, built-in ones as well, class and module in it; gives its name
    follow: Callable[[Any], str],
    is_own: Callable[[types.FunctionType], bool],  # whether a method was written in the project
) -> ValueDigest:
    """The digest of a value."""
    if type(value) in _ATOMS:
        return ValueDigest(combined([_atom(type(value), value)]), complete=True, hides=False)
    for kind in (Writer, _Numbering):
        writer = kind(follow, is_own)
        try:
            writer.write_all(value)
        except _TooLargeError:
            continue
        except RecursionError:
            break
        return ValueDigest(combined(writer.tokens), writer.complete, writer.hides, writer.unordered)
    return ValueDigest(combined([type_name(value)]), complete=False, hides=True)


class _TooLargeError(Exception):
    """A value has too many parts to be written out as a tree."""


class Writer:
    """Writes out a value as a tree, into :attr:`tokens`."""

    def __init__(self, follow: Callable[[Any], str], is_own: Callable[[types.FunctionType], bool]) -> None:
        self.tokens: list[Any] = []
        self.complete = True
        self.hides = False
        self.unordered = False
        self._follow = follow
        self._is_own = is_own
        self._open: dict[int, int] = {}
        self._count = 0

    def write_all(self, value: Any) -> None:
        """Write a value, to its end."""
        self.write(value)

    def write(self, value: Any) -> None:
        kind = type(value)
        if kind in _ATOMS:
            self.tokens.append(_atom(kind, value))
        elif is_code(value):
            self.tokens.append("code " + self._follow(value))
        else:
            self.part(kind, value)

    def part(self, kind: type, value: Any) -> None:
        """Write what has parts."""
        if id(value) in self._open:
            self.tokens.append(f"again {len(self._open) - self._open[id(value)]}")
            return
        self._count += 1
        if self._count > LARGEST or len(self._open) > DEEPEST:
            raise _TooLargeError
        self._open[id(value)] = len(self._open)
        self.write_parts(value)
        del self._open[id(value)]

    def write_parts(self, value: Any) -> None:
        """Write the parts of what has some."""
        kind = type(value)
        if kind in (list, tuple):
            self._many(kind.__name__, value)
        elif kind is dict:
            self._many("dict", [part for item in value.items() for part in item])
        elif kind in (set, frozenset):
            self._set(kind.__name__, list(value))  # at once: other threads may add to it meanwhile
        elif kind is weakref.WeakSet:
            self._set(kind.__name__, [item for ref in list(value.data) if (item := ref()) is not None])
        elif kind in (bytearray, memoryview):
            self.tokens.append(_atom(kind, bytes(value)))
        elif issubclass(kind, enum.Enum):
            own = {name: part for name, part in vars(value).items() if not name.startswith("_")}
            self._many("enum", (kind, value._name_, value._value_, own))
        elif kind in (staticmethod, classmethod):
            self._many(kind.__name__, (value.__func__,))
        elif kind is property:
            self._many("property", (value.fget, value.fset, value.fdel))
        elif kind is types.MethodType:
            self._many("method", (value.__func__, value.__self__))
        elif kind is types.BuiltinMethodType:
            self._builtin(value)
        elif kind is types.MappingProxyType:
            self._many("mappingproxy", (dict(value),))
        elif kind is types.CellType:
            self._many("cell", _cell(value))
        elif kind is types.CodeType:
            self.tokens.append(f"code object {code_digest(value)}")
        elif kind is struct.Struct:
            self._many("struct", (value.format,))
        elif kind is contextvars.ContextVar:
            self._many("variable", (value.name, *_current(value)))
        elif issubclass(kind, weakref.ref):
            self._many("weak", (weakref.ref.__call__(value),))
        elif value is os.environ:
            self.tokens.append("environment")  # a step's environment variables are not its code
        elif kind in _SUSPENDED:
            self._suspended(value, *_SUSPENDED[kind])
        elif kind in _GENERIC_ALIASES:
            self._many("alias", (getattr(value, "__origin__", None), value.__args__))
        elif (library := _of_ctypes(kind, value)) is not None:
            self.tokens.append(f"foreign {library}")
        elif _wrapped(value) is not None:
            self._many("wrapper " + type_name(value), (_wrapped(value), *_attributes(value)))
        else:
            self._reduced(kind, value)

    def _many(self, name: str, parts: Any) -> None:
        self.tokens.append(f"{name} (")
        for part in parts:
            self.write(part)
        self.tokens.append(")")

    def _set(self, name: str, items: list[Any]) -> None:
        self.unordered = self.unordered or len(items) > 1
        outer, written = self.tokens, []
        for item in items:
            self.tokens = []
            self.write(item)
            written.append(self.tokens)
        self.tokens = outer
        self.tokens.append(f"{name} {sorted(map(combined, written))}")

    def _builtin(self, value: Any) -> None:
        owner = value.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            self.tokens.append(self._follow(value))
            if owner is not None:
                self.write(owner)
        else:
            self._many(f"builtin {value.__name__}", (owner,))

    def _suspended(self, value: Any, code: str, frame: str) -> None:
        """A generator, by its code and how far it is. What the code reaches is for the caller."""
        at = getattr(value, frame)
        self.tokens.append(f"suspended {code_digest(getattr(value, code))}")
        self._many("frame", () if at is None else (at.f_lasti, dict(at.f_locals)))
        self.complete = False

    def _reduced(self, kind: type, value: Any) -> None:
        reduce = copyreg.dispatch_table.get(kind)
        said = [reduce, *(getattr(kind, name, None) for name in _REDUCTIONS)]
        written = [method for method in said if type(method) is types.FunctionType]
        own = any(map(self._is_own, written))
        if own:
            self._state(kind, value)
        try:
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except RecursionError:
            raise
        except (Exception, SystemExit):  # a user's or a library's own method, which may raise anything
            if not written:
                self._state(kind, value)
            self._opaque(value)
            return
        if isinstance(reduced, str):
            self._named(value, reduced)
            return
        self.write(kind)
        self.tokens.append("reduced (")
        function, arguments, *rest = reduced
        state, items, pairs = (*rest, None, None, None)[:3]
        self.write(function)
        self.write(arguments)
        self.write(state)
        self.write(None if items is None else list(items))
        self.write(None if pairs is None else [list(pair) for pair in pairs])
        self.tokens.append(")")
        if written and not own and _is_looked_up(function, arguments, rest):
            # Such as a logger: what it is now is not what pickle stores.
            self._many("plain state", sorted((n, v) for n, v in _state_of(kind, value) if type(v) in _ATOMS))
            self.complete, self.hides = False, True

    def _state(self, kind: type, value: Any) -> None:
        """The attributes of an object, and what it holds as an object of a built-in class."""
        self._many("state", dict(_state_of(kind, value)).items())
        for base in kind.__mro__:
            if base in _CONTENTS:
                self._many("content", _CONTENTS[base](value))
                return
            if base is not object and not base.__flags__ & _HEAP_TYPE:
                self.complete, self.hides = False, True  # written in C: what it holds is not seen
                return

    def _named(self, value: Any, name: str) -> None:
        """What pickle stores by name, provided that the name leads to it."""
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        try:
            found = functools.reduce(getattr, name.split("."), module)
        except AttributeError:
            found = None
        self.tokens.append(f"named {getattr(value, '__module__', None)}.{name}")
        if found is value and module is not None:
            self.write(module)
        else:
            self._opaque(value)

    def _opaque(self, value: Any) -> None:
        self.tokens.append("opaque " + type_name(value))
        self.write(type(value))
        self.complete = False
        self.hides |= type(value) not in _EMPTY


class _Numbering(Writer):
    """Writes out a value object by object, each with the numbers of those that it refers to."""

    def __init__(self, follow: Callable[[Any], str], is_own: Callable[[types.FunctionType], bool]) -> None:
        super().__init__(follow, is_own)
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []

    def write_all(self, value: Any) -> None:
        self.write(value)
        for one in self._objects:  # grows while it is walked
            self.tokens.append("is")
            self.write_parts(one)

    def part(self, kind: type, value: Any) -> None:
        if kind is tuple and all(type(item) in _ATOMS for item in value):
            # Which may be one object, or several, as Python likes.
            self.tokens.append(f"({', '.join(_atom(type(item), item) for item in value)})")
            return
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        self.tokens.append(f"object {self._numbers[id(value)]}")

    def _set(self, name: str, items: list[Any]) -> None:
        """Write a set in the order of what its items are by themselves, if that tells them apart."""
        ordered = {combined(_alone(item, self._follow, self._is_own)): item for item in items}
        if len(ordered) < len(items):
            self.complete, self.hides = False, True
        self._many(name, [item for _, item in sorted(ordered.items())])


def _alone(value: Any, *given: Any) -> list[str]:
    writer = _Alone(*given)
    writer.write(value) if type(value) in _ATOMS else writer.write_parts(value)
    return writer.tokens


class _Alone(Writer):
    """Writes out one object without what it refers to."""

    def part(self, kind: type, value: Any) -> None:
        if kind in (dict, list, tuple) and not self._open:
            super().part(kind, value)
        else:
            self.tokens.append(type_name(value))


def _atom(kind: type, value: Any) -> str:
    if kind is int:
        return f"int {value:x}"  # Python refuses to print a huge number in decimal
    if isinstance(value, (bytes, str)) and len(value) > _LONG:
        content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        return f"{kind.__name__} {digest_of(content)}"
    return f"{kind.__name__} {value!r}"


def _state_of(kind: type, value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that an object has of its own, by name."""
    owner = threading.local if issubclass(kind, threading.local) else object
    with contextlib.suppress(AttributeError):
        yield from owner.__getattribute__(value, "__dict__").items()
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            for name, member in vars(base).items():
                if type(member) is types.MemberDescriptorType:
                    with contextlib.suppress(AttributeError):  # it has no value
                        yield name, member.__get__(value)


def _is_looked_up(function: Any, arguments: Any, state: list[Any]) -> bool:
    """Whether pickle would look an object up by name, rather than make one like it."""
    if type(function) is not types.FunctionType or any(part is not None for part in state):
        return False
    return all(type(argument) in _ATOMS for argument in arguments)


def _cell(cell: Any) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty: the name is bound later
        return ()


def _wrapped(value: Any) -> Any:
    """The function behind a wrapper written in C, or behind one of Upshift's own objects."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "upshift" or kind is functools._lru_cache_wrapper:
        return getattr(value, "__wrapped__", None) or getattr(value, "function", None)
    return None


def _attributes(value: Any) -> tuple[dict[str, Any], ...]:
    """What somebody has set on a wrapper, beside what it says of the function in it."""
    own = {
        n: part
        for n, part in (getattr(value, "__dict__", None) or {}).items()
        if n[:2] != "__" and n != "cache_parameters"
    }
    return (own,) if own and type(value) is functools._lru_cache_wrapper else ()


def _current(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (variable.get(),)
    except LookupError:
        return ()


def _of_ctypes(kind: type, value: Any) -> str | None:
    """What a shared library, or a function of one, is called: its address is another one in each process."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None and issubclass(kind, ctypes.CDLL):
        return f"library {value._name}"
    if ctypes is not None and issubclass(kind, ctypes._CFuncPtr):
        return f"function {getattr(value, '__name__', '')}"
    return None


def type_name(value: object) -> str:
    """The full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
