"""NVIDIA: GPUs and MIG instances, found through NVML, the library of the driver that nvidia-smi uses.

This module knows device files and environment variables, ``nvml`` beside it the library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs

from upshift.runtime.accelerators import files

if TYPE_CHECKING:
    from upshift.model.spec.hardware import Device
    from upshift.runtime.accelerators.nvml import FoundGpu, Nvml
    from upshift.runtime.accelerators.vendor import Inventory, Reading

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"

# The driver's own files; in WSL 2 all goes through dxg. NVIDIA Container Toolkit, 'Device nodes';
# Linux, drivers/hv/dxgkrnl (Microsoft's WSL2-Linux-Kernel).
_FILES = ("dev/nvidiactl", "dev/nvidia0", "dev/dxg")
_WSL = "dev/dxg"


class Nvidia:
    """NVIDIA's devices. One instance keeps what it has opened, so that reading again is cheap."""

    name: ClassVar[str] = "nvidia"

    def __init__(self) -> None:
        self._nvml: Nvml | None = None

    def present(self, root: Path) -> bool:
        return any(os.path.exists(f"{root}/{file}") for file in _FILES)

    def discover(self, root: Path) -> Inventory:
        from upshift.runtime.accelerators.nvml import Nvml, Unusable
        from upshift.runtime.accelerators.vendor import Inventory

        try:
            nvml = self._nvml = self._nvml or Nvml()
            found, problems = nvml.find()
        except Unusable as error:
            return Inventory(vendor=self.name, problems=(str(error),))
        found = [_placed(root, gpu) for gpu in found if _may_open(root, gpu, problems)]
        selection = os.environ.get(VISIBLE)
        devices = visible(found, selection, problems)
        hidden = tuple(device for gpu in found for device in gpu.devices if device not in devices)
        return Inventory(
            vendor=self.name,
            devices=devices,
            driver=nvml.driver,
            runtime=nvml.cuda,
            links=nvml.links(devices),
            problems=tuple(problems),
            hidden=hidden,
            hidden_by=f"{VISIBLE}={selection!r}" if hidden else None,
        )

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        return () if self._nvml is None else self._nvml.read(devices)

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """By UUID, which means the same in every order and inside every other limit.

        One process uses one MIG instance at most: of several, CUDA takes the first ('Multi-Instance
        GPU User Guide', CUDA_VISIBLE_DEVICES).
        """
        if not devices:
            return {VISIBLE: ""}
        names = [device.uuid or str(device.index) for device in devices]
        return {VISIBLE: ",".join(names), ORDER: "PCI_BUS_ID"}


def _may_open(root: Path, gpu: FoundGpu, problems: list[str]) -> bool:
    """Whether the device's file is there and may be opened, which asks the cgroup too, v1 or v2."""
    if gpu.minor is None or os.path.exists(f"{root}/{_WSL}"):
        return True
    refused = files.refusal(root / f"dev/nvidia{gpu.minor}")
    if refused is not None:
        problems.append(f"GPU {gpu.index} ({gpu.uuid}) cannot be used: /dev/nvidia{gpu.minor} {refused}")
    return refused is None


def _placed(root: Path, gpu: FoundGpu) -> FoundGpu:
    """The GPU, with the NUMA node that it is attached to."""
    if gpu.address is None:
        return gpu
    node = files.numa_node(root / "sys/bus/pci/devices" / gpu.address)
    return attrs.evolve(gpu, devices=tuple(attrs.evolve(one, numa_node=node) for one in gpu.devices))


def visible(found: Sequence[FoundGpu], selection: str | None, problems: list[str]) -> tuple[Device, ...]:
    """The devices of those found that ``CUDA_VISIBLE_DEVICES`` leaves.

    As CUDA reads it ('CUDA C++ Programming Guide', CUDA Environment Variables): numbers, UUIDs, the
    first digits of a UUID if no other has them, UUIDs of MIG instances. What is none of these ends the
    list, and a device that is named twice empties it.
    """
    everything = tuple(device for gpu in found for device in gpu.devices)
    if selection is None:
        return everything
    chosen: list[str] = []
    for token in (part.strip() for part in selection.split(",")):
        named = _named(found, token)
        if not named:
            if token not in ("", "-1"):
                problems.append(f"{VISIBLE}={selection!r} names {token!r}, which is not a device here")
            break
        if set(named) & set(chosen):
            problems.append(f"{VISIBLE}={selection!r} names a device twice, and so shows none")
            return ()
        chosen += named
    models = {device.model for device in everything}
    by_number = any(part.strip().isdigit() for part in selection.split(","))
    if by_number and len(models) > 1 and os.environ.get(ORDER) != "PCI_BUS_ID":
        problems.append(
            f"{VISIBLE}={selection!r} counts devices of several kinds from the fastest one on; here they "
            f"are counted by PCI bus id. Set {ORDER}=PCI_BUS_ID, or name them by UUID."
        )
    return tuple(device for device in everything if device.uuid in chosen)


def _named(found: Sequence[FoundGpu], token: str) -> list[str]:
    """UUIDs of what one entry of the list means: of a GPU that is cut into MIG instances, these."""
    if token.isdigit():
        gpus = [gpu for gpu in found if gpu.index == int(token)]
    elif token.startswith("GPU-"):
        gpus = [gpu for gpu in found if gpu.uuid.startswith(token)]
    elif token.startswith("MIG-"):
        return [device.uuid for gpu in found for device in gpu.devices if device.uuid == token]
    else:
        gpus = []
    if len(gpus) != 1:
        return []
    return [device.uuid or "" for device in gpus[0].devices]
