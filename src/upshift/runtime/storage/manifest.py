"""The content of a list that is saved item by item: the artifacts of its items."""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from upshift.model.spec.artifact import Artifact
from upshift.model.spec.codec import decode, encode

NAME = "items"
"""What an artifact names as its serializer."""
_MARK = b"items\n"


def build(form: str, items: Sequence[Artifact]) -> bytes:
    """The content for a ``"list"`` or ``"tuple"`` of these items."""
    # The digest of a list is that of its items, however they are described.
    bare = (item if item.plain is None else attrs.evolve(item, plain=None) for item in items)
    data = {"form": form, "items": [encode(item) for item in bare]}
    return _MARK + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def parse(content: memoryview) -> tuple[str, tuple[Artifact, ...]]:
    """Form and items.

    Raises
    ------
    ValueError
        It is no such content.
    """
    if content[: len(_MARK)] != _MARK:
        raise ValueError("not a list of items")
    data = json.loads(bytes(content[len(_MARK) :]))
    return data["form"], tuple(decode(Artifact, item) for item in data["items"])
