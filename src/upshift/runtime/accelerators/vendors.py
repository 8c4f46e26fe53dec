"""The vendors that Upshift knows, in the order in which they are asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from upshift.runtime.accelerators.amd import Amd
from upshift.runtime.accelerators.files import device_root
from upshift.runtime.accelerators.gaudi import Gaudi
from upshift.runtime.accelerators.intel import Intel
from upshift.runtime.accelerators.neuron import Neuron
from upshift.runtime.accelerators.nvidia import Nvidia
from upshift.runtime.accelerators.tpu import Tpu

if TYPE_CHECKING:  # a run that wants no devices pays for these looks: what takes time is imported later
    from upshift.model.spec.hardware import Device
    from upshift.runtime.accelerators.vendor import Vendor

_TPU = Tpu()
ALL: tuple[Vendor, ...] = (Nvidia(), Amd(), Neuron(), _TPU, Gaudi(), Intel())


def vendor_named(name: str) -> Vendor:
    """The vendor of this name."""
    return {vendor.name: vendor for vendor in ALL}[name]


def present() -> tuple[Vendor, ...]:
    """The vendors that this machine may have devices of. It takes microseconds, and calls no library."""
    root = device_root()
    return tuple(vendor for vendor in ALL if vendor.present(root))


def environment(devices: Sequence[Device], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables with which a process sees exactly these devices, and none of any other vendor."""
    variables: dict[str, str] = {}
    for vendor in ALL:  # AMD after NVIDIA, whose variable it may need
        variables |= vendor.environment([device for device in devices if device.vendor == vendor.name])
    if not devices:
        variables |= _TPU.unsought(device_root(), {**os.environ, **(own or {})})
    return variables
