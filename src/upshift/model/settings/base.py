"""What every settings class has in common: unknown fields are refused where the user wrote them."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import attrs

from upshift.errors import SettingsError, suggestion, user_location

T = TypeVar("T", bound=type)


def refuse_unknown_fields(cls: T) -> T:
    """Class decorator for attrs settings: an unknown or positional argument names the right ones.

    attrs alone raises ``TypeError: __init__() got an unexpected keyword argument``, which names
    neither the nearest field nor the user's line. A class may say in ``_elsewhere`` what other
    tools' names for its fields are here.
    """
    names = [field.name for field in attrs.fields(cls) if field.init]
    elsewhere = getattr(cls, "_elsewhere", {})
    original = cls.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **fields: Any) -> None:
        if args:
            raise SettingsError(
                f"{cls.__name__} takes its fields by name, not by position",
                where=user_location(),
                fix=f"Fields: {', '.join(names)}.",
            )
        for name in fields:
            if name not in names:
                raise SettingsError(
                    f"{cls.__name__} has no field {name!r}",
                    where=user_location(),
                    fix=f"Say {elsewhere[name]}." if name in elsewhere else suggestion(name, names),
                )
        original(self, **fields)

    cls.__init__ = __init__  # type: ignore[misc]
    return cls


def bad_value(owner: str, field: str, value: object, expected: str, *, meant: object = None) -> SettingsError:
    """The error for a value that makes no sense: field, value, what was meant, what is allowed, the line."""
    return SettingsError(
        f"{owner}: {field}={value!r} makes no sense",
        where=user_location(),
        fix=(f"Did you mean {meant!r}? " if meant else "") + f"Expected {expected}.",
    )
