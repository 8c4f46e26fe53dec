"""Containers of data with files in them: each file is saved by content, the rest is pickled around it.

::

    mark · length of the list · list, in JSON · padding · pickle

The list holds the files as their own serializers write them, and data that is only named
(:class:`~upshift.runtime.storage.external.External`) likewise; in the pickle a number stands for each.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence

from upshift.errors import NotSerializable
from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.serializers.contents import parts_of
from upshift.runtime.storage.serializers.paths import ExternalSerializer, PathSerializer
from upshift.runtime.storage.serializers.pickled import ALIGNMENT, padded, pickled, unpickled
from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.store import Store

_MARK = b"files\n"
_LENGTH = struct.Struct("<Q")
_INSIDE: tuple[Serializer, ...] = (PathSerializer(), ExternalSerializer())
_BY_NAME = {serializer.name: serializer for serializer in _INSIDE}


class ContainerSerializer(Serializer):
    """Whatever :func:`~upshift.runtime.storage.serializers.contents.parts_of` finds something in."""

    name = "container"
    names_blobs = True

    def accepts(self, value: object) -> bool:
        return True

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        saved: list[tuple[str, str]] = []
        parts = list(parts_of(value))  # while they are in it, nothing else has their id
        for where, part in parts:
            serializer = next(serializer for serializer in _INSIDE if serializer.accepts(part))
            try:
                buffers = serializer.dump(part, store)
            except NotSerializable as error:
                error.what = f"{where}: {error.what}"
                raise
            assert buffers is not None
            saved.append((serializer.name, b"".join(buffers).decode("utf-8", "surrogatepass")))
        text = json.dumps(saved, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        content, _ = pickled(value, {id(part): number for number, (_, part) in enumerate(parts)})
        content.insert(0, padded(_MARK + _LENGTH.pack(len(text)) + text))
        return content

    def load(self, content: memoryview, store: Store) -> object:
        saved, rest = _parse(content)
        return unpickled(rest, [_BY_NAME[name].load(part, store) for name, part in saved])

    def references(self, content: memoryview) -> Iterator[tuple[str, int]]:
        for name, part in _parse(content)[0]:
            yield from _BY_NAME[name].references(part)


def _parse(content: memoryview) -> tuple[list[tuple[str, memoryview]], memoryview]:
    start = len(_MARK) + _LENGTH.size
    if content[: len(_MARK)] != _MARK:
        raise ValueError("not a container of files")
    (length,) = _LENGTH.unpack_from(content, len(_MARK))
    saved = json.loads(bytes(content[start : start + length]).decode("utf-8", "surrogatepass"))
    parts = [(name, memoryview(text.encode("utf-8", "surrogatepass"))) for name, text in saved]
    end = start + length
    return parts, content[end + -end % ALIGNMENT :]
