"""AMD: GPUs, by the topology of the kernel's compute driver and the files of amdgpu.

Sources: Linux, ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``, ``kfd_process.c`` and
``Documentation/gpu/amdgpu/driver-misc.rst``, ``thermal.rst``; ROCm documentation, 'GPU isolation
techniques' and 'HIP environment variables'.
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

_NODES = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"
_INTEGRATED = 1 << 30
"""Bytes of memory of its own that a graphics processor inside a CPU has less than."""
_XGMI = "11"  # HSA_IOLINK_TYPE_XGMI
_OWN_MEMORY = ("1", "2")  # HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC, _PRIVATE


class Amd:
    """AMD's GPUs."""

    name: ClassVar[str] = "amd"

    def __init__(self) -> None:
        self._places: dict[str, tuple[Path, str]] = {}

    def present(self, root: Path) -> bool:
        return os.path.exists(f"{root}/dev/kfd")

    def discover(self, root: Path) -> Inventory:
        from upshift.runtime.accelerators.vendor import Inventory

        problems: list[str] = []
        refused = files.refusal(root / "dev/kfd")
        if refused is not None:
            hint = "; add the user to the group `render`" if "user" in refused else ""
            return Inventory(vendor=self.name, problems=(f"/dev/kfd {refused}{hint}",))
        nodes: dict[int, Device] = {}
        links: list[tuple[int, int]] = []
        self._places.clear()
        for node in files.numbered(root / _NODES, ""):
            folder = root / _NODES / str(node)
            properties = _properties(folder / "properties")  # empty: not ours, the cgroup says
            if properties.get("simd_count", "0") == "0":
                continue
            minor = properties.get("drm_render_minor", "0")
            refused = files.refusal(root / f"dev/dri/renderD{minor}")
            if refused is not None:
                problems.append(f"a GPU cannot be used: /dev/dri/renderD{minor} {refused}")
                continue
            card = root / f"sys/class/drm/renderD{minor}/device"
            nodes[node] = _device(folder, card, properties, len(nodes))
            self._places[nodes[node].uuid or ""] = card, files.text(folder / "gpu_id") or ""
            links += [(node, other) for other in _linked(folder)]
        own = _visible(list(nodes.values()), problems)
        devices = tuple(d for d in own if d.memory is None or d.memory >= _INTEGRATED)
        kept = {device.uuid for device in devices}
        pairs = ((nodes[a].uuid, nodes[b].uuid) for a, b in links if a < b and b in nodes)
        return Inventory(
            vendor=self.name,
            devices=devices,
            driver=files.text(root / "sys/module/amdgpu/version"),
            links=tuple((a, b) for a, b in pairs if a and b and {a, b} <= kept),
            problems=tuple(problems),
        )

    def read(self, root: Path, devices: Sequence[Device]) -> Sequence[Reading]:
        from upshift.runtime.accelerators.vendor import Reading

        processes = root / _PROCESSES
        pids = files.numbered(processes, "")
        readings = []
        for device in devices:
            card, gpu = self._places.get(device.uuid or "", (root / "missing", ""))
            if not card.is_dir():
                readings.append(
                    Reading(uuid=device.uuid or "", problem="its driver does not list it any more")
                )
                continue
            hwmon = files.first(card, "hwmon/hwmon*")
            power = files.scaled(hwmon / "power1_average", 1e-6)
            used = {pid: files.number(processes / str(pid) / f"vram_{gpu}") for pid in pids}
            readings.append(
                Reading(
                    uuid=device.uuid or "",
                    busy=files.number(card / "gpu_busy_percent"),
                    memory=files.number(card / "mem_info_vram_used"),
                    power=files.scaled(hwmon / "power1_input", 1e-6) if power is None else power,
                    temperature=files.scaled(hwmon / "temp1_input", 1e-3),
                    clock=files.scaled(hwmon / "freq1_input", 1e-6),
                    memory_clock=files.scaled(hwmon / "freq2_input", 1e-6),
                    ecc_errors=_uncorrected(card / "ras/umc_err_count"),
                    processes={pid: size for pid, size in used.items() if size},
                )
            )
        return readings

    def environment(self, devices: Sequence[Device]) -> Mapping[str, str]:
        """ROCm sees those named by UUID, and HIP counts among these.

        HIP takes ``CUDA_VISIBLE_DEVICES`` for its own variable's other name, and some programs refuse
        to run if the two differ. A number that no device has ends a list.
        """
        if not devices:
            return {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
        numbers = ",".join(map(str, range(len(devices))))
        return {
            "ROCR_VISIBLE_DEVICES": ",".join(map(_name, devices)),
            "HIP_VISIBLE_DEVICES": numbers,
            "CUDA_VISIBLE_DEVICES": numbers,
        }


def _name(device: Device) -> str:
    """Its UUID; older consumer cards have none, and go by their number."""
    return device.uuid if (device.uuid or "").startswith("GPU-") and device.uuid else str(device.index)


def _device(folder: Path, card: Path, properties: Mapping[str, str], index: int) -> Device:
    from upshift.model.spec.hardware import Device

    unique = int(properties.get("unique_id", "0"))
    architecture = _architecture(int(properties.get("gfx_target_version", "0")))
    memory = files.number(card / "mem_info_vram_total")
    return Device(
        vendor="amd",
        model=files.text(card / "product_name") or (f"AMD {architecture}" if architecture else "AMD GPU"),
        memory=_bank_sizes(folder) if memory is None else memory,
        uuid=f"GPU-{unique:016x}" if unique else f"amd-{files.pci_address(card)}",
        index=index,
        compute_capability=architecture,
        numa_node=files.numa_node(card),
    )


def _architecture(version: int) -> str | None:
    """``gfx942`` of 90402, ``gfx90a`` of 90010: the last digit is hexadecimal."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if major else None


def _bank_sizes(folder: Path) -> int | None:
    banks = (_properties(bank / "properties") for bank in sorted(folder.glob("mem_banks/*")))
    sizes = [int(bank.get("size_in_bytes", "0")) for bank in banks if bank.get("heap_type") in _OWN_MEMORY]
    return sum(sizes) or None


def _linked(folder: Path) -> list[int]:
    """Nodes that xGMI joins this one with."""
    links = (_properties(link / "properties") for link in sorted(folder.glob("io_links/*")))
    return [int(link["node_to"]) for link in links if link.get("type") == _XGMI and "node_to" in link]


def _properties(path: Path) -> dict[str, str]:
    """The values of a file with lines ``name number``."""
    lines = (line.split() for line in (files.text(path) or "").splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[1].isdigit()}


def _uncorrected(path: Path) -> int | None:
    """Of ``ue: 0`` and ``ce: 2``."""
    for line in (files.text(path) or "").splitlines():
        name, _, count = line.partition(":")
        if name.strip() == "ue" and count.strip().isdigit():
            return int(count)
    return None


def _visible(devices: list[Device], problems: list[str]) -> list[Device]:
    """What the variables in this process's own environment leave: ROCm's first, then HIP's of these."""
    rocr = os.environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        kept = []
        for token in (part.strip() for part in rocr.split(",")):
            number = files.chosen(token, len(devices))
            named = [d for d in devices if token.startswith("GPU-") and (d.uuid or "").startswith(token)]
            named = [devices[n] for n in number] or (named if len(named) == 1 else [])
            if not named:
                if token not in ("", "-1"):
                    problems.append(
                        f"ROCR_VISIBLE_DEVICES={rocr!r} names {token!r}, which is not a device here"
                    )
                break
            kept += [device for device in named if device not in kept]
        devices = kept
    hip = os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return devices if hip is None else [devices[n] for n in files.chosen(hip, len(devices))]
