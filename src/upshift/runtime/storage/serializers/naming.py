"""The code that a saved value brings along by name: the classes and functions that it is made of.

A step that calls ``data.clean()`` names no class; what it computes depends on that of its input all the
same. So the names are kept with the value, and what they stand for is looked up when a key is made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from upshift.errors import is_user_file

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
