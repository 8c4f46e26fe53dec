"""Amounts of bytes, as people write them.

Decimal units (``KB`` … ``PB``) are powers of 1000, binary units (``KiB`` … ``PiB``) of 1024, as in
IEC 80000-13. Inside Upshift an amount is an ``int`` of bytes; each backend turns it into its own
unit at its edge, rounding up.
"""

from __future__ import annotations

import re
from decimal import Decimal

from upshift.model.checks import shown

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
        amount, factor = Decimal(str(value)), UNITS[unit]
    else:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected {FORMS}; got {shown(value)}")
        amount = Decimal(match[1])
        if not match[2]:
            factor = UNITS[unit]
        elif match[2].lower() in _FOLDED:
            factor = _FOLDED[match[2].lower()]
        else:
            raise ValueError(f"unknown unit {shown(match[2])}: expected {FORMS}; got {shown(value)}")
    return int((amount * factor).to_integral_value(rounding="ROUND_CEILING"))


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
