"""Intel: GPUs with memory of their own (Data Center GPU Max and Flex, Arc), by DRM's files.

Graphics inside a CPU are counted, since the runtime counts them, and not handed out. Sources: Linux,
``Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon`` and ``sysfs-driver-intel-xe-hwmon``,
``drivers/gpu/drm/xe/xe_tile_sysfs.c``; oneAPI Level Zero specification, 'Environment Variables'; Intel
compute runtime, ``execution_environment.cpp``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from upshift.runtime.accelerators import files

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Device
    from upshift.runtime.accelerators.vendor import Inventory, Reading

VISIBLE = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
_INTEL = "0x8086"
_MODELS = {  # https://dgpu-docs.intel.com/devices/hardware-table.html, read in November 2026
    "0x0bd5": "Intel Data Center GPU Max 1550",
    "0x0bda": "Intel Data Center GPU Max 1100",
    "0x56c0": "Intel Data Center GPU Flex 170",
    "0x56c1": "Intel Data Center GPU Flex 140",
    "0x56a0": "Intel Arc A770",
    "0x56a1": "Intel Arc A750",
    "0x56a5": "Intel Arc A380",
    "0xe20b": "Intel Arc B580",
    "0xe20c": "Intel Arc B570",
}
_NO_DEVICE = "65535"


class Intel:
    """Intel's GPUs."""

    name: ClassVar[str] = "intel"

    def __init__(self) -> None:
        self._energy: dict[str, tuple[int, float]] = {}

    def present(self, root: Path) -> bool:
        return any(not _integrated(address) for address, _ in _own(root))

    def discover(self, root: Path) -> Inventory:
        from upshift.model.spec.hardware import Device
        from upshift.runtime.accelerators.vendor import Inventory

        problems: list[str] = []
        devices: list[Device] = []
        tile = 0
        for index, (address, minor) in enumerate(_own(root)):
            card = root / f"sys/class/drm/renderD{minor}/device"
            tiles = _tiles(card)
            first, tile = tile, tile + tiles
            if _integrated(address):
                continue
            refused = files.refusal(root / f"dev/dri/renderD{minor}")
            if refused is not None:
                problems.append(f"a GPU cannot be used: /dev/dri/renderD{minor} {refused}")
                continue
            identifier = files.text(card / "device") or ""
            devices.append(
                Device(
                    vendor=self.name,
                    model=_MODELS.get(identifier, f"Intel GPU {identifier}".strip()),
                    memory=_memory(card),
                    uuid=f"intel-{address}",
                    index=index,
                    numa_node=files.numa_node(card),
                    details={"render": minor, "first_tile": first, "tiles": tiles},
                )
            )
        return Inventory(
            vendor=self.name,
            devices=tuple(_visible(devices, index_count(root), tile)),
            problems=tuple(problems),
        )

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        from upshift.runtime.accelerators.vendor import Reading

        readings = []
        for device in devices:
            card = root / f"sys/class/drm/renderD{device.details['render']}/device"
            hwmon = files.first(card, "hwmon/hwmon*")
            clock = files.number(files.first(card, "drm/card*/gt_act_freq_mhz"))  # i915
            if clock is None:
                clock = files.number(card / "tile0/gt0/freq0/act_freq")  # xe
            gone = None if card.is_dir() else "its driver does not list it any more"
            readings.append(
                Reading(
                    uuid=device.uuid or "",
                    power=self._power(device.uuid or "", hwmon / "energy1_input"),
                    temperature=files.scaled(files.first(hwmon, "temp*_input"), 1e-3),
                    clock=clock,
                    problem=gone,
                )
            )
        return readings

    def _power(self, uuid: str, meter: Path) -> float | None:
        """W since the last reading, of a meter that counts µJ."""
        energy, now = files.number(meter), time.monotonic()
        if energy is None:
            return None
        last = self._energy.get(uuid)
        self._energy[uuid] = energy, now
        if last is None or energy < last[0] or now <= last[1]:
            return None
        return round((energy - last[0]) / (now - last[1]) * 1e-6, 1)

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """By number, in the order of PCI addresses; each tile of a device counts unless told otherwise.

        An empty mask would show all: a number that no device has shows none.
        """
        if not devices:
            return {VISIBLE: _NO_DEVICE}
        if os.environ.get(HIERARCHY, "FLAT").upper() == "COMPOSITE":
            numbers = [device.index for device in devices]
        else:
            numbers = [n for device in devices for n in _tile_numbers(device)]
        return {VISIBLE: ",".join(map(str, numbers)), "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}


def index_count(root: Path) -> int:
    """How many devices the runtime counts, those inside CPUs included."""
    return len(_own(root))


def _own(root: Path) -> list[tuple[str, int]]:
    """PCI address and number of the render node of each GPU of Intel's, in the order of addresses."""
    found = []
    for minor in files.numbered(f"{root}/dev/dri", "renderD"):
        device = root / f"sys/class/drm/renderD{minor}/device"
        if files.text(device / "vendor") == _INTEL:
            found.append((files.pci_address(device), minor))
    return sorted(found)


def _integrated(address: str) -> bool:
    """Whether a GPU is inside a CPU: those are on bus 0, cards are behind a bridge."""
    return address.split(":")[1:2] == ["00"]


def _tiles(card: Path) -> int:
    return (
        len(files.numbered(card, "tile"))
        or len(files.numbered(files.first(card, "drm/card*") / "gt", "gt"))
        or 1
    )


def _memory(card: Path) -> int | None:
    """Where the driver tells: xe by tile, i915 of Intel's own packages, not that of Linux itself."""
    sizes = [files.number(card / f"tile{n}/physical_vram_size_bytes") for n in files.numbered(card, "tile")]
    known = sum(size for size in sizes if size is not None)
    return known or files.number(files.first(card, "drm/card*/lmem_total_bytes"))


def _tile_numbers(device: Device) -> range:
    first = device.details["first_tile"]
    return range(first, first + device.details["tiles"])


def _visible(devices: list[Device], count: int, tiles: int) -> list[Device]:
    """Devices that the mask in this process's own environment has as a whole."""
    mask = os.environ.get(VISIBLE)
    if not mask:
        return devices
    if os.environ.get(HIERARCHY, "FLAT").upper() == "COMPOSITE":
        return [device for device in devices if device.index in files.chosen(mask, count)]
    allowed = set(files.chosen(mask, tiles))
    return [device for device in devices if set(_tile_numbers(device)) <= allowed]
