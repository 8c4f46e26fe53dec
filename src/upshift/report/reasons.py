"""The reasons of many tasks together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_INPUT = "input changed: "


def counted(reasons: Iterable[str]) -> Counter[str]:
    """How many tasks have which reason; where they differ, the values of changed inputs are left out."""
    found = Counter(reasons)
    if len(found) < 2:
        return found
    without: Counter[str] = Counter()
    for reason, number in found.items():
        without[_without_values(reason)] += number
    return without


def _without_values(reason: str) -> str:
    """``input changed: x, data`` of ``input changed: x: 2 → 5, data``."""
    if not reason.startswith(_INPUT):
        return reason
    parts = reason.removeprefix(_INPUT).split(", ")
    return _INPUT + ", ".join(part.partition(": ")[0] for part in parts)
