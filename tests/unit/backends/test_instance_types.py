"""The table of EC2's instance types, against what moto has recorded of DescribeInstanceTypes."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moto
import pytest

from upshift.backends.batch.api import TABLE, table, types_of
from upshift.model.settings.kinds import kind_named, members

RECORDED = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
FIELDS = ("type", "vcpus", "memory", "architecture", "device", "count", "efa")
MORE = (
    ("p3.2xlarge", 8, 62464, "x86_64", "V100-16GB", 1, 0),
    ("p3.8xlarge", 32, 249856, "x86_64", "V100-16GB", 4, 0),
    ("p3.16xlarge", 64, 499712, "x86_64", "V100-16GB", 8, 0),
)
"""Of AWS's announcement of P3 (8, 32, 64 vCPUs; 61, 244, 488 GiB; 1, 4, 8 V100), read in November 2026."""
INCOMPLETE = ("trn2u.48xlarge",)
"""Types whose devices are not on record: what the table does not have is submitted as it is."""
KINDS = {"H100": "H100-SXM", "H200": "H200-SXM", "T4g": "T4", "RTX PRO Server 6000": "RTX-PRO-6000"}


def kind_of(device: dict[str, Any]) -> str:
    """What we call a device that EC2 describes: of a family the member whose memory is nearest."""
    family = kind_named(KINDS.get(device["Name"], device["Name"]))
    if family.memory is not None:
        return family.name
    memory = device["MemoryInfo"]["SizeInMiB"] << 20
    plain = [kind for kind in members(family) if kind.memory and len(kind.name.split("-")) == 2]
    return min(plain, key=lambda kind: abs((kind.memory or 0) - memory)).name


def rows() -> Iterator[tuple[Any, ...]]:
    """Each type that EC2 describes and that Batch could use."""
    for name, said in json.loads(gzip.decompress(RECORDED.read_bytes())).items():
        architecture = said["ProcessorInfo"]["SupportedArchitectures"][-1]
        if architecture not in ("x86_64", "arm64") or name in INCOMPLETE:
            continue
        listed = [
            *said.get("GpuInfo", {}).get("Gpus", ()),
            *said.get("NeuronInfo", {}).get("NeuronDevices", ()),
        ]
        whole = [device for device in listed if device["Count"]]  # a part of a GPU is not handed out by ECS
        device = whole[0] if whole else None
        efa = said["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
        sizes = (said["VCpuInfo"]["DefaultVCpus"], said["MemoryInfo"]["SizeInMiB"])
        devices = (kind_of(device), device["Count"]) if device else ("", 0)
        yield (name, *sizes, architecture, *devices, efa)


def test_the_table_says_what_ec2_says() -> None:
    recorded = sorted([*rows(), *MORE])
    if os.environ.get("UPDATE_TABLES"):
        with TABLE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(FIELDS)
            writer.writerows([*row[:4], row[4], row[5] or "", row[6] or ""] for row in recorded)
        table.cache_clear()
    known = table()
    assert len(known) > 1000
    for name, vcpus, memory, architecture, device, count, efa in recorded:
        if name in known:  # EC2 has new ones each month, and changes none
            one = known[name]
            assert (one.vcpus, one.memory, one.architecture) == (vcpus, memory, architecture), name
            assert (one.device or "", one.count, one.efa) == (device, count, efa), name


@pytest.mark.parametrize(
    ("name", "device", "count", "efa"),
    [
        ("p4d.24xlarge", "A100-40GB", 8, 4),
        ("p4de.24xlarge", "A100-80GB", 8, 4),
        ("p5.48xlarge", "H100-SXM", 8, 32),
        ("g5.xlarge", "A10G", 1, 0),
        ("p3dn.24xlarge", "V100-32GB", 8, 1),
        ("trn1.32xlarge", "Trainium", 16, 8),
        ("inf1.24xlarge", "Inferentia", 16, 1),
        ("inf2.48xlarge", "Inferentia2", 12, 0),
        ("trn2.48xlarge", "Trainium2", 16, 16),
    ],
)
def test_types_have_the_devices_that_we_know_by_name(name: str, device: str, count: int, efa: int) -> None:
    one = table()[name]
    assert (one.device, one.count, one.efa) == (device, count, efa)


def test_environments_name_types_families_and_bundles() -> None:
    known, unknown = types_of(["p5", "g5.xlarge", "q9.large"])
    assert [one.name for one in known] == ["g5.xlarge", "p5.4xlarge", "p5.48xlarge"]
    assert unknown == ("q9.large",)
    assert {one.architecture for one in types_of(["default_arm64"])[0]} == {"arm64"}
    assert {one.name.partition(".")[0] for one in types_of(["default_x86_64"])[0]} == {
        "m6i",
        "c6i",
        "r6i",
        "c7i",
    }
