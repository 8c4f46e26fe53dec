"""Google TPU: chips of this machine, by PCI and device files.

Sources: JAX, ``jax/_src/hardware_utils.py`` (PCI ids); gVisor, ``pkg/sentry/fsimpl/sys/pci.go`` (up to v4
``/dev/accelN``, from v5 on ``/dev/vfio/N``); for the variables https://github.com/jax-ml/jax/issues/14977
and Ray, ``python/ray/_private/accelerators/tpu.py``.
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

VISIBLE = "TPU_VISIBLE_CHIPS"
_ON_CPU = {"JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"}
_GOOGLE = "0x1ae0"
_MODELS = {
    "0x0027": "TPU v3",  # or v2
    "0x005e": "TPU v4",
    "0x0062": "TPU v5p",
    "0x0063": "TPU v5e",
    "0x006f": "TPU v6e",
    "0x0076": "TPU7x",
}
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""How so many chips of one machine are arranged."""


class Tpu:
    """Google's chips."""

    name: ClassVar[str] = "tpu"

    def present(self, root: Path) -> bool:
        return os.path.exists(f"{root}/dev/accel0") or bool(files.numbered(f"{root}/dev/vfio", ""))

    def discover(self, root: Path) -> Inventory:
        from upshift.model.spec.hardware import Device
        from upshift.runtime.accelerators.vendor import Inventory

        chips = [address for address in _pci(root) if _model(address) is not None]
        if not chips:  # another device that a virtual machine may have, or a sandbox without sysfs
            known = files.numbered(root / "dev", "accel")
            problems = (f"/dev/accel{known[0]} is not a known TPU",) if known else ()
            return Inventory(vendor=self.name, problems=problems)
        problems_found: list[str] = []
        paths = _device_files(root, chips)
        for path in list(paths):
            refused = files.no_access(path)
            if refused is not None:
                problems_found.append(f"a TPU chip cannot be used: {path} {refused}")
                paths.remove(path)
        devices = [
            Device(
                vendor=self.name,
                model=_model(chip),
                uuid=f"tpu-{path.parent.name}-{path.name}" if path.name.isdigit() else f"tpu-{path.name}",
                index=index,
                numa_node=files.numa_node(chip),
                details={"chips": len(paths)},
            )
            for index, (path, chip) in enumerate(zip(paths, chips, strict=False))
        ]
        selection = os.environ.get(VISIBLE)
        if selection is not None:
            devices = [devices[n] for n in files.chosen(selection, len(devices))]
        return Inventory(vendor=self.name, devices=tuple(devices), problems=tuple(problems_found))

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        """Nothing: what a chip does is known to the process that holds it alone."""
        return ()

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """The chips by number, and how they are arranged, unless these are all of this machine's."""
        if not devices:
            return {VISIBLE: ""}
        variables = {VISIBLE: ",".join(str(device.index) for device in devices)}
        if len(devices) != devices[0].details.get("chips") and len(devices) in _BOUNDS:
            variables |= {
                "TPU_CHIPS_PER_PROCESS_BOUNDS": _BOUNDS[len(devices)],
                "TPU_PROCESS_BOUNDS": "1,1,1",
            }
        return variables

    def unsought(self, root: Path, own: Mapping[str, str]) -> Mapping[str, str]:
        """Variables by which JAX and PyTorch/XLA look for no chips, in a process that has no device at all.

        An empty list of chips alone does not keep them from it. They also keep them from other devices, so
        they are set where there are chips, and where the process would look for these.
        """
        if not self.present(root) or not any(_model(address) is not None for address in _pci(root)):
            return {}
        return {name: value for name, value in _ON_CPU.items() if _looks_for_chips(own.get(name, ""))}


def _looks_for_chips(platforms: str) -> bool:
    return not platforms or "tpu" in platforms.lower().split(",")


def _pci(root: Path) -> list[Path]:
    folder = root / "sys/bus/pci/devices"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _model(address: Path) -> str | None:
    if files.text(address / "vendor") != _GOOGLE:
        return None
    return _MODELS.get(files.text(address / "device") or "")


def _device_files(root: Path, chips: Sequence[Path]) -> list[Path]:
    """The device files of the chips that are here: a container may have fewer than the bus."""
    accel = [root / f"dev/accel{number}" for number in files.numbered(root / "dev", "accel")]
    if accel:
        return accel[: len(chips)]
    groups = {os.path.basename(os.path.realpath(chip / "iommu_group")) for chip in chips}
    own = [root / f"dev/vfio/{number}" for number in files.numbered(root / "dev/vfio", "")]
    return [path for path in own if path.name in groups or groups == {"iommu_group"}]
