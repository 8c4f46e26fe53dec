"""Spans of time, as people write them: ``30d``."""

from __future__ import annotations

import re

from upshift.model.checks import MOST_SECONDS, shown

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""Seconds in one of each unit."""
FORMS = 'a number and one of s, m, h, d, w (seconds to weeks), for example "30d" or "12h"'

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
        raise ValueError(f"expected {FORMS}; got {shown(text)}")
    seconds = float(match[1]) * SECONDS[match[2]]
    if seconds > MOST_SECONDS:
        raise ValueError(f"expected at most {MOST_SECONDS // SECONDS['d']:,} days; got {shown(text)}")
    return seconds
