"""The record ``seen`` of an attempt: what its supervisor finds, its process, and the frameworks in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from upshift.spec import Device, Hardware

if TYPE_CHECKING:
    from upshift.accelerators.base import Inventory
    from upshift.worker.accelerators import Accelerators


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
        self._frameworks: list[Mapping[str, Any]] = []
        self._diagnosis: Mapping[str, Any] | None = None
        if self._granted:
            watched = accelerators()

            def look() -> None:  # once: what they look like at the start
                self._inventories = watched.inventories

            watched.want(look)

    def framework(self, content: Mapping[str, Any]) -> None:
        """A framework in the step's process sees this: a :class:`~upshift.spec.Framework`."""
        self._frameworks.append(content)

    def diagnosis(self, content: Mapping[str, Any]) -> None:
        """The step must not go on: a :class:`~upshift.worker.sighting.Diagnosis`."""
        self._diagnosis = {name: content.get(name) for name in ("cause", "evidence")}

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
            known["frameworks"] = list(self._frameworks)
        if self._diagnosis is not None:
            known["diagnosis"] = self._diagnosis
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
