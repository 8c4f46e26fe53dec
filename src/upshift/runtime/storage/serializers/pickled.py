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
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.external import code_names, holds_parts, is_saved_apart, is_users
from upshift.runtime.storage.serializers.protocol import Buffers, Serializer
from upshift.runtime.storage.serializers.tensors import STORAGES, Storages
from upshift.runtime.storage.store import Store

_MAGIC = b"UPICKLE1"
ALIGNMENT = 64
_BY_NAME = (FunctionType, ModuleType, functools._lru_cache_wrapper)


class PickleSerializer(Serializer):
    """Any value that cloudpickle takes, but for containers of files, for which pickle is half of it.

    Classes of modules that can be imported go by reference.
    """

    name = "pickle"

    def accepts(self, value: object) -> bool:
        return True

    def dump(self, value: object, store: Store) -> Sequence[Bytes] | None:
        content, reached = pickled(value)
        return None if any(map(is_saved_apart, reached)) and holds_parts(value) else content

    def load(self, content: memoryview, store: Store) -> object:
        return unpickled(content)


def pickled(
    value: object,  # anything that cloudpickle takes
    # for parts of it, by ``id``, the number that is written in their place
    numbers: Mapping[int, int] | None = None,
) -> tuple[Buffers, set[Any]]:
    """A value, with the code that it names; and the classes and functions that were come across."""
    main = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = picklers()[numbers is not None](main, 5, buffers.append)
    pickler.numbers = numbers
    pickler.dump(value)
    parts = [main.getbuffer(), *(buffer.raw() for buffer in buffers)]
    sizes = [part.nbytes for part in parts]
    content = Buffers([padded(_MAGIC + struct.pack(f"<{len(sizes) + 1}Q", len(sizes), *sizes))])
    for part in parts:
        content += [part, bytes(-part.nbytes % ALIGNMENT)]
    content.code = tuple(sorted({*code_names(pickler.reached), *pickler.named}))
    return content, pickler.reached


def unpickled(content: memoryview, parts: Sequence[object] = ()) -> object:
    """The value; ``parts`` are what the numbers in it stand for."""
    if content[:8] != _MAGIC:
        raise pickle.UnpicklingError("the content does not begin as expected")
    (count,) = struct.unpack_from("<Q", content, 8)
    sizes = struct.unpack_from(f"<{count}Q", content, 16)
    at = 16 + 8 * count
    buffers = []
    for size in sizes:
        at += -at % ALIGNMENT
        buffers.append(content[at : at + size])
        at += size
    if not parts:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    unpickler = _Unpickler(io.BytesIO(buffers[0]), buffers=buffers[1:])
    unpickler.parts = parts
    return unpickler.load()


def padded(content: bytes) -> bytes:
    """With zeros up to where the next part begins."""
    return content + bytes(-len(content) % ALIGNMENT)


class _Unpickler(pickle.Unpickler):
    parts: Sequence[object]

    def persistent_load(self, pid: Any) -> object:
        return self.parts[pid]


@functools.cache
def picklers() -> tuple[Any, Any]:
    """cloudpickle's pickler, which also notes the classes and functions that it comes across.

    The second one writes numbers for some parts; it asks for each, and takes longer.
    """
    import cloudpickle  # type: ignore[import-untyped,unused-ignore]

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.reached: set[Any] = set()
            self.storages = Storages()
            self.named: set[str] = set()

        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if kind is CodeType:
                return _with_its_file(self.dispatch_table[CodeType](obj), obj)
            if kind.__module__ in STORAGES and (apart := self.storages.apart(obj)) is not None:
                return apart
            self.reached.add(obj if kind in _BY_NAME or isinstance(obj, type) else kind)
            if kind is functools._lru_cache_wrapper and not _is_importable(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            if is_users(kind) and kind not in self.dispatch_table and not isinstance(obj, type):
                for method, given in (("__reduce_ex__", (5,)), ("__reduce__", ())):
                    if type(getattr(kind, method)) is FunctionType:
                        reduced = getattr(obj, method)(*given)
                        if isinstance(reduced, str):  # a name in its module, whatever that stands for later
                            self.named.add(f"{getattr(obj, '__module__', None)}:{reduced}")
                        return reduced
            return super().reducer_override(obj)

    class NumberingPickler(Pickler):
        def persistent_id(self, obj: Any) -> int | None:
            number: int | None = self.numbers.get(id(obj))
            return number

    return Pickler, NumberingPickler


def _with_its_file(reduced: tuple[Any, tuple[Any, ...]], code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    """Code as cloudpickle takes it apart, which from 3.1.3 on leaves out the name of its file.

    Tracebacks show the user's own lines by it, also those of a notebook's cells.
    """
    make, parts = reduced
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def _is_importable(function: Any) -> bool:
    """Whether another process finds a function where it says that it is; not so of a notebook's."""
    found: Any = None if function.__module__ == "__main__" else sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _cached(function: Any, parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
