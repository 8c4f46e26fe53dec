"""Parameter values as people write them, read by annotation.

On the command line a value is text: ``--param lr=0.1``, JSON for lists and dictionaries. In a file
it is what JSON or TOML made of it. A value that does not fit its annotation is a :class:`Misfit`.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import attrs

from upshift.model.plain import TYPE, fields_of, short_type
from upshift.model.spec.calls import Unresolved, parameter_hints

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_LISTS: Mapping[Any, Callable[[Any], Any]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}
_ABSTRACT: Mapping[Any, Any] = {
    typing.get_origin(typing.Sequence[int]): list,
    typing.get_origin(typing.Iterable[int]): list,
    typing.get_origin(typing.Collection[int]): list,
    typing.get_origin(typing.Mapping[str, int]): dict,
    typing.get_origin(typing.MutableMapping[str, int]): dict,
    typing.get_origin(typing.MutableSequence[int]): list,
}
_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?:{}W)?(?:{}D)?(?:T(?=.)(?:{}H)?(?:{}M)?(?:{}S)?)?".format(
        *(rf"(?P<{unit}>\d+(?:[.,]\d+)?)" for unit in ("weeks", "days", "hours", "minutes", "seconds"))
    )
)
"""A duration of ISO 8601 without years and months, which have no fixed length."""


class Misfit(Exception):
    """A value does not fit; the text says what was expected."""


class AnyJson:
    """Annotates any value that JSON has; a text has to be JSON."""


def hint_for(hint: Any, default: Any) -> Any:
    """What to read a value by: the annotation, else the type of the default, else anything."""
    if hint is not inspect.Parameter.empty and not isinstance(hint, (Unresolved, str)):
        return hint
    return type(default) if isinstance(default, _TELLING) else Any


def read_text(text: str, hint: Any) -> Any:
    """The value that ``text`` is, on the command line.

    Raises
    ------
    Misfit
    """
    hint = bare(hint)
    arguments = typing.get_args(hint)
    if is_union(hint):
        return _union(hint, lambda member: read_text(text, member))
    if hint is type(None):
        if text.lower() in ("none", "null"):
            return None
        raise Misfit("null")
    if typing.get_origin(hint) is typing.Literal:
        for choice in arguments:
            if text == (choice.name if isinstance(choice, enum.Enum) else str(choice)):
                return choice
        raise Misfit(expected(hint))
    if hint is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise Misfit(expected(hint))
    if hint in (int, float, complex):
        try:
            return hint(text)
        except ValueError:
            raise Misfit(expected(hint)) from None
    if hint is str:
        return text
    if isinstance(hint, type) and (issubclass(hint, (enum.Enum, PurePath)) or _written(hint)):
        return fit(text, hint)
    try:
        data = json.loads(text)
    except ValueError:
        if hint is Any:
            return text
        raise Misfit(expected(hint)) from None
    return fit(data, hint)


def fit(data: Any, hint: Any) -> Any:
    """The value that plain ``data`` (of JSON or TOML) is.

    Raises
    ------
    Misfit
    """
    hint = bare(hint)
    origin = _origin(hint)
    if hint is Any or hint is AnyJson:
        return data
    if is_union(hint):
        return _union(hint, lambda member: fit(data, member))
    if origin is typing.Literal:
        for choice in typing.get_args(hint):
            if data == choice and type(data) is type(choice):
                return choice
        raise Misfit(expected(hint))
    if origin in _LISTS:
        return _list(data, hint, origin)
    if origin is dict:
        return _dict(data, hint)
    if not isinstance(hint, type):
        return data
    return _instance(data, hint)


def expected(hint: Any) -> str:
    """What a value for this annotation looks like, for people."""
    hint = bare(hint)
    origin = _origin(hint)
    if is_union(hint):
        return " or ".join(expected(member) for member in typing.get_args(hint))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if hint is AnyJson:
        return "JSON"
    if hint is bool:
        return "true or false"
    if hint is type(None):
        return "null"
    if hint in (int, float):
        return "a whole number" if hint is int else "a number"
    if isinstance(hint, type) and (written := _written(hint)) is not None:
        return written[0]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(member.name for member in hint)
    if origin in _LISTS:
        inner = [expected(a) for a in typing.get_args(hint) if a is not Ellipsis]
        several = inner and (origin is not tuple or Ellipsis in typing.get_args(hint))
        return "a JSON list" + (f" of {_PLURALS.get(inner[0], inner[0])}" if several else _each(inner))
    if origin is dict or fields_needed(hint) is not None:
        fields = fields_needed(hint)
        return "a JSON object" + (f" with {', '.join(fields)}" if fields else "")
    if isinstance(hint, type) and not (issubclass(hint, (*_SCALARS, PurePath)) or hasattr(hint, _VALIDATES)):
        return f"{hint.__name__}, which cannot be written as text; {_ELSE}"
    return getattr(hint, "__name__", str(hint))


def _each(inner: Sequence[str]) -> str:
    return f": {', '.join(inner)}" if inner else ""


def _instance(data: Any, hint: Any) -> Any:
    if issubclass(hint, enum.Enum):
        for member in hint:
            if data in (member.name, member.value) or str(member.value) == data:
                return member
        raise Misfit(expected(hint))
    recorded = isinstance(data, dict) and TYPE in data
    if recorded:
        _check_type(data[TYPE], hint)
    if hasattr(hint, _VALIDATES) and not (recorded and fields_of(hint)):
        try:
            return hint.model_validate(data)
        except ValueError as error:
            raise Misfit(f"{hint.__name__}: {said_by(error)}") from None
    fields = fields_needed(hint)
    if fields is not None and isinstance(data, dict):
        return _record({key: value for key, value in data.items() if key != TYPE}, hint, fields)
    if hasattr(hint, "_fields") and isinstance(data, (list, tuple)):  # a named tuple, as a list
        return _record(dict(zip(hint._fields, data, strict=False)), hint, fields or {})
    if hint is float and type(data) is int:
        return float(data)
    if isinstance(data, hint) and not (isinstance(data, bool) and hint is not bool):
        return data
    if data == "" and issubclass(hint, PurePath):
        raise Misfit("a path, and not an empty text")
    if isinstance(data, str) and issubclass(hint, PurePath):
        return hint(data)
    written = _written(hint)
    if written is not None and (isinstance(data, str) or (hint in _NUMBERS and type(data) in (int, float))):
        try:
            return written[1](str(data))
        except (ValueError, ArithmeticError):
            raise Misfit(expected(hint)) from None
    raise Misfit(expected(hint))


def _record(data: dict[str, Any], hint: Any, fields: Mapping[str, bool]) -> Any:
    unknown = [name for name in data if name not in fields]
    missing = [name for name, required in fields.items() if required and name not in data]
    if unknown or missing:
        problem = f"unknown field {unknown[0]!r}" if unknown else f"missing field {missing[0]!r}"
        raise Misfit(f"{expected(hint)}; {problem}")
    hints = hints_of(hint)
    values = {}
    for name, value in data.items():
        try:
            values[name] = fit(value, hint_for(hints.get(name, Any), None))
        except Misfit as misfit:
            raise Misfit(f"{hint.__name__}.{name}: {misfit}") from None
    try:
        return make(hint, values)
    except (TypeError, ValueError) as error:
        raise Misfit(f"{hint.__name__}: {said_by(error)}") from None


def fields_needed(hint: Any) -> dict[str, bool] | None:
    """The fields of a class that has some, each with whether it is required; else None."""
    if dataclasses.is_dataclass(hint):
        nothing = dataclasses.MISSING
        return {
            f.name: f.default is nothing and f.default_factory is nothing
            for f in dataclasses.fields(hint)
            if f.init
        }
    if not isinstance(hint, type):
        return None
    if attrs.has(hint):
        return {f.alias or f.name: f.default is attrs.NOTHING for f in attrs.fields(hint) if f.init}
    if fields_of(hint) is None:
        return None
    if hasattr(hint, _VALIDATES):
        return {name: bool(f.is_required()) for name, f in hint.model_fields.items()}  # type: ignore[attr-defined]
    return {name: name not in hint._field_defaults for name in hint._fields}  # type: ignore[attr-defined]


def hints_of(kind: Any) -> dict[str, Any]:
    """The annotations of the fields of a class."""
    if hasattr(kind, _VALIDATES):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return parameter_hints(kind.__new__ if hasattr(kind, "_fields") else kind.__init__)


def make(kind: Any, values: Mapping[str, Any]) -> Any:
    """An object of a class with fields.

    Raises
    ------
    TypeError, ValueError
        The class refuses the values.
    """
    if not hasattr(kind, _VALIDATES):
        return kind(**values)
    aliases = {name: field.validation_alias or field.alias for name, field in kind.model_fields.items()}
    named = {name: alias if isinstance(alias := aliases.get(name), str) else name for name in values}
    return kind.model_validate({named[name]: value for name, value in values.items()})


def said_by(error: Exception) -> str:
    """What an error of the user's own class says; of a pydantic model's, field by field."""
    try:
        found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]  # type: ignore[attr-defined]
    except (AttributeError, TypeError, KeyError):
        return str(error)
    return "; ".join(f"{where}: {text}" if where else text for where, text in found)


def _check_type(name: object, hint: type) -> None:
    """Data that says its own class, as a run's record does, is for no other one."""
    if isinstance(name, str) and short_type(name) != hint.__name__:
        raise Misfit(f"a {hint.__name__}, and not a {short_type(name)}")


