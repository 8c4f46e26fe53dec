"""Amounts of bytes and spans of time, as people write them: ``16GB``, ``30d``.

Decimal units of bytes (``KB`` … ``PB``) are powers of 1000, binary units (``KiB`` … ``PiB``) of 1024, as in
IEC 80000-13. Inside Upshift an amount is an ``int`` of bytes, and a span a ``float`` of seconds; each backend
turns them into its own units at its edge, rounding up.
"""

from __future__ import annotations

import re
from decimal import Decimal

from upshift.model.checks import MOST_SECONDS, shown

UNITS = {"B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
"""Bytes in one of each unit."""

FORMS = "a number and one of " + ", ".join(UNITS) + ', for example "16GB" or "1.5GiB"'

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_FOLDED = {unit.lower(): factor for unit, factor in UNITS.items()} | {
    # Kubernetes' short form. A lone letter is refused: G is 10^9 there and 2^30 for Docker.
    **{prefix.lower() + "i": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}


def parse_size(value: str | int | float, *, unit: str = "B") -> int:
    """Read an amount of bytes.

    Parameters
    ----------
    value
        ``"16GB"``, ``"8 gib"``, ``"1.5GB"``, or a bare number of ``unit``.
    unit
        The unit of a bare number.

    Returns
    -------
    int
        Bytes, rounded up to a whole one.

    Raises
    ------
    ValueError
        The text is not an amount; the message names the forms that are.
    """
    if isinstance(value, bool):
        raise ValueError(f"expected {FORMS}; got {shown(value)}")
    if isinstance(value, (int, float)):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"expected {FORMS}; got {shown(value)}")
        text, factor = str(value), UNITS[unit]
    else:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected {FORMS}; got {shown(value)}")
        text = match[1]
        if not match[2]:
            factor = UNITS[unit]
        elif match[2].lower() in _FOLDED:
            factor = _FOLDED[match[2].lower()]
        else:
            raise ValueError(f"unknown unit {shown(match[2])}: expected {FORMS}; got {shown(value)}")
    whole, of = Decimal(text).as_integer_ratio()  # exact, whatever context the user has set for decimals
    return int(-(-whole * factor // of))


def meant_by(value: object) -> str | None:
    """What a lone letter was meant to say, ``"40GB"`` of ``"40G"``; None: it is something else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtTpP])\s*", value) if isinstance(value, str) else None
    return f"{found[1]}{found[2].upper()}B" if found else None


def format_size(size: int | float) -> str:
    """An amount of bytes for people, with three figures: ``1.53 GB``."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(amount) < 999.5:
            break
        amount /= 1000
    else:
        unit = "PB"
    if unit == "B":
        return f"{amount:.0f} B"
    return f"{amount:.3g} {unit}" if abs(amount) < 99.95 else f"{amount:.0f} {unit}"


SPAN_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""Seconds in one of each unit."""
SPAN_FORMS = 'a number and one of s, m, h, d, w (seconds to weeks), for example "30d" or "12h"'

_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*")


def parse_span(text: str) -> float:
    """Read a span of time.

    Parameters
    ----------
    text
        ``"30d"``, ``"1.5h"``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        The text is no span; the message names the forms that are.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"expected {SPAN_FORMS}; got {shown(text)}")
    seconds = float(match[1]) * SPAN_UNITS[match[2]]
    if seconds > MOST_SECONDS:
        raise ValueError(f"expected at most {MOST_SECONDS // SPAN_UNITS['d']:,} days; got {shown(text)}")
    return seconds
