"""The form of what a checkup finds."""

from __future__ import annotations

from typing import Literal

import attrs

Status = Literal["ok", "warning", "problem"]


@attrs.frozen(kw_only=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    group, name
        What it is.
    status
        ``"problem"``: it would stop a step, or a step on GPUs. ``"warning"``: it is worth knowing.
    text
        What was found.
    remedy
        What to do about it.
    """

    group: str
    name: str
    status: Status = "ok"
    text: str
    remedy: str | None = None
