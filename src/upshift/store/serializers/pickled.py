"""Everything else, by cloudpickle, large buffers beside the pickle so that they are mapped when read.

::

    magic · number of parts · length of each part · pickle · buffer · buffer …

All numbers are 64-bit little-endian; each part begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence

from upshift.store.digest import Bytes
from upshift.store.serializers.protocol import Serializer
from upshift.store.store import Store

_MAGIC = b"UPICKLE1"
_ALIGNMENT = 64


class PickleSerializer(Serializer):
    """Any value that cloudpickle takes. Classes of modules that can be imported go by reference."""

    name = "pickle"

    def accepts(self, value: object) -> bool:
        return True

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]

        buffers: list[pickle.PickleBuffer] = []
        main = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(main), *(buffer.raw() for buffer in buffers)]
        sizes = [part.nbytes for part in parts]
        content: list[Bytes] = [_padded(_MAGIC + struct.pack(f"<{len(sizes) + 1}Q", len(sizes), *sizes))]
        for part in parts:
            content += [part, bytes(-part.nbytes % _ALIGNMENT)]
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


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)
