"""Values as plain JSON: what people read, compare and write again, beside the content itself.

A dataclass, an attrs class, a pydantic model or a named tuple is an object with its type under ``$type``.
What JSON has no form for is an object with its type and a text instead, which no parameter is read from::

    {"$type": "train.Config", "lr": 0.1, "depths": [2, 4], "weights": {"$type": "numpy.ndarray"},
     "act": {"$type": "function", "$text": "relu"}}
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import attrs

TYPE, TEXT, ARTIFACT = "$type", "$text", "$artifact"
UNKNOWN: Any = attrs.NOTHING
"""In place of the plain form of a value that has none."""

MOST = 2_000
"""Values inside one that are told, as a rule; a container that holds more is told by its length."""
_DEEPEST = 20
_LONGEST = 10_000
"""Characters of a text that is kept."""
_TELLING = (
    *(enum.Enum, Mapping, list, tuple, set, frozenset, types.SimpleNamespace, datetime.date, datetime.time),
    *(datetime.timedelta, decimal.Decimal, complex, type),
)
_SHORT = 200
"""Characters that an object may say of itself."""


def plain_of(value: object, most: int = MOST) -> Any:
    """The plain form of a value; ``UNKNOWN`` where it would say nothing, as of a table."""
    try:
        plain = _Walk(most).plain(value, 0)
    except Exception:  # whatever the user's own attributes and texts raise
        return UNKNOWN
    return plain if any(not is_opaque(leaf) for leaf in flat(plain).values()) else UNKNOWN


def opaque(kind: str, text: str | None = None) -> dict[str, str]:
    """The plain form of a value that JSON has none for."""
    return {TYPE: kind} if text is None else {TYPE: kind, TEXT: text}


def is_opaque(plain: Any) -> bool:
    """Whether a plain form stands for a value without saying what it is."""
    return isinstance(plain, dict) and TYPE in plain and plain.keys() <= {TYPE, TEXT}


def flat(plain: Any, name: str = "") -> dict[str, Any]:
    """The values inside one by their dotted names: ``optimizer.lr``, ``stages.0.depth``.

    A list of scalars is one value. An empty container is one, and so is what ``is_opaque``.
    """
    found: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        fields = dict(_parts(value))
        if not fields:
            found[path] = value
        for key, part in fields.items():
            walk(part, f"{path}.{key}" if path else key)

    walk(plain, name)
    return found


def words(plain: Any) -> str:
    """A plain form in a line: ``0.1``, ``'adam'``, ``Config(lr=0.1, depths=[2, 4])``."""
    if isinstance(plain, dict):
        if ARTIFACT in plain:
            return f"{plain[ARTIFACT]}@{plain['version']}"
        if is_opaque(plain):
            return str(plain.get(TEXT) or f"<{plain[TYPE]}>")
        fields = [(key, words(value)) for key, value in plain.items() if key != TYPE]
        if TYPE in plain:
            return f"{short_type(plain[TYPE])}({', '.join(f'{key}={text}' for key, text in fields)})"
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in fields) + "}"
    if isinstance(plain, list):
        return f"[{', '.join(map(words, plain))}]"
    return repr(plain)


def changes(before: Any, now: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """The dotted names whose values differ, with both; ``UNKNOWN`` where one side has no such name."""
    old, new = flat(before, name), flat(now, name)
    for key in {**new, **old}:
        one, other = old.get(key, UNKNOWN), new.get(key, UNKNOWN)
        if one != other or type(one) is not type(other):
            yield key, one, other


def short_type(name: str) -> str:
    """The name of a class without its module."""
    return name.rpartition(".")[2]


def type_name(value: object) -> str:
    """The full name of a value's type, for people."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def has_parts(value: object) -> bool:
    """Whether the plain form of a value that is not valid JSON may say something of it."""
    kind = type(value)
    if kind.__module__ == "numpy":
        return getattr(value, "shape", None) == ()
    return issubclass(kind, _TELLING) or fields_of(kind) is not None


