"""Intel Gaudi (Habana): by the files of the habanalabs driver, old and new.

Sources: Linux, ``Documentation/ABI/testing/sysfs-driver-habanalabs`` (``/sys/class/accel`` since 6.5,
``/sys/class/habanalabs`` before), ``drivers/accel/habanalabs/common/habanalabs_drv.c`` (PCI ids); Gaudi
documentation, 'Gaudi-to-process Assignment'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from upshift.runtime.accelerators import files

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Device
    from upshift.runtime.accelerators.vendor import Inventory, Reading

VISIBLE = "HABANA_VISIBLE_MODULES"
_HABANA = "0x1da3"
_MODELS = {"0x1000": "Gaudi", "0x1001": "Gaudi", "0x1020": "Gaudi2", "0x1060": "Gaudi3"}
_NO_MODULE = "255"
_WELL = "operational"


class Gaudi:
    """Habana's accelerators. Its device files are not opened: each serves one process at a time."""

    name: ClassVar[str] = "habana"

    def present(self, root: Path) -> bool:
        return any(True for _ in _own(root))

    def discover(self, root: Path) -> Inventory:
        from upshift.model.spec.hardware import Device
        from upshift.runtime.accelerators.vendor import Inventory

        problems: list[str] = []
        devices: list[Device] = []
        for number, file, folder in _own(root):
            refused = files.no_access(file)
            if refused is not None:
                problems.append(f"a Gaudi cannot be used: {file} {refused}")
                continue
            module = files.number(folder / "module_id")
            devices.append(
                Device(
                    vendor=self.name,
                    model=_model(folder),
                    uuid=f"habana-{files.text(folder / 'pci_addr') or number}",
                    index=number,
                    numa_node=_numa_node(folder),
                    details={"module": number if module is None else module, "folder": str(folder)},
                )
            )
        driver = files.text(root / "sys/module/habanalabs/version")
        selection = os.environ.get(VISIBLE)
        if selection:
            modules = files.chosen(selection, 1 << 8)
            devices = [device for device in devices if device.details["module"] in modules]
        return Inventory(vendor=self.name, devices=tuple(devices), driver=driver, problems=tuple(problems))

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        from upshift.runtime.accelerators.vendor import Reading

        readings = []
        for device in devices:
            folder = Path(device.details["folder"])
            status = files.text(folder / "status") or "not listed by its driver any more"
            hwmon = files.first(folder, "hwmon/hwmon*")
            readings.append(
                Reading(
                    uuid=device.uuid or "",
                    power=files.scaled(hwmon / "power1_input", 1e-6),
                    temperature=files.scaled(hwmon / "temp1_input", 1e-3),
                    clock=files.number(folder / "clk_cur_freq_mhz"),
                    problem=None if status.lower() == _WELL else f"it is {status.lower()}",
                )
            )
        return readings

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """By module id. What an empty list means is not documented: a module that is not there is refused."""
        modules = [str(device.details["module"]) for device in devices]
        return {VISIBLE: ",".join(modules) or _NO_MODULE}


def _own(root: Path) -> Iterator[tuple[int, Path, Path]]:
    """Number, device file and sysfs folder of each."""
    for number in files.numbered(f"{root}/dev/accel", "accel"):
        folder = root / f"sys/class/accel/accel{number}/device"
        if files.text(folder / "vendor") == _HABANA:  # Intel's NPUs are accelerators of this class, too
            yield number, root / f"dev/accel/accel{number}", folder
    for number in files.numbered(f"{root}/dev", "hl"):
        yield number, root / f"dev/hl{number}", root / f"sys/class/habanalabs/hl{number}"


def _numa_node(folder: Path) -> int | None:
    """As the device says it; of the older driver, its folder beside that of the class."""
    own = files.numa_node(folder)
    return files.numa_node(folder / "device") if own is None else own


def _model(folder: Path) -> str | None:
    """``Gaudi2``, of the PCI id, or of what the driver calls the type: ``GAUDI2``."""
    for place in (folder, folder / "device"):
        known = _MODELS.get(files.text(place / "device") or "")
        if known is not None:
            return known
    kind = files.text(folder / "device_type")
    return None if kind is None else kind.split()[0].capitalize()
