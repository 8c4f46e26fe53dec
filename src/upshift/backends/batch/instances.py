"""EC2's instance types, as dated data: ``instances.csv``.

Read in November 2026 from EC2's DescribeInstanceTypes, as moto 5.2 has recorded it, and for ``p3`` from its
page of EC2. ``UPDATE_TABLES=1 make test ARGS=tests/unit/backends/test_instance_types.py`` writes it again.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Collection, Mapping
from pathlib import Path

import attrs

from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.kinds import kind_named
from upshift.model.settings.sizes import format_size

TABLE = Path(__file__).with_name("instances.csv")
MIB = 1 << 20
_BUNDLES = {
    "default_arm64": ("m6g", "c6g", "r6g", "c7g"),
    "default_x86_64": ("m6i", "c6i", "r6i", "c7i"),
    "optimal": ("m6i", "c6i", "r6i", "c7i", "c4", "m4", "r4", "c5", "m5", "r5"),
}
"""API_ComputeResource, ``instanceTypes``; ``optimal`` with what it was until November 2025."""
REGISTERED = 0.93
"""Of an instance's memory this much is there for jobs, or more: its kernel and the agent of ECS take the rest
(AWS Batch, "Compute resource memory management")."""


@attrs.frozen(kw_only=True)
class InstanceType:
    """A type of instance."""

    name: str
    vcpus: int
    memory: int  # MiB, of which jobs get a little less
    architecture: str  # "x86_64", "arm64"
    device: str | None = None  # the kind of its accelerators
    count: int = 0
    efa: int = 0  # network interfaces of type EFA, at most

    @property
    def vendor(self) -> str | None:
        """Whose accelerators it has."""
        return kind_named(self.device).vendor if self.device else None

    def has(self, wanted: Wanted) -> bool:
        """Whether it has these devices."""
        if wanted.count > self.count or self.device is None:
            return not wanted.count
        kind = kind_named(self.device)
        return wanted.admits(vendor=kind.vendor, model=kind.name, kind=kind.name, memory=kind.memory)

    def holds(self, *, vcpus: float = 0, memory: float = 0, efa: float = 0) -> bool:
        """Whether a job with so much, in MiB, may start on one."""
        return vcpus <= self.vcpus and memory < self.memory and efa <= self.efa

    def __str__(self) -> str:
        devices = f", {self.count} × {self.device}" if self.device else ""
        return f"{self.name} with {self.vcpus} vCPUs, {format_size(self.memory * MIB)} of memory{devices}"


@functools.cache
def table() -> Mapping[str, InstanceType]:
    """All that are known, by name."""
    with TABLE.open(newline="") as file:
        return {
            row["type"]: InstanceType(
                name=row["type"],
                vcpus=int(row["vcpus"]),
                memory=int(row["memory"]),
                architecture=row["architecture"],
                device=row["device"] or None,
                count=int(row["count"] or 0),
                efa=int(row["efa"] or 0),
            )
            for row in csv.DictReader(file)
        }


def types_of(names: Collection[str]) -> tuple[tuple[InstanceType, ...], tuple[str, ...]]:
    """The types that a compute environment may start, by what it names: types, families; and unknown ones."""
    found: dict[str, InstanceType] = {}
    unknown = []
    families: dict[str, list[InstanceType]] = {}
    for one in table().values():
        families.setdefault(one.name.partition(".")[0], []).append(one)
    for name in names:
        if name in table():
            found[name] = table()[name]
            continue
        members = [one for family in _BUNDLES.get(name, (name,)) for one in families.get(family, ())]
        found.update((one.name, one) for one in members if not one.name.endswith(".metal"))
        if not members:
            unknown.append(name)
    return tuple(sorted(found.values(), key=size)), tuple(unknown)


def size(one: InstanceType) -> tuple[int, int, int, str]:
    """The sort key from the smallest type to the largest."""
    return one.count, one.vcpus, one.memory, one.name
