"""The order that a supervisor gets of a backend on its standard input, which has what no file may hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from upshift.model.spec import Device, encode


@attrs.frozen(kw_only=True)
class Order:
    """What a backend says on standard input.

    Parameters
    ----------
    secrets
        Values of the step's secrets, by variable.
    devices
        Which accelerators it gets, whose locks this process takes over; None: the backend hands out none.
    descriptors
        Open files of this process by which it has their locks already.
    held
        :data:`upshift.runtime.accelerators.locks.HELD` where the backend runs: what these locks are called.
    remarks
        What to say of the devices in the step's log.
    less, waited
        As of a :class:`~upshift.runtime.supervisor.devices.stock.Grant`.
    wait, share
        Where this process chooses devices itself, as for
        :meth:`upshift.runtime.supervisor.devices.waiting.Devices.ask`; ``wait`` is None where it does not.
    argv
        What modules of the user's are to find in ``sys.argv``.
    """

    secrets: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    devices: tuple[Device, ...] | None = None
    descriptors: tuple[int, ...] = ()
    held: str | None = None
    remarks: tuple[str, ...] = ()
    less: bool = False
    waited: float = 0.0
    wait: float | None = None
    share: bool = False
    argv: tuple[str, ...] = ()


def order_of(**fields: Any) -> bytes:
    """An order as it is said: a line."""
    return json.dumps(encode(Order(**fields))).encode() + b"\n"
