"""The record ``seen`` of an attempt: what its supervisor finds, its process, and the frameworks in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec import Device, Failure, Framework, Hardware, decode, encode
from upshift.runtime.forms import Diagnosis

if TYPE_CHECKING:
    from upshift.runtime.accelerators.base import Inventory
    from upshift.runtime.supervisor.devices.accelerators import Accelerators


_NONSENSE = (TypeError, ValueError, KeyError, AttributeError)
"""What reading a message raises that a step has written itself: it may write to any descriptor."""


class Sights:
    """What is found in the course of an attempt. On a machine without devices that is nothing but frameworks.

    Parameters
    ----------
    granted
        What the attempt was granted.
    accelerators
        Who knows the devices of this machine; asked only where some were granted.
    """

    def __init__(self, granted: Hardware | None, accelerators: Callable[[], Accelerators]) -> None:
        self._granted: tuple[Device, ...] = (granted.gpus if granted else None) or ()
        self._inventories: tuple[Inventory, ...] = ()
        self._frameworks: list[Framework] = []
        self._diagnosis: Diagnosis | None = None
        self._missed: list[str] = []
        if self._granted:
            watched = accelerators()

            def look() -> None:  # once: what they look like at the start
                self._inventories = watched.inventories

            watched.want(look)

    def framework(self, content: Mapping[str, Any]) -> None:
        """A framework in the step's process sees this: a :class:`~upshift.model.spec.Framework`."""
        with contextlib.suppress(*_NONSENSE):
            self._frameworks.append(decode(Framework, content))

    def diagnosis(self, content: Mapping[str, Any]) -> Failure | None:
        """Why the step must not go on; None: it may, or that is no :class:`Diagnosis`."""
        with contextlib.suppress(*_NONSENSE):
            found = decode(Diagnosis, content)
            if found.failure is None:
                self._missed.append(found.framework)
            else:
                self._diagnosis = found
            return found.failure
        return None

    @property
    def degraded(self) -> bool:
        """Whether the step goes on though it does not see what it was granted."""
        return bool(self._missed)

    def record(self, *, cpu_count: int, memory: int, details: Mapping[str, Any]) -> Hardware:
        """The record.

        Parameters
        ----------
        cpu_count, memory
            As the step's process finds them.
        details
            What is known beyond that.
        """
        known = dict(details)
        if self._frameworks:
            known["frameworks"] = [encode(framework) for framework in self._frameworks]
        if self._diagnosis is not None:
            known["diagnosis"] = {"cause": self._diagnosis.cause, "evidence": list(self._diagnosis.evidence)}
        if self._missed:
            known["missed_by"] = list(self._missed)
        vendors = {device.vendor for device in self._granted}
        asked = [inventory for inventory in self._inventories if inventory.vendor in vendors]
        for name in ("driver", "runtime"):
            values = [value for inventory in asked if (value := getattr(inventory, name)) is not None]
            if values:
                known[name] = values[0]
        problems = [problem for inventory in asked for problem in inventory.problems]
        if problems:
            known["problems"] = problems
        return Hardware(cpu_count=cpu_count, memory=memory, nodes=1, gpus=self._gpus(asked), details=known)

    def _gpus(self, asked: list[Inventory]) -> tuple[Device, ...] | None:
        """The granted devices as they were found; None: nobody could say."""
        if not any(inventory.devices for inventory in asked):
            return None
        found = {device.uuid: device for inventory in asked for device in inventory.devices}
        return tuple(
            attrs.evolve(found[device.uuid], node=device.node)
            for device in self._granted
            if device.uuid in found
        )
