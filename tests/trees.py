"""Machines with accelerators, as folders: what their drivers show below ``dev`` and ``sys``.

Each function adds devices of one vendor to ``root``, which ``UPSHIFT_DEVICE_ROOT`` then names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def write(root: Path, contents: Mapping[str, object]) -> None:
    """Files by path, with a line each; None: an empty one, as device files are here."""
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if content is None else f"{content}\n", encoding="utf-8")


def pci(root: Path, address: str, *, vendor: str, device: str, **files: object) -> Path:
    """A device on the bus; the other files by name, with ``__`` for ``/``."""
    own = {name.replace("__", "/"): content for name, content in files.items()}
    write(root / "sys/bus/pci/devices" / address, {"vendor": vendor, "device": device, **own})
    return root / "sys/bus/pci/devices" / address


def link(path: Path, target: Path) -> None:
    """A symbolic link, as sysfs is full of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def numa(root: Path, nodes: Mapping[int, str], devices: Mapping[str, int]) -> None:
    """NUMA nodes with the CPUs of each, as the kernel lists them, and that of devices, by address."""
    write(root, {f"sys/devices/system/node/node{node}/cpulist": cpus for node, cpus in nodes.items()})
    write(root, {f"sys/bus/pci/devices/{address}/numa_node": node for address, node in devices.items()})


def amd(
    root: Path,
    count: int = 2,
    *,
    model: str | None = "AMD Instinct MI300X OAM",
    memory: int = 192 << 30,
    target: int = 90402,
    unique: bool = True,
    linked: bool = True,
    forbidden: Sequence[int] = (),
) -> None:
    """GPUs. ``target`` is the architecture as the kernel has it; ``forbidden``: another container's."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(root, {"dev/kfd": None, f"{nodes}/0/properties": "cpu_cores_count 96\nsimd_count 0"})
    write(root, {"sys/module/amdgpu/version": "6.10.5"})
    for number in range(count):
        node, minor, gpu = number + 1, 128 + number, 40000 + number
        properties = {
            "simd_count": 1216,
            "gfx_target_version": target,
            "drm_render_minor": minor,
            "unique_id": 0xDEADBEEF00000000 + number if unique else 0,
        }
        lines = "\n".join(f"{name} {value}" for name, value in properties.items())
        # A process whose cgroup does not have the device may not read it: EPERM, in the end no content.
        write(root, {f"{nodes}/{node}/properties": "" if number in forbidden else lines})
        write(root, {f"{nodes}/{node}/gpu_id": gpu, f"sys/class/kfd/kfd/proc/4242/vram_{gpu}": number << 30})
        for other in range(count):
            if linked and other != number:
                path = f"{nodes}/{node}/io_links/{other}/properties"
                write(root, {path: f"type 11\nnode_from {node}\nnode_to {other + 1}"})
        if number not in forbidden:
            write(root, {f"dev/dri/renderD{minor}": None})
        device = pci(
            root,
            f"0000:{3 + number:02x}:00.0",
            vendor="0x1002",
            device="0x74a1",
            mem_info_vram_total=memory,
            mem_info_vram_used=5 << 30,
            gpu_busy_percent=63,
            hwmon__hwmon3__power1_average=412_000_000,
            hwmon__hwmon3__temp1_input=51_000,
            hwmon__hwmon3__freq1_input=2_100_000_000,
            hwmon__hwmon3__freq2_input=1_300_000_000,
            ras__umc_err_count=f"ue: {number}\nce: 7",
            **({} if model is None else {"product_name": model}),
        )
        link(root / f"sys/class/drm/renderD{minor}/device", device)


def neuron(
    root: Path, count: int = 2, *, model: str = "Trainium1", architecture: str = "NCv2", cores: int = 2
) -> None:
    """Devices of AWS, with so many cores each."""
    write(root, {"sys/module/neuron/version": "2.21.37.0"})
    for number in range(count):
        folder = f"sys/devices/virtual/neuron_device/neuron{number}"
        write(
            root,
            {
                f"dev/neuron{number}": None,
                f"{folder}/core_count": cores,
                f"{folder}/info/architecture/device_name": model,
                f"{folder}/info/architecture/arch_type": architecture,
                f"{folder}/stats/hardware/mem_ecc_uncorrected": number,
                f"{folder}/stats/hardware/sram_ecc_uncorrected": 0,
            },
        )
        for core in range(cores):
            write(root, {f"{folder}/neuron_core{core}/stats/memory_usage/device_mem/total": 1 << 30})


def tpu(root: Path, count: int = 4, *, device: str = "0x0063", here: int | None = None) -> None:
    """Chips of Google. ``here``: how many of them are in this container."""
    vfio = device in ("0x0062", "0x0063", "0x006f", "0x0076")
    for number in range(count):
        address = pci(root, f"0000:00:{4 + number:02x}.0", vendor="0x1ae0", device=device)
        link(address / "iommu_group", root / f"sys/kernel/iommu_groups/{number}")
        if here is None or number < here:
            write(root, {f"dev/vfio/{number}" if vfio else f"dev/accel{number}": None})
    if vfio:
        write(root, {"dev/vfio/vfio": None})


def intel(
    root: Path, models: Sequence[str] = ("0x0bda",), *, integrated: bool = False, tiles: int = 1
) -> None:
    """GPUs of Intel under xe, by PCI id; first the one inside the CPU, if there is."""
    addresses = [("0000:00:02.0", "0x4692")] if integrated else []
    addresses += [(f"0000:{0x3A + number:02x}:00.0", model) for number, model in enumerate(models)]
    for number, (address, model) in enumerate(addresses):
        device = pci(root, address, vendor="0x8086", device=model)
        write(root, {f"dev/dri/renderD{128 + number}": None})
        link(root / f"sys/class/drm/renderD{128 + number}/device", device)
        if address == "0000:00:02.0":
            continue
        for tile in range(tiles):
            write(device, {f"tile{tile}/physical_vram_size_bytes": (48 << 30) // tiles})
        write(
            device,
            {
                "tile0/gt0/freq0/act_freq": 1550,
                "hwmon/hwmon5/energy1_input": 1_000_000,
                "hwmon/hwmon5/temp2_input": 44_000,
            },
        )


def gaudi(root: Path, count: int = 2, *, status: str = "Operational", old: bool = False) -> None:
    """Accelerators of Habana; ``old``: with the names of drivers before Linux 6.5."""
    for number in range(count):
        device = pci(root, f"0000:{0x19 + number:02x}:00.0", vendor="0x1da3", device="0x1020")
        facts = {
            "status": status,
            "device_type": "GAUDI2",
            "pci_addr": f"0000:{0x19 + number:02x}:00.0",
            "clk_cur_freq_mhz": 1400,
            "hwmon/hwmon7/power1_input": 95_000_000,
            "hwmon/hwmon7/temp1_input": 33_000,
        }
        if old:
            write(root / f"sys/class/habanalabs/hl{number}", facts)
            link(root / f"sys/class/habanalabs/hl{number}/device", device)
            write(root, {f"dev/hl{number}": None})
        else:
            write(device, {**facts, "module_id": count - 1 - number})
            write(root, {f"dev/accel/accel{number}": None, f"dev/accel/accel_controlD{number}": None})
            link(root / f"sys/class/accel/accel{number}/device", device)


def remove(path: Path) -> None:
    """Take a file, or a link, away."""
    os.unlink(path)
