"""AWS Neuron: Trainium and Inferentia, whole devices, by device files and sysfs.

Sources: AWS Neuron documentation, 'Neuron Sysfs User Guide', 'Neuron Runtime Configuration',
'Logical NeuronCore configuration'.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from upshift.runtime.accelerators import files

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Device
    from upshift.runtime.accelerators.vendor import Inventory, Reading

VISIBLE = "NEURON_RT_VISIBLE_CORES"
_GROUPED = "NEURON_LOGICAL_NC_CONFIG"
_GROUPS = {"NCv3": 2, "v3": 2, "NCv4": 2, "v4": 2}
"""Cores of a device that the runtime takes for one by default, by architecture; of others 1."""
_NO_CORE = "65535"


class Neuron:
    """AWS's devices. A device is handed out with all its cores."""

    name: ClassVar[str] = "neuron"

    def present(self, root: Path) -> bool:
        return os.path.exists(f"{root}/dev/neuron0") or bool(files.numbered(f"{root}/dev", "neuron"))

    def discover(self, root: Path) -> Inventory:
        from upshift.model.spec.hardware import Device
        from upshift.runtime.accelerators.vendor import Inventory

        problems: list[str] = []
        found: list[Device] = []
        core = 0
        for number in files.numbered(root / "dev", "neuron"):
            folder = _folder(root, number)
            cores = files.number(folder / "core_count") or len(files.numbered(folder, "neuron_core"))
            refused = files.no_access(root / f"dev/neuron{number}")
            if refused is not None or not cores:
                why = refused or "has no core count in sysfs"
                problems.append(f"a Neuron device cannot be used: /dev/neuron{number} {why}")
                continue
            cores //= _grouped(folder)
            found.append(
                Device(
                    vendor=self.name,
                    model=files.text(folder / "info/architecture/device_name"),
                    uuid=f"neuron{number}",
                    index=number,
                    details={"first_core": core, "cores": cores},
                )
            )
            core += cores
        return Inventory(
            vendor=self.name,
            devices=tuple(_visible(found, core, problems)),
            driver=files.text(root / "sys/module/neuron/version"),
            problems=tuple(problems),
        )

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        from upshift.runtime.accelerators.vendor import Reading

        readings = []
        for device in devices:
            folder = _folder(root, device.index or 0)
            usage = [
                files.number(folder / f"neuron_core{core}/stats/memory_usage/device_mem/total")
                for core in files.numbered(folder, "neuron_core")
            ]
            errors = [
                _counter(folder / "stats/hardware" / name)
                for name in ("mem_ecc_uncorrected", "sram_ecc_uncorrected")
            ]
            readings.append(
                Reading(
                    uuid=device.uuid or "",
                    memory=_total(usage),
                    ecc_errors=_total(errors),
                    problem=None if folder.is_dir() else "its driver does not list it any more",
                )
            )
        return readings

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """By numbers of cores. An empty list would mean all: a core that does not exist is refused."""
        if not devices:
            return {VISIBLE: _NO_CORE}
        cores = [
            str(number)
            for device in devices
            for number in range(
                device.details["first_core"], device.details["first_core"] + device.details["cores"]
            )
        ]
        return {VISIBLE: ",".join(cores)}


def _folder(root: Path, number: int) -> Path:
    return root / f"sys/devices/virtual/neuron_device/neuron{number}"


def _grouped(folder: Path) -> int:
    """How many cores count as one in the runtime's numbers."""
    said = os.environ.get(_GROUPED, "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    return _GROUPS.get(files.text(folder / "info/architecture/arch_type") or "", 1)


def _counter(path: Path) -> int | None:
    """A counter is a file, or a folder with a total."""
    return files.number(path / "total" if path.is_dir() else path)


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _visible(devices: list[Device], cores: int, problems: list[str]) -> list[Device]:
    selection = os.environ.get(VISIBLE)
    if not selection:
        return devices
    allowed = set(files.chosen(selection, cores))
    kept = []
    for device in devices:
        own = set(range(device.details["first_core"], device.details["first_core"] + device.details["cores"]))
        if own <= allowed:
            kept.append(device)
        elif own & allowed:
            problems.append(
                f"{device.uuid} is left out: {VISIBLE}={selection!r} has some of its cores, and devices are "
                "handed out whole"
            )
    return kept
