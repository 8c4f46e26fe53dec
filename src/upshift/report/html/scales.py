"""Numbers along an axis: round ones, in the unit that they are in, as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from upshift.model.settings.sizes import format_size

_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
TIME = "s"
_NOTHING = 1e-300
"""Numbers that are no farther apart are the same to an axis: floats cannot divide what is between them."""


def amount(value: float, unit: str) -> str:
    """A value with its unit: ``87 %``, ``1.53 GB``, ``2.5 MB/s``, ``0.0123``."""
    if unit == "bytes":
        return format_size(value)
    if unit == "bytes/s":
        return f"{format_size(value)}/s"
    if unit == TIME:
        return clock(value)
    return f"{_figures(value, 3)} {unit}" if unit else _figures(value, 4)


def _figures(value: float, number: int) -> str:
    """So many figures, no exponent where it can do without, all figures of a large whole number."""
    whole = 10**number - 0.5 <= abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:.{number}g}"


def clock(seconds: float) -> str:
    """A time since a start: ``0.5 s``, ``42 s``, ``3:05``, ``1:07:30``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, ``most`` of them or fewer."""
    if not high > low:
        return [low]
    return _multiples(low, high, _round_up((high - low) / most))


def time_ticks(low: float, high: float, most: int) -> list[float]:
    """The same for seconds: whole minutes and hours where it is that long."""
    least = (high - low) / most
    if least < 1:
        return ticks(low, high, most)
    step = next((step for step in _TIMES if step >= least), None)
    return _multiples(low, high, step or 86400 * _round_up(least / 86400))


def around(values: Sequence[float], *, from_zero: bool) -> tuple[float, float]:
    """The ends of an axis on which all values have room."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= _NOTHING:
        margin = abs(low) * 0.1 if abs(low) > _NOTHING else 1.0
        low, high = (low if from_zero and low == 0 else low - margin), high + margin
    step = _round_up((high - low) / 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _round_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
