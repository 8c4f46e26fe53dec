"""CRC-32 of content that is read in parts: those of the parts make that of the whole."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable

_POLYNOMIAL = 0xEDB88320


def crc_of(views: Iterable[memoryview]) -> int:
    """The CRC-32 of buffers, one after the other."""
    value = 0
    for view in views:
        value = zlib.crc32(view, value)
    return value


def crc_of_both(first: int, second: int, size: int) -> int:
    """The CRC-32 of two contents, one after the other, of which the second has ``size`` bytes."""
    return _times(_shift(size), first) ^ second


def _times(a: int, b: int) -> int:
    """Product of two polynomials over GF(2), modulo that of the CRC; the highest bit is the power of 0."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
        a = (a << 1) & 0xFFFFFFFF
    return product


@functools.lru_cache(maxsize=64)
def _shift(size: int) -> int:
    """The polynomial by which to multiply in order to append ``size`` zero bytes: x to the power of bits."""
    result, square, bits = 0x80000000, 0x40000000, size * 8
    while bits:
        if bits & 1:
            result = _times(square, result)
        square, bits = _times(square, square), bits >> 1
    return result
