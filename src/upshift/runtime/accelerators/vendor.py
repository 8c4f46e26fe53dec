"""What Upshift asks of a vendor: find the devices, read them, and say how a process sees only some.

One file a vendor implements :class:`Vendor`. Nothing else in Upshift knows a vendor's library, its
device files or its environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import attrs

from upshift.model.spec.hardware import Device

MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
"""What vendors are called, where that is not their name."""


@attrs.frozen(kw_only=True)
class Inventory:
    """The devices of one vendor that this process may use."""

    vendor: str  # as in :data:`upshift.model.settings.resources.VENDORS`
    devices: tuple[Device, ...] = ()  # in the vendor's order
    driver: str | None = None  # version of the driver; None: unknown
    runtime: str | None = None  # the newest CUDA (or ROCm, …) that this driver runs; None: unknown
    # pairs of devices, by uuid, that a link of their own joins: NVLink, xGMI
    links: tuple[tuple[str, ...], ...] = ()
    problems: tuple[str, ...] = ()  # what could not be found out, and why, for people
    # devices that a variable of this process hides, and which: ``"CUDA_VISIBLE_DEVICES='1'"``
    hidden: tuple[Device, ...] = ()
    hidden_by: str | None = None
    unknown: bool = False  # whether it could not be asked at all: there may be any devices


def _by_pid(processes: Mapping[int, int | None] | Mapping[str, int | None]) -> dict[int, int | None]:
    """The keys are text when this comes out of JSON."""
    return {int(pid): size for pid, size in processes.items()}


@attrs.frozen(kw_only=True)
class Reading:
    """One device at one instant. None: it does not tell."""

    uuid: str  # of the device or the slice
    busy: float | None = None  # percent of the time since the reading before in which a kernel ran
    memory: int | None = None  # bytes in use, by anybody
    # power, temperature, clock, memory_clock: W, °C, MHz, MHz
    power: float | None = None
    temperature: float | None = None
    clock: float | None = None
    memory_clock: float | None = None
    # pcie_received, pcie_sent, nvlink_received, nvlink_sent: bytes a second
    pcie_received: float | None = None
    pcie_sent: float | None = None
    nvlink_received: float | None = None
    nvlink_sent: float | None = None
    ecc_errors: int | None = None  # uncorrected errors since the driver was loaded
    # xid, xid_events: the newest Xid event since somebody watches, and how many there were
    xid: int | None = None
    xid_events: int = 0
    # bytes that each process has on it, by pid as this process sees pids; a value is None where the device
    # does not tell how much
    processes: Mapping[int, int | None] = attrs.field(factory=dict, converter=_by_pid)
    problem: str | None = None  # why nothing is known: the device is lost


class Vendor(Protocol):
    """One vendor's devices on this machine."""

    name: ClassVar[str]

    def present(self, root: Path) -> bool:
        """Whether there may be any: a look at device files, cheap, calling no library."""

    def discover(self, root: Path) -> Inventory:
        """Find the devices that this process may use. It may hang or crash: it runs in a process of its own.

        Problems are told in the inventory, never raised.
        """

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        """Read devices, as :meth:`discover` gave them; an empty sequence where that cannot be."""

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """Environment variables with which a process sees exactly these devices; none: it sees none."""
