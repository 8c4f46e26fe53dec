"""Everything else, by cloudpickle, large buffers beside the pickle so that they are mapped when read.

::

    magic · number of parts · length of each part · pickle · buffer · buffer …

All numbers are 64-bit little-endian; each part begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import functools
import io
import pickle
import struct
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from upshift.store.digest import Bytes
from upshift.store.serializers.naming import code_names
from upshift.store.serializers.protocol import Buffers, Serializer
from upshift.store.store import Store

_MAGIC = b"UPICKLE1"
_ALIGNMENT = 64


class PickleSerializer(Serializer):
    """Any value that cloudpickle takes. Classes of modules that can be imported go by reference."""

    name = "pickle"

    def accepts(self, value: object) -> bool:
        return True

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        main = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        pickler = _pickler()(main, 5, buffers.append)
        pickler.dump(value)
        parts = [main.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = [part.nbytes for part in parts]
        content = Buffers([_padded(_MAGIC + struct.pack(f"<{len(sizes) + 1}Q", len(sizes), *sizes))])
        for part in parts:
            content += [part, bytes(-part.nbytes % _ALIGNMENT)]
        content.code = code_names(pickler.reached)
        return content

    def load(self, content: memoryview, store: Store) -> object:
        if content[:8] != _MAGIC:
            raise pickle.UnpicklingError("the content does not begin as expected")
        (count,) = struct.unpack_from("<Q", content, 8)
        sizes = struct.unpack_from(f"<{count}Q", content, 16)
        at = 16 + 8 * count
        parts = []
        for size in sizes:
            at += -at % _ALIGNMENT
            parts.append(content[at : at + size])
            at += size
        return pickle.loads(parts[0], buffers=parts[1:])


@functools.cache
def _pickler() -> Any:
    """cloudpickle's pickler, which also notes the classes and functions that it comes across."""
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.reached: set[Any] = set()

        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            self.reached.add(obj if kind is FunctionType or isinstance(obj, type) else kind)
            return super().reducer_override(obj)

    return Pickler


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)
