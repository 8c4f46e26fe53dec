"""A curve in one line of characters: ``█▆▄▃▂▁▁``."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 16


def spark(values: Sequence[object], *, width: int = WIDTH, bounds: tuple[float, float] | None = None) -> str:
    """The shape of a curve, from its least value to its greatest; empty, if it has none."""
    numbers = _finite(values)
    low, high = bounds or (min(numbers, default=0.0), max(numbers, default=0.0))
    if low == high:
        return ""
    size = max(len(values) / width, 1.0)
    ends = [round(i * size) for i in range(1, min(len(values), width) + 1)]
    return "".join(_level(_finite(values[a:b]), low, high) for a, b in zip([0, *ends], ends, strict=False))


def _level(numbers: Sequence[float], low: float, high: float) -> str:
    share = (sum(numbers) / len(numbers) - low) / (high - low) if numbers else math.nan
    if not math.isfinite(share):  # no number, or numbers whose difference is none
        return " "
    return _LEVELS[max(0, min(int(share * len(_LEVELS)), len(_LEVELS) - 1))]


def _finite(values: Sequence[object]) -> list[float]:
    return [v for v in values if type(v) in (int, float) and math.isfinite(v)]  # type: ignore
