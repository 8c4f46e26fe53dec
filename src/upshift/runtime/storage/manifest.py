"""The content of what is saved item by item, a list or a state: the artifacts of its items."""

from __future__ import annotations

import json
from collections.abc import MappingView, Sequence
from typing import Any

import attrs

from upshift.model.spec.artifact import Artifact
from upshift.model.spec.codec import decode, encode

NAME = "items"
"""What an artifact names as its serializer."""
STATE = "state"
"""The form of a :class:`~upshift.runtime.storage.state.State`."""
_MARK = b"items\n"
_ONE = (str, bytes, bytearray, memoryview)


def is_list(kind: type[Any]) -> bool:
    """Whether a value of this class is a list, of which each item is a value: one to map over.

    A table, an array, a tensor or a data set has a length and items as well, and is one value all the same.
    """
    if issubclass(kind, tuple):
        return not hasattr(kind, "_fields")  # a named tuple is a record
    return issubclass(kind, (Sequence, MappingView)) and not issubclass(kind, _ONE)


def build(form: str, items: Sequence[Artifact], keys: Sequence[str] = ()) -> bytes:
    """The content for a ``"list"`` or ``"tuple"`` of these items, or a ``"state"`` with these names."""
    # The digest of a list is that of its items, however they are described.
    bare = (item if item.plain is None else attrs.evolve(item, plain=None) for item in items)
    data: dict[str, Any] = {"form": form, "items": [encode(item) for item in bare]}
    if form == STATE:
        data["keys"] = list(keys)
    return _MARK + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def parse(content: memoryview) -> tuple[str, tuple[Artifact, ...], tuple[str, ...]]:
    """Form, items, and of a state their names."""
    if content[: len(_MARK)] != _MARK:
        raise ValueError("not a list of items")
    data = json.loads(bytes(content[len(_MARK) :]))
    items = tuple(decode(Artifact, item) for item in data["items"])
    return data["form"], items, tuple(data.get("keys", ()))
