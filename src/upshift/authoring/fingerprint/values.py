"""The digest of a live value, by content: the same in every process that holds an equal value.

Plain data is written out; everything else through what :mod:`pickle` would store of it, whatever
the order of its sets and whether two equal parts are one object. Functions, classes and modules
inside are not written out but handed to the caller, who follows them. A part that cannot be stored (a
lock, a connection) counts by its type alone, and the caller is told.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from upshift.authoring.fingerprint.digests import combined
from upshift.store.digest import digest_of

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_LONG = 1000
_GENERIC_ALIASES = (types.GenericAlias, types.UnionType)


def is_module(value: object) -> bool:
    """Whether it is a module. Not ``isinstance``, which asks a proxy what it claims to be."""
    return issubclass(type(value), types.ModuleType)


def is_code(value: object) -> bool:
    """Whether it is a function, class or module: what is followed rather than written out."""
    kind = type(value)
    return kind is types.FunctionType or issubclass(kind, (type, types.ModuleType))


def value_digest(value: object, follow: Callable[[Any], str]) -> tuple[str, bool]:
    """The digest of a value.

    Parameters
    ----------
    value
        Any object.
    follow
        Called with each function, class and module in it; gives its name.

    Returns
    -------
    str
        The digest.
    bool
        Whether the digest says everything about the value.
    """
    if type(value) in _ATOMS:
        return combined([_atom(type(value), value)]), True
    writer = _Writer(follow)
    try:
        writer.write(value)
    except RecursionError:
        return combined([_type_name(value)]), False
    return combined(writer.tokens), writer.complete


class _Writer:
    def __init__(self, follow: Callable[[Any], str]) -> None:
        self.tokens: list[str] = []
        self.complete = True
        self._follow = follow
        self._open: dict[int, int] = {}

    def write(self, value: Any) -> None:
        kind = type(value)
        if kind in _ATOMS:
            self.tokens.append(_atom(kind, value))
        elif is_code(value):
            self.tokens.append("code " + self._follow(value))
        elif id(value) in self._open:
            self.tokens.append(f"again {len(self._open) - self._open[id(value)]}")
        else:
            self._open[id(value)] = len(self._open)
            self._compound(kind, value)
            del self._open[id(value)]

    def _compound(self, kind: type, value: Any) -> None:
        if kind in (list, tuple):
            self._many(kind.__name__, value)
        elif kind is dict:
            self._many("dict", [part for item in value.items() for part in item])
        elif kind in (set, frozenset):
            self._set(kind.__name__, value)
        elif kind in (bytearray, memoryview):
            self.tokens.append(_atom(kind, bytes(value)))
        elif issubclass(kind, enum.Enum):
            self._many("enum", (kind, value.name, value._value_))
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
        elif kind in _GENERIC_ALIASES:
            self._many("alias", (getattr(value, "__origin__", None), value.__args__))
        elif _wrapped(value) is not None:
            self._many("wrapper " + _type_name(value), (_wrapped(value),))
        else:
            self._reduced(kind, value)

    def _many(self, name: str, parts: Any) -> None:
        self.tokens.append(f"{name} (")
        for part in parts:
            self.write(part)
        self.tokens.append(")")

    def _set(self, name: str, items: Any) -> None:
        outer, digests = self.tokens, []
        for item in items:
            self.tokens = []
            self.write(item)
            digests.append(combined(self.tokens))
        self.tokens = outer
        self.tokens.append(f"{name} {sorted(digests)}")

    def _builtin(self, value: Any) -> None:
        owner = value.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            self.tokens.append(f"builtin {value.__module__}.{value.__qualname__}")
            if owner is not None:
                self.write(owner)
        else:
            self._many(f"builtin {value.__name__}", (owner,))

    def _reduced(self, kind: type, value: Any) -> None:
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except RecursionError:
            raise
        except Exception:  # a user's or a library's own method, which may raise anything
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
        self.tokens.append("opaque " + _type_name(value))
        self.write(type(value))
        self.complete = False


def _atom(kind: type, value: Any) -> str:
    if kind is int:
        return f"int {value:x}"  # Python refuses to print a huge number in decimal
    if isinstance(value, (bytes, str)) and len(value) > _LONG:
        content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        return f"{kind.__name__} {digest_of(content)}"
    return f"{kind.__name__} {value!r}"


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


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