def _list(data: Any, hint: Any, origin: Any) -> Any:
    if not isinstance(data, (list, tuple)):
        raise Misfit(expected(hint))
    arguments = typing.get_args(hint)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(data) != len(arguments):
            raise Misfit(expected(hint))
        return tuple(fit(item, argument) for item, argument in zip(data, arguments, strict=True))
    inner = arguments[0] if arguments else Any
    return _LISTS[origin](fit(item, inner) for item in data)


def _dict(data: Any, hint: Any) -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise Misfit(expected(hint))
    key, value = typing.get_args(hint) or (Any, Any)
    return {read_text(k, key) if isinstance(k, str) else k: fit(v, value) for k, v in data.items()}


def _union(hint: Any, read: Callable[[Any], Any]) -> Any:
    members = typing.get_args(hint)
    reasons = {}
    # What fits less comes first: "5" for int | str is 5, and "none" for Path | None is None.
    for member in sorted(members, key=_latitude):
        try:
            return read(member)
        except Misfit as misfit:
            reasons[member] = str(misfit)
    # Of `X | None` the reason why it is no X says more than what X looks like.
    raise Misfit(" or ".join(reasons[member] for member in members))


def _latitude(hint: Any) -> int:
    """How much text fits: nearly all of it is a path, and all of it is a text."""
    if hint in (str, bytes, Any):
        return 2
    return int(isinstance(hint, type) and issubclass(hint, PurePath))


