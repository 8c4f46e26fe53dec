"""Checksums of content that comes in parts: CRC-32, which joins, and MD5, which is of a whole only."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Iterable
from typing import ClassVar, Protocol, TypeVar

_POLYNOMIAL = 0xEDB88320

S = TypeVar("S", bound="Sum")


class Sum(Protocol):
    """A checksum: one that is kept somewhere, or one of what has come."""

    joins: ClassVar[bool]  # whether the sums of two parts make that of both

    def of(self: S, views: Iterable[memoryview]) -> S:
        """A sum of this kind, of these buffers."""

    def add(self, view: memoryview) -> None:
        """Go on with another buffer."""

    def then(self: S, other: S) -> S | None:
        """The sum of this content and another one behind it."""

    def same(self: S, other: S) -> bool:
        """Whether both are of the same content."""


class Crc:
    """CRC-32, and of how many bytes."""

    joins: ClassVar[bool] = True

    def __init__(self, value: int = 0, size: int = 0) -> None:
        self.value, self.size = value, size

    def of(self, views: Iterable[memoryview]) -> Crc:
        crc = Crc()
        for view in views:
            crc.add(view)
        return crc

    def add(self, view: memoryview) -> None:
        self.value, self.size = zlib.crc32(view, self.value), self.size + view.nbytes

    def then(self, other: Crc) -> Crc:
        return Crc(crc_of_both(self.value, other.value, other.size), self.size + other.size)

    def same(self, other: Crc) -> bool:
        return self.value == other.value


class Md5:
    """MD5, which is of a whole only."""

    joins: ClassVar[bool] = False

    def __init__(self, kept: bytes = b"") -> None:
        self._kept, self._hasher = kept, hashlib.md5(usedforsecurity=False)

    @property
    def value(self) -> bytes:
        """The digest of all that was added."""
        return self._kept or self._hasher.digest()

    def of(self, views: Iterable[memoryview]) -> Md5:
        new = Md5()
        for view in views:
            new.add(view)
        return new

    def add(self, view: memoryview) -> None:
        self._hasher.update(view)

    def then(self, other: Md5) -> None:
        return None

    def same(self, other: Md5) -> bool:
        return self.value == other.value


def md5_of(views: Iterable[memoryview]) -> bytes:
    """The MD5 of buffers, one after the other: what servers compare a body with."""
    return Md5().of(views).value


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
