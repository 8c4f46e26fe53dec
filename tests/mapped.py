"""Whether memory is that of a mapped file."""

from __future__ import annotations

from typing import Any


def is_mapped(array: Any) -> bool:
    """Whether the memory of a NumPy array is that of a file."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, inode, *_ = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return inode != "0"
    return False
