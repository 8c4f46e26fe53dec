"""The form of what a checkup finds."""

from __future__ import annotations

from typing import Literal

import attrs

Status = Literal["ok", "warning", "absent", "problem"]


@attrs.frozen(kw_only=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    group, name
        What it is.
    status
        ``"problem"``: it would stop a step, or a step on GPUs. ``"absent"``: there is no device, and
        nothing wrong with that. ``"warning"``: it is worth knowing.
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

    @property
    def stops(self) -> bool:
        """Whether something is wrong; that there is no device is not."""
        return self.status == "problem"
