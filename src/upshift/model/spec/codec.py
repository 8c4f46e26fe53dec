"""Frozen attrs classes to JSON and back, without loss.

Plain data only: scalars, ``None``, tuples, dictionaries with string keys, other such classes, and
unions of such classes that carry a ``kind``. Fields at their default are left out; fields that a
reader does not know are ignored, so that a newer minor writer does not break an older reader.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from json import dumps, loads  # a step may put something else in their place
from typing import Any, TypeVar

import attrs

T = TypeVar("T")
Decoder = Callable[[Any], Any]

_AS_IT_IS = frozenset([str, int, float, bool, type(None)])


def encode(value: Any) -> Any:
    """The JSON form of plain data.

    Raises
    ------
    TypeError
        The value is not plain data.
    """
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    fields = _fields(type(value))  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
    kind = getattr(value, "kind", None)
    data: dict[str, Any] = {"kind": kind} if kind else {}
    for name, default in fields:
        item = getattr(value, name)
        if item is not default and item != default:
            data[name] = item if type(item) in _AS_IT_IS else encode(item)
    return data


def decode(cls: type[T], data: Any) -> T:
    """The instance of ``cls`` that ``data`` is the JSON form of.

    Raises
    ------
    ValueError
        The data does not fit the class.
    """
    try:
        return _decoder(cls)(data)  # type: ignore[no-any-return, arg-type]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a {cls.__name__}: {error!r}") from error


def to_json(value: Any) -> bytes:
    """Compact UTF-8 JSON of plain data. Halves of surrogate pairs, which UTF-8 has none of, become ``?``."""
    return dumps(encode(value), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def from_json(cls: type[T], text: bytes | str) -> T:
    """The inverse of :func:`to_json`.

    Raises
    ------
    ValueError
        Not JSON, or it does not fit the class.
    """
    return decode(cls, loads(text))


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, Any], ...]:
    if not attrs.has(cls):
        raise TypeError(f"{cls.__name__} is not plain data")
    return tuple((f.name, _default(f)) for f in attrs.fields(cls) if f.init)


def _default(field: Any) -> Any:
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
        return field.default.factory()
    return field.default


def _as_it_is(data: Any) -> Any:
    return data


@functools.cache
def _decoder(hint: Any) -> Decoder:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _decoder(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return _union(hint)
    if origin is tuple:
        item = _Lazy(typing.get_args(hint)[0])
        return lambda data: tuple([item(entry) for entry in data])
    if origin in (dict, Mapping, typing.get_origin(Mapping[str, int])):
        item = _Lazy(typing.get_args(hint)[1])
        return lambda data: {key: item(entry) for key, entry in data.items()}
    if isinstance(hint, type) and attrs.has(hint):
        return _record(hint)
    return _as_it_is  # an int where a float may be stays one: 4 CPUs, not 4.0


def _record(cls: Any) -> Decoder:
    names = {f.name for f in attrs.fields(cls) if f.init}
    nested: dict[str, Decoder] | None = None

    def build(data: Any) -> Any:
        nonlocal nested
        if nested is None:  # at the first use, so that classes may refer to themselves
            hints = typing.get_type_hints(cls, include_extras=True)
            decoders = {name: _decoder(hints[name]) for name in names}
            nested = {name: decode for name, decode in decoders.items() if decode is not _as_it_is}
        known = {name: value for name, value in data.items() if name in names}
        for name in nested.keys() & known.keys():
            known[name] = nested[name](known[name])
        return cls(**known)

    return build


def _union(hint: Any) -> Decoder:
    members = typing.get_args(hint)
    kinds = {m.kind: _Lazy(m) for m in members if getattr(m, "kind", None)}
    others = [m for m in members if m is not type(None) and not getattr(m, "kind", None)]
    other = _Lazy(others[0]) if others else None
    if not kinds and all(_decoder(member) is _as_it_is for member in others):
        return _as_it_is

    def build(data: Any) -> Any:
        if data is None:
            return None
        if kinds and isinstance(data, dict) and data.get("kind") in kinds:
            return kinds[data["kind"]](data)
        if other is None:
            raise KeyError(f"kind {data.get('kind')!r} is none of {sorted(kinds)}")
        return other(data)

    return build


class _Lazy:
    """A decoder that is looked up at its first use, so that classes may refer to themselves."""

    __slots__ = ("_decode", "_hint")

    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._decode: Decoder | None = None

    def __call__(self, data: Any) -> Any:
        if self._decode is None:
            self._decode = _decoder(self._hint)
        return self._decode(data)