def bare(hint: Any) -> Any:
    """Without ``Annotated``; NewType and TypeVar as what they stand for."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif isinstance(hint, typing.TypeVar):
            hint = hint.__bound__ or Any
        elif hint is None:
            return type(None)
        elif hint is object or isinstance(hint, (Unresolved, str, typing.ForwardRef)):
            return Any
        else:
            return hint


def _origin(hint: Any) -> Any:
    origin = typing.get_origin(hint) or hint
    try:
        return _ABSTRACT.get(origin, origin)
    except TypeError:  # not hashable, and so none of them
        return origin


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _written(hint: type) -> tuple[str, Callable[[str], Any]] | None:
    """What a text for this type looks like, and what reads it; None: no text stands for it."""
    if issubclass(hint, (datetime.date, datetime.time)) and hint not in _WRITTEN:
        return hint.__name__, hint.fromisoformat
    return _WRITTEN.get(hint)


def _duration(text: str) -> datetime.timedelta:
    try:
        return datetime.timedelta(seconds=float(text))
    except ValueError:
        match = _DURATION.fullmatch(text)
        parts = (
            {}
            if match is None
            else {unit: n for unit, n in match.groupdict().items() if n and unit != "sign"}
        )
        if match is None or not parts:
            raise
        length = datetime.timedelta(**{unit: float(n.replace(",", ".")) for unit, n in parts.items()})
        return -length if match["sign"] == "-" else length


_WRITTEN: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    datetime.date: ("a date, 2026-11-21", datetime.date.fromisoformat),
    datetime.datetime: ("a date and time, 2026-11-21T12:30:00", datetime.datetime.fromisoformat),
    datetime.time: ("a time, 12:30:00", datetime.time.fromisoformat),
    datetime.timedelta: ("a duration: seconds, or ISO 8601 such as PT1H30M or P2D", _duration),
    decimal.Decimal: ("a decimal number", decimal.Decimal),
    bytes: ("text", str.encode),
}
"""Types that a text stands for: what it looks like, and how it is read."""
_PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "true or false": "booleans"}
_NUMBERS = (datetime.timedelta, decimal.Decimal)
"""Those of them that a number stands for as well."""
_SCALARS = (bool, int, float, complex, str)
_TELLING = (*_SCALARS, *_WRITTEN, list, dict, tuple, PurePath, enum.Enum)
"""Defaults of these types tell what a parameter without an annotation is."""
_ELSE = "call the pipeline from Python, or let the parameter be what such a value is made from"
_VALIDATES = "model_validate"
"""What models of pydantic have."""
