"""How tasks on this machine wait for its accelerators: options that several backends have."""

from __future__ import annotations

from upshift.errors import ConfigError
from upshift.model.configuration import Target
from upshift.model.settings.spans import FORMS, parse_span
from upshift.runtime.supervisor.devices.queue import WAIT

MANNERS = ("device_wait", "busy_devices")
"""The options."""


def manners(target: Target) -> tuple[float, bool]:
    """``device_wait`` in seconds, and whether ``busy_devices`` are used.

    Raises
    ------
    ConfigError
        One of them is invalid.
    """
    options = target.options
    wait, busy = options.get("device_wait"), options.get("busy_devices", "wait")
    try:
        seconds = WAIT if wait is None else parse_span(str(wait))
    except ValueError:
        raise ConfigError(
            f"target {target.name!r}: device_wait = {wait!r} is invalid", fix=f"Write {FORMS}."
        ) from None
    if busy not in ("wait", "use"):
        raise ConfigError(
            f"target {target.name!r}: busy_devices = {busy!r} is invalid",
            fix='Write "wait", until other programs have let go of a device, or "use", to work beside them.',
        )
    return seconds, busy == "use"