def fields_of(kind: Any) -> dict[str, tuple[str, bool]] | None:
    """What an object of this class is made from: by name its attribute, and whether it is to be shown."""
    if dataclasses.is_dataclass(kind):
        return {f.name: (f.name, f.repr) for f in dataclasses.fields(kind) if f.init}
    if attrs.has(kind):
        return {f.alias or f.name: (f.name, f.repr is not False) for f in attrs.fields(kind) if f.init}
    if hasattr(kind, "model_validate") and isinstance(getattr(kind, "model_fields", None), dict):
        return {name: (name, bool(getattr(f, "repr", True))) for name, f in kind.model_fields.items()}
    if issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return {name: (name, True) for name in kind._fields}
    return None


def _parts(plain: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(plain, dict) and not is_opaque(plain) and ARTIFACT not in plain:
        yield from ((key, value) for key, value in plain.items() if key != TYPE)
    elif isinstance(plain, list) and any(isinstance(item, dict) for item in plain):
        yield from ((str(index), item) for index, item in enumerate(plain))


class _Walk:
    """One value, from the outside in, until it has said enough."""

    def __init__(self, most: int) -> None:
        self._left = most

    def plain(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if isinstance(value, enum.Enum):
            return value.name or words(value.value)
        scalar = _scalar(value)
        if scalar is not UNKNOWN:
            return scalar
        if depth == _DEEPEST or self._left < 0:
            return opaque(type_name(value))
        fields = fields_of(type(value))
        if fields is not None:
            told = {
                name: self.plain(getattr(value, attribute), depth + 1)
                if shown
                else opaque(type_name(getattr(value, attribute)))
                for name, (attribute, shown) in fields.items()
            }
            told |= self._items(getattr(value, "__pydantic_extra__", None) or {}, depth)
            return {TYPE: type_name(value), **told}
        if isinstance(value, types.SimpleNamespace) or type_name(value) == "argparse.Namespace":
            return {TYPE: type_name(value), **self._items(vars(value), depth)}
        if isinstance(value, Mapping):
            return self._items(value, depth) if len(value) <= self._left else _long(value)
        if isinstance(value, (list, tuple, set, frozenset)) or _is_list(value):
            if len(value) > self._left:
                return _long(value)
            items = [self.plain(item, depth + 1) for item in value]
            return sorted(items, key=repr) if isinstance(value, (set, frozenset)) else items
        return _object(value)

    def _items(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        return {_key(key): self.plain(item, depth + 1) for key, item in value.items()}


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return finite(float(value))
    if isinstance(value, str):
        text = str(value)
        return text if len(text) <= _LONGEST else opaque("str", repr(text[:_SHORT]) + f"… ({len(text):,})")
    if isinstance(value, (PurePath, decimal.Decimal, complex)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return opaque("bytes", f"<{len(value):,} bytes>")
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return _scalar(value.item())  # a number of NumPy, or a tensor of one
    return UNKNOWN


def finite(number: float) -> float | str:
    """A number as JSON has it, which knows none that is not finite."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _key(key: Any) -> str:
    return key if isinstance(key, str) else key.name if isinstance(key, enum.Enum) else str(key)


def _is_list(value: Any) -> bool:
    """A list of a library for configurations: ``omegaconf.ListConfig``."""
    return type(value).__name__ == "ListConfig" and isinstance(value, Collection)


def _long(value: Collection[Any]) -> dict[str, str]:
    return opaque(type_name(value), f"<{len(value):,} items>")


def _object(value: Any) -> dict[str, str]:
    """A class or function by its name; another object by what it says of itself, if that is a few words."""
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return opaque(type(value).__name__, value.__qualname__)
    kind: Any = type(value)
    silent = kind.__repr__ is object.__repr__
    if silent or any(hasattr(kind, name) for name in ("__len__", "__iter__", "__array__", "parameters")):
        return opaque(type_name(value))
    text = repr(value)
    told = len(text) <= _SHORT and "\n" not in text and " at 0x" not in text
    return opaque(type_name(value), text if told else None)
