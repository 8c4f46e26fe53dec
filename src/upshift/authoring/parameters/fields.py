"""Single fields of a parameter: ``config.optimizer.lr=0.1`` in the object, dictionary or list that it is.

What is not named stays as it was: as the file of parameters has it, else as the pipeline's default.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from upshift.authoring.parameters.values import (
    Misfit,
    bare,
    fields_needed,
    hint_for,
    hints_of,
    is_union,
    make,
    read_text,
)
from upshift.errors import nearest
from upshift.model.plain import fields_of

UNSET: Any = attrs.NOTHING
Reader = Callable[[Any, Any], Any]
"""Reads a value by an annotation: from text, or from the plain data of a file."""


@attrs.define
class Given:
    """What is said of a parameter, or of one of its fields: a value, and then fields of it.

    Parameters
    ----------
    name
        As it was typed: ``config.optimizer.lr``.
    """

    name: str
    value: Any = attrs.field(factory=lambda: UNSET)
    read: Reader = read_text
    fields: dict[str, Given] = attrs.field(factory=dict)

    def at(self, path: list[str]) -> Given:
        """What is said of a field further in."""
        if not path:
            return self
        key, *rest = path
        inner = self.fields.setdefault(key, Given(f"{self.name}.{key}"))
        return inner.at(rest)


class Unfit(Exception):
    """A value does not fit, or there is no such field.

    Attributes
    ----------
    given
        Which value.
    fix
        What would be right.
    known
        Whether there is a place for the value at all; None: there is.
    """

    def __init__(self, given: Given, fix: str, *, unknown: str | None = None) -> None:
        super().__init__(fix)
        self.given = given
        self.fix = fix
        self.unknown = unknown


def settled(given: Given, hint: Any, current: Any = UNSET) -> Any:
    """The value of a parameter, or of a field.

    Parameters
    ----------
    given
        What is said of it.
    hint
        Its annotation.
    current
        What it is where nothing is said: the default.

    Raises
    ------
    Unfit
    """
    hint = hint_for(hint, None if current is UNSET else current)
    if given.value is not UNSET:
        try:
            current = given.read(given.value, hint)
        except Misfit as misfit:
            raise Unfit(given, f"Expected {misfit}.") from None
    return _with_fields(given, hint, current) if given.fields else current


def dotted_names(name: str, hint: Any, current: Any) -> Iterator[str]:
    """The names that fields of a parameter have, at any depth; none, if it is no object."""
    kind = _record_in(hint) if current is UNSET or current is None else type(current)
    if kind is None or fields_of(kind) is None:
        return
    hints = hints_of(kind)
    for field, (attribute, _) in (fields_of(kind) or {}).items():
        yield f"{name}.{field}"
        inner = UNSET if current is UNSET or current is None else getattr(current, attribute, UNSET)
        if name.count(".") < 5:  # a class may hold its own kind
            yield from dotted_names(f"{name}.{field}", hints.get(field, Any), inner)


def _with_fields(given: Given, hint: Any, current: Any) -> Any:
    if current is UNSET or current is None:
        return _made(given, hint)
    if isinstance(current, Mapping):
        return _items(given, hint, current)
    if isinstance(current, (list, tuple)) and not hasattr(current, "_fields"):
        return _list(given, hint, current)
    kind: Any = type(current)
    known = fields_of(kind)
    if known is None:
        name = next(iter(given.fields.values()))
        raise Unfit(name, f"Write {given.name}=….", unknown=f"{given.name} is {_a(kind)}, without fields")
    hints = hints_of(kind)
    new = {}
    for key, inner in given.fields.items():
        attribute = _known(key, inner, known, kind)
        new[key] = settled(inner, hints.get(key, Any), getattr(current, attribute))
    try:
        return _replaced(current, kind, new)
    except (TypeError, ValueError) as error:
        raise _refused(given, kind, error) from None


def _made(given: Given, hint: Any) -> Any:
    """A new object with these fields, where there was none."""
    kind = _record_in(hint)
    if kind is None:
        if typing.get_origin(bare(hint)) is dict or bare(hint) in (dict, Any):
            return _items(given, hint, {})
        name = next(iter(given.fields.values()))
        raise Unfit(name, f"Write {given.name}=….", unknown=f"{given.name} has no fields that can be set")
    hints, known = hints_of(kind), fields_of(kind) or {}
    new = {}
    for key, inner in given.fields.items():
        _known(key, inner, known, kind)
        new[key] = settled(inner, hints.get(key, Any))
    missing = [name for name, needed in (fields_needed(kind) or {}).items() if needed and name not in new]
    if missing:
        fix = " ".join(f"-p {given.name}.{name}=…" for name in missing)
        raise Unfit(given, f"Add {fix}", unknown=f"{kind.__name__} also needs {', '.join(missing)}")
    try:
        return make(kind, new)
    except (TypeError, ValueError) as error:
        raise _refused(given, kind, error) from None


def _items(given: Given, hint: Any, current: Mapping[Any, Any]) -> Any:
    key_hint, value_hint = typing.get_args(_dict_in(hint)) or (Any, Any)
    new = dict(current)
    for text, inner in given.fields.items():
        try:
            key = text if text in new else read_text(text, key_hint)
        except Misfit as misfit:
            raise Unfit(
                inner, f"A key is {misfit}.", unknown=f"{text!r} is not a key of {given.name}"
            ) from None
        new[key] = settled(inner, value_hint, new.get(key, UNSET))
    return new


def _list(given: Given, hint: Any, current: list[Any] | tuple[Any, ...]) -> Any:
    arguments = typing.get_args(_member(hint, lambda member: typing.get_origin(member) in (list, tuple)))
    new = list(current)
    for text, inner in given.fields.items():
        if not (text.isdecimal() and len(text) < 10 and int(text) < len(new)):
            there = f"{given.name}.0 to {given.name}.{len(new) - 1}" if new else "nothing"
            raise Unfit(
                inner, f"It holds {there}.", unknown=f"{given.name} is a list without an item {text!r}"
            )
        index = int(text)
        item = Any if not arguments else arguments[index if len(arguments) > index else 0]
        new[index] = settled(inner, item, new[index])
    return tuple(new) if isinstance(current, tuple) else new


def _replaced(current: Any, kind: Any, new: Mapping[str, Any]) -> Any:
    if dataclasses.is_dataclass(kind):
        return dataclasses.replace(current, **new)
    if attrs.has(kind):
        return attrs.evolve(current, **new)
    if hasattr(kind, "_fields"):
        return current._replace(**new)
    whole = {name: getattr(current, name) for name in current.model_fields_set} | dict(new)
    return make(kind, whole)


def _known(key: str, inner: Given, known: Mapping[str, tuple[str, bool]], kind: Any) -> str:
    if key in known:
        return known[key][0]
    close = nearest(key, known)
    fix = f"Did you mean {inner.name.rpartition('.')[0]}.{close}? " if close else ""
    fix += f"Fields: {', '.join(known) or 'none'}."
    raise Unfit(inner, fix, unknown=f"{kind.__name__} has no field {key!r}")


def _refused(given: Given, kind: Any, error: Exception) -> Unfit:
    from upshift.authoring.parameters.values import said_by

    told = f"{kind.__name__} reports: {said_by(error)}"
    if len(given.fields) == 1:
        (inner,) = given.fields.values()
        if inner.value is not UNSET:
            return Unfit(inner, told)
    return Unfit(given, told, unknown="the values do not fit")


def _record_in(hint: Any) -> Any:
    """The class with fields that an annotation names, if there is one."""
    found = _member(hint, lambda member: isinstance(member, type) and fields_of(member) is not None)
    return found if isinstance(found, type) and fields_of(found) is not None else None


def _dict_in(hint: Any) -> Any:
    return _member(hint, lambda member: typing.get_origin(member) is dict)


def _member(hint: Any, fits: Callable[[Any], bool]) -> Any:
    hint = bare(hint)
    if is_union(hint):
        return next((bare(m) for m in typing.get_args(hint) if fits(bare(m))), hint)
    return hint


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
