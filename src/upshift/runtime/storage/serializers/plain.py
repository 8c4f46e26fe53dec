"""Plain values as JSON, and bytes as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.store import Store

_SCALARS = frozenset((str, int, float, bool, type(None)))
_DEEPEST = 100
_LONGEST_INT = 10_000
"""Bits; from about 14,000 on Python refuses to read the digits."""
_RAW = b"\0"
"""Before raw bytes, so that ``b"1"`` and ``1`` are not the same content."""


class JsonSerializer(Serializer):
    """Exactly ``dict`` with strings as keys, ``list``, ``str``, ``int``, ``float``, ``bool`` and None.

    Numbers come back to the last bit; NaN and infinity are written as Python's :mod:`json` does.
    """

    name = "json"

    def accepts(self, value: object) -> bool:
        return is_plain(value)

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return (text.encode("utf-8", "surrogatepass"),)

    def load(self, content: memoryview, store: Store) -> object:
        return json.loads(str(content, "utf-8", "surrogatepass"))


class BytesSerializer(Serializer):
    """Exactly ``bytes``."""

    name = "bytes"

    def accepts(self, value: object) -> bool:
        return type(value) is bytes

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        assert isinstance(value, bytes)
        return (_RAW, value)

    def load(self, content: memoryview, store: Store) -> object:
        return bytes(content[len(_RAW) :])


def is_plain(value: Any, depth: int = _DEEPEST) -> bool:
    """Whether JSON gives back exactly this value."""
    kind = type(value)
    if kind is int:
        return bool(value.bit_length() <= _LONGEST_INT)
    if kind in _SCALARS:
        return True
    if depth == 0:  # so deep, or a list that holds itself
        return False
    if kind is dict:
        if any(type(key) is not str for key in value):
            return False
        items = value.values()
    elif kind is list:
        items = value
    else:
        return False
    kinds = set(map(type, items))
    if kinds <= _SCALARS and int not in kinds:
        return True
    return all(is_plain(item, depth - 1) for item in items)
