"""Which CPUs each process of a launch gets on a machine with several NUMA nodes: those near its device.

A node is a part of the CPUs with the memory and the devices that are attached to it; all of that is reached
from the CPUs of another node, too, but later::

    node 0   CPUs 0-31    GPU 0, GPU 1   ◀── ranks 0 and 1
    node 1   CPUs 32-63   GPU 2, GPU 3   ◀── ranks 2 and 3

Source: Linux, ``Documentation/ABI/stable/sysfs-devices-node`` and ``sysfs-bus-pci`` (``numa_node``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from upshift.runtime.accelerators import files

_MOST = 1 << 16
"""CPUs of a machine, at most."""


def nodes(root: Path) -> dict[int, frozenset[int]]:
    """The CPUs of each NUMA node, by its number; empty: the kernel says nothing of any."""
    folder = root / "sys/devices/system/node"
    found = {
        number: files.text(folder / f"node{number}/cpulist") for number in files.numbered(folder, "node")
    }
    return {number: frozenset(numbers(text or "")) for number, text in found.items()}


def near(devices: Sequence[int | None], known: Mapping[int, frozenset[int]]) -> list[frozenset[int]]:
    """The CPUs near each of these devices, by their nodes; none where all CPUs are equally near."""
    if len(known) < 2:
        return []
    return [known[node] for node in devices if node is not None and known.get(node)]


def shares(
    cpus: Collection[int], known: Mapping[int, frozenset[int]], devices: Sequence[int | None]
) -> list[tuple[int, ...]]:
    """Which of these CPUs each process gets; without a device that is known to be near some, all of them."""
    everywhere = tuple(sorted(cpus))
    local = {node: tuple(sorted(own.intersection(cpus))) for node, own in known.items()}
    local = {node: own for node, own in sorted(local.items()) if own}
    if len(local) < 2:
        return [everywhere] * len(devices)
    if any(node is not None for node in devices):
        return [local.get(-1 if node is None else node, everywhere) for node in devices]
    if len(devices) < len(local):
        return [everywhere] * len(devices)
    in_order = [own for own in local.values() for _ in own]
    return [in_order[(2 * at + 1) * len(in_order) // (2 * len(devices))] for at in range(len(devices))]


def numbers(text: str) -> list[int]:
    """The CPUs of a list as the kernel writes it: ``0-3,8``."""
    return files.chosen(text, _MOST)


def listed(cpus: Iterable[int]) -> str:
    """CPUs as the kernel lists them."""
    parts = []
    for _, group in groupby(enumerate(sorted(cpus)), key=lambda pair: pair[1] - pair[0]):
        run = [cpu for _, cpu in group]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ",".join(parts)
