"""What is inside a value: the code that it names, and the parts that are saved by themselves.

A step that calls ``data.clean()`` names no class; what it computes depends on that of its input all the
same. So the names are kept with the value, and what they stand for is looked up when a key is made.

Parts that are saved by themselves are files, and data that is only named. They are looked for in
dictionaries, lists, tuples, sets and records (dataclasses, attrs, pydantic), nested as they are. Of an object
of any other class it is not known what a path in it means: it is pickled as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from upshift.errors import is_user_file
from upshift.runtime.storage.external import External

_LEFT_OUT = sys.stdlib_module_names | {"upshift", "cloudpickle"}
"""The version of Python counts for its own classes, in every key; the others only carry the value."""


def code_names(objects: Iterable[Any]) -> tuple[str, ...]:
    """What these classes, functions and modules are called, ``module:qualname``, in order of the alphabet.

    Those of Python itself are left out, and of each installed package one stands for all: its version
    counts. So are those that are defined within a function or in a notebook, which travel by value.
    """
    names = set()
    installed: dict[str, str] = {}
    for found in objects:
        module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
        if isinstance(found, ModuleType):
            module, qualname = found.__name__, ""
        if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
            continue
        top = module.partition(".")[0]
        place = _place(top)
        if top in _LEFT_OUT or place is None:
            continue
        name = f"{module}:{qualname}"
        if not is_user_file(place):
            installed[top] = min(name, installed.get(top, name))
        else:
            names.add(name)
    return tuple(sorted({*names, *installed.values()}))


def _place(top: str) -> str | None:
    """The file or folder of a module at the top level; None: it is made in memory."""
    module = sys.modules.get(top)
    file = getattr(module, "__file__", None)
    return file or next(iter(getattr(module, "__path__", ())), None)


def is_users(kind: type) -> bool:
    """Whether a class is the user's own."""
    top = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    place = None if top in _LEFT_OUT else _place(top)
    return top == "__main__" or (place is not None and is_user_file(place))


_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


def is_saved_apart(kind: object) -> bool:
    """Whether what is of this class has a serializer of its own, also inside a container."""
    return kind is External or (isinstance(kind, type) and issubclass(kind, Path))


def holds_parts(value: object) -> bool:
    """Whether there are any in a value."""
    return next(parts_of(value), None) is not None


def parts_of(
    value: object,  # one of them, or a container of them; in anything else nothing is found
    name: str = "",  # what the value is called
) -> Iterator[tuple[str, Path | External]]:
    """The files, and data that is only named, in a value: each once, with the Python that leads to it."""
    seen: dict[int, object] = {}  # kept, so that no other object gets an id of theirs
    pending: list[tuple[str, Any]] = [(name, value)]
    while pending:
        where, part = pending.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if is_saved_apart(type(part)):
            yield where, part
        else:
            pending += reversed([(where + step, inner) for step, inner in _inside(part)])


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if not _plain(value.values()):
            yield from ((f"[{_shown(key)}]", item) for key, item in value.items())
        if not _plain(value):
            yield from ((f".keys()[{_shown(key)}]", key) for key in value)
    elif isinstance(value, (list, tuple)):
        if not _plain(value):
            yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        if not _plain(value):
            yield from ((f".{{{_shown(item)}}}", item) for item in value)
    else:
        for field in _fields(type(value)):  # type: ignore[arg-type]  # a class is hashable
            yield f".{field}", getattr(value, field, None)


def _shown(key: object) -> str:
    try:
        return repr(key)
    except Exception:  # the user's __repr__ raises
        return f"<{type(key).__qualname__}>"


@functools.cache
def _fields(kind: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if attrs.has(kind):
        return tuple(field.name for field in attrs.fields(kind))
    fields = getattr(kind, "model_fields", None)  # pydantic
    return tuple(fields) if isinstance(fields, dict) else ()


def _plain(items: Any) -> bool:
    """Whether none of these can hold anything; of a million numbers that is soon seen."""
    return set(map(type, items)) <= _ATOMS
