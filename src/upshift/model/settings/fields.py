"""What every settings class has in common: what is invalid is refused where the user wrote it."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from upshift.errors import SettingsError, suggestion, user_location
from upshift.model.checks import MOST_TEXT, shown, unfit

T = TypeVar("T", bound=type)


class Told:
    """A converter that is told its field; attrs' own one needs 24.1, and images bring an older attrs."""

    def __init__(self, convert: Callable[[Any, Any], Any]) -> None:
        self._convert = convert
        self.field: Any = None

    def __call__(self, value: Any) -> Any:
        return self._convert(value, self.field)


def refuse_unknown_fields(cls: T) -> T:
    """Class decorator for attrs settings: an unknown or positional argument names the right ones.

    attrs alone raises ``TypeError: __init__() got an unexpected keyword argument``, which names
    neither the nearest field nor the user's line. A class may say in ``_elsewhere`` what other
    tools' names for its fields are here.
    """
    names = [field.name for field in attrs.fields(cls) if field.init]
    for field in attrs.fields(cls):
        if isinstance(field.converter, Told):
            field.converter.field = field
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
    """The error for a value that is invalid: field, value, what was meant, what is allowed, the line."""
    return SettingsError(
        f"{owner}: {field}={shown(value)} is invalid",
        where=user_location(),
        fix=(f"Did you mean {shown(meant)}? " if meant else "") + f"Expected {expected}.",
    )


def number(
    owner: str,
    field: str,
    value: Any,
    *,
    least: float = 0,
    most: float,
    whole: bool = False,
    what: str | None = None,
) -> Any:
    """A number within its limits, as an ``int`` where it is whole; NumPy's too.

    Parameters
    ----------
    what
        What is expected; default: a number, or a whole one, and the limits follow.

    Raises
    ------
    SettingsError
        It is none, or outside the limits.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and least <= value <= most and (not whole or value % 1 == 0):
        return int(value) if value % 1 == 0 else float(value)
    kind = what or ("a whole number" if whole else "a number")
    raise bad_value(owner, field, value, f"{kind} from {least:,g} to {most:,}")


def text(owner: str, field: str, value: Any, *, most: int = MOST_TEXT) -> str | None:
    """A line of text, or None, as :func:`line` checks it."""
    return None if value is None else line(owner, field, value, most=most)


def line(owner: str, field: str, value: Any, *, most: int = MOST_TEXT) -> str:
    """A line of text.

    Raises
    ------
    SettingsError
        It is no text, is empty, too long, or holds what is no part of a line.
    """
    if not isinstance(value, str) or not value.strip():
        raise bad_value(owner, field, value, "a non-empty string")
    problem = unfit(value) or (f"has {len(value):,} characters" if len(value) > most else None)
    if problem is not None:
        raise SettingsError(
            f"{owner}: {field} {problem}",
            where=user_location(),
            fix=f"Expected one line of at most {most:,} characters.",
        )
    return value
