"""NumPy arrays in the ``.npy`` format, mapped when they are read; NumPy scalars."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from upshift.runtime.storage.digest import Bytes
from upshift.runtime.storage.serializers.protocol import Serializer
from upshift.runtime.storage.store import Store

_MAGIC = b"\x93NUMPY"
_ALIGNMENT = 64
_KINDS = frozenset("biufcSUmMV")
_SCALAR_KINDS = frozenset("biufcmM")
_SCALAR = b"scalar\n"


class ArraySerializer(Serializer):
    """Exactly ``numpy.ndarray``, and ``numpy.memmap``, which comes back as an array.

    Arrays of Python objects, and subclasses such as masked arrays, are left to pickle. The order of
    the axes in memory is kept; an array that is not contiguous comes back in C order.
    """

    name = "numpy"

    def accepts(self, value: object) -> bool:
        return type(value) in (np.ndarray, np.memmap) and describe(value.dtype) is not None  # type: ignore[attr-defined]

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        assert isinstance(value, np.ndarray)
        return dump_array(value)

    def load(self, content: memoryview, store: Store) -> object:
        return load_array(content)


class ScalarSerializer(Serializer):
    """NumPy's own numbers, dates and durations: ``numpy.float32(1)``."""

    name = "numpy-scalar"

    def accepts(self, value: object) -> bool:
        return (
            isinstance(value, np.generic)
            and value.dtype.type is type(value)
            and (value.dtype.kind in _SCALAR_KINDS and describe(value.dtype) is not None)
        )

    def dump(self, value: object, store: Store) -> Sequence[Bytes]:
        return (_SCALAR, *dump_array(np.asarray(value)))

    def load(self, content: memoryview, store: Store) -> object:
        return load_array(content[len(_SCALAR) :])[()]


def describe(dtype: np.dtype[Any]) -> Any:
    """What the header of ``.npy`` says about a type, or None where that would lose something."""
    if dtype.kind not in _KINDS or dtype.hasobject or dtype.metadata:
        return None
    try:
        form = np.lib.format.dtype_to_descr(dtype)
        again = np.lib.format.descr_to_dtype(form)
    except (ValueError, TypeError):
        return None
    same = again == dtype and again.isalignedstruct == dtype.isalignedstruct
    return form if same and again.type is dtype.type else None


def dump_array(array: np.ndarray[Any, Any]) -> list[Bytes]:
    """Header and memory of an array."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    header = _header(describe(array.dtype), array.shape, fortran)
    if array.nbytes == 0:
        return [header]
    data = array.T if fortran else np.ascontiguousarray(array)
    return [header, data.reshape(-1).view(np.ndarray).view(np.uint8).data]


def load_array(content: memoryview) -> np.ndarray[Any, Any]:
    """An array over the content's own memory."""
    start, form, shape, fortran = _parse(content)
    dtype = np.lib.format.descr_to_dtype(form)
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(content) != wanted:
        raise ValueError(f"an array of {wanted} bytes has {len(content)}")
    array: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, buffer=content, offset=start, order="F" if fortran else "C"
    )
    return array


def _header(form: Any, shape: tuple[int, ...], fortran: bool) -> bytes:
    # NEP 1 and numpy.lib.format: version 3 is UTF-8 with a length of four bytes, 1 is Latin-1 with two.
    text = f"{{'descr': {form!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}"
    if text.isascii() and len(text) < 60_000:
        version, width, encoded = b"\x01\x00", 2, text.encode("ascii")
    else:
        version, width, encoded = b"\x03\x00", 4, text.encode("utf-8")
    before = len(_MAGIC) + 2 + width
    padding = -(before + len(encoded) + 1) % _ALIGNMENT
    encoded += b" " * padding + b"\n"
    return _MAGIC + version + len(encoded).to_bytes(width, "little") + encoded


def _parse(content: memoryview) -> tuple[int, Any, tuple[int, ...], bool]:
    if content[:6] != _MAGIC:
        raise ValueError("not an array: the content does not begin as a .npy file does")
    width = 2 if content[6] == 1 else 4
    start = 8 + width
    length = int.from_bytes(content[8:start], "little")
    fields = ast.literal_eval(str(content[start : start + length], "utf-8"))
    return start + length, fields["descr"], fields["shape"], fields["fortran_order"]
