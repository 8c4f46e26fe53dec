"""What functions hold: the variables of their closure, and the default values of their arguments."""

from __future__ import annotations

from types import FunctionType
from typing import Any


def cells_of(function: FunctionType) -> dict[str, Any]:
    """The free variables of a function that are bound, by name."""
    found: dict[str, Any] = {}
    closure = function.__closure__
    if closure is None:
        return found
    for name, cell in zip(function.__code__.co_freevars, closure, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # its variable is not bound yet
            continue
    return found


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """The default values of a function's arguments, by name."""
    code = function.__code__
    positional = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(positional) : code.co_argcount]
    return {**dict(zip(names, positional, strict=True)), **(function.__kwdefaults__ or {})}
