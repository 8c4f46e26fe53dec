"""All that the store asks of a kind of value, and the two that need nothing else: JSON, and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from upshift.runtime.storage.digest import Bytes

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store


class Buffers(list[Bytes]):
    """Buffers of a serializer that knows better than the value's type which code the value names.

    Attributes
    ----------
    code
        As :func:`~upshift.runtime.storage.external.code_names` gives it.
    """

    code: tuple[str, ...] = ()


class Serializer(Protocol):
    """Turns values of one kind to bytes and back.

    A third party subclasses it and registers the class under the entry point group
    ``upshift.serializers``. The entry point's name is the full name of the type that it is for, or
    of a module or package that defines such types::

        [project.entry-points."upshift.serializers"]
        polars = "upshift_polars:PolarsSerializer"

    It is imported only when a value of such a type is saved or read, and is asked before the
    serializers that come with Upshift. Equal values should give equal bytes: whether a later step
    has to run again is decided by them.
    """

    name: str
    """What an artifact names it by. That of a third party is taken from its entry point."""
    names_blobs: bool = False
    """Whether its content names further blobs: then it has :meth:`references`."""

    def accepts(self, value: object) -> bool:
        """Whether it is for this value; told by the type, soon."""

    def dump(self, value: object, store: Store) -> Sequence[Bytes] | None:
        """The value as contiguous buffers, which are written one after the other.

        Give views of the value's own memory where there is much of it. None: this very value cannot
        be represented without loss, and the next serializer is asked.
        """

    def load(self, content: memoryview, store: Store) -> object:
        """The value. ``content`` is private memory that may be kept, and written to.

        It is aligned to 64 bytes where it is large.
        """

    def references(self, content: memoryview) -> Iterable[tuple[str, int]]:
        """Digest and size of the blobs that the content names, put into the store by ``dump``."""
        return ()


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
