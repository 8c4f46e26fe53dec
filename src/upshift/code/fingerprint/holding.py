"""What functions hold: the variables of their closure, and the default values of their arguments."""

from __future__ import annotations

from types import FunctionType
from typing import Any

NO_DEFAULTS = ""
"""What :func:`written_out` gives where there are none."""
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})


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
    # A decorator may have given it those of another function, and so more than it has arguments.
    names = [str(number) for number in range(len(positional) - code.co_argcount)]
    names += code.co_varnames[max(0, code.co_argcount - len(positional)) : code.co_argcount]
    return {**dict(zip(names, positional, strict=True)), **(function.__kwdefaults__ or {})}


def live_defaults(function: FunctionType) -> str | None:
    """What :func:`written_out` gives for the default values that a function has now."""
    positional, named = function.__defaults__, function.__kwdefaults__
    return written_out(positional or (), named or {}) if positional or named else NO_DEFAULTS


def written_out(positional: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """Default values as source spells them out; None where one of them is more than a literal."""
    values = (*positional, *named.values())
    if not values:
        return NO_DEFAULTS
    if not (_PLAIN.issuperset(map(type, values)) or _is_plain(values)):
        return None
    try:
        return f"{positional!r} {sorted(named.items())!r}" if named else repr(positional)
    except ValueError:  # Python refuses to print a huge number in decimal
        return None


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))
