"""Digests: ``algorithm:hex``. BLAKE3 where it is installed, SHA-256 elsewhere; both can be named anywhere."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any, Protocol, Union

Bytes = Union[bytes, bytearray, memoryview]
"""Memory with bytes in it, one after the other."""

_FORM = re.compile(r"(blake3|sha256):([0-9a-f]{64})")


class Hasher(Protocol):
    """What takes bytes and gives their digest; the interface of :mod:`hashlib`."""

    def update(self, data: Any, /) -> Any: ...
    def hexdigest(self) -> str: ...


@functools.cache
def _blake3() -> Callable[[], Hasher] | None:
    try:
        from blake3 import blake3
    except ImportError:
        return None
    # One thread: a thread pool of its own in a process that is forked later would hang the child.
    return blake3


def algorithm() -> str:
    """The algorithm of new digests: ``"blake3"``, or ``"sha256"`` where that is not installed."""
    return "sha256" if _blake3() is None else "blake3"


def new_hasher(name: str | None = None) -> Hasher | None:
    """A hasher of this algorithm (default: that of new digests), or None where it is not installed."""
    if (name or algorithm()) == "sha256":
        return hashlib.sha256()
    make = _blake3()
    return None if make is None else make()


def digest_of(*buffers: Bytes, name: str | None = None) -> str:
    """The digest of the buffers, one after the other, by this algorithm (default: that of new digests)."""
    hasher = new_hasher(name)
    assert hasher is not None  # nobody names one that is not installed
    for buffer in buffers:
        hasher.update(buffer)
    return f"{name or algorithm()}:{hasher.hexdigest()}"


def split(digest: str) -> tuple[str, str]:
    """Algorithm and hexadecimal part of a digest."""
    match = _FORM.fullmatch(digest)
    if match is None:
        raise ValueError(f"{digest!r} is not a digest: expected blake3:HEX or sha256:HEX")
    return match[1], match[2]
