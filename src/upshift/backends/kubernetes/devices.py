"""What a pod needs to get a device: resources by vendor, and the labels and taints that go with them.

Sources: Kubernetes, "Schedule GPUs"; the pages of the device plugins, Neuron's among them; GKE, "Plan TPUs".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from upshift.model.settings.kinds import Kind

RESOURCES: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("nvidia.com/gpu",),
    "amd": ("amd.com/gpu",),
    "intel": ("gpu.intel.com/xe", "gpu.intel.com/i915"),  # the new kernel driver, and the old one
    "habana": ("habana.ai/gaudi",),
    "neuron": ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice"),  # whole devices; the old name
    "tpu": ("google.com/tpu",),  # chips of one host
}
"""Resources of whole devices, by vendor."""
GPUS = ("nvidia", "amd", "intel")
"""Vendors whose devices a plain ``gpu_count`` means, the first one before the others."""
MIG = "nvidia.com/mig-"
EFA = "vpc.amazonaws.com/efa"
PRODUCTS: Mapping[str, tuple[str, ...]] = {
    "nvidia": (
        "nvidia.com/gpu.product",  # GPU feature discovery
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-name",
        "k8s.amazonaws.com/accelerator",
    ),
    "amd": ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
    "intel": ("gpu.intel.com/product",),
    "habana": ("habana.ai/product", "node.kubernetes.io/instance-type"),
    "neuron": ("node.kubernetes.io/instance-type",),  # trn1.32xlarge
    "tpu": ("cloud.google.com/gke-tpu-accelerator",),
}
"""Labels of a node that say what its devices are, by vendor: the first one that it has counts."""
TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
TPU_LABELS: Mapping[str, str] = {
    "tpu-v3": "tpu-v3-slice",
    "tpu-v4": "tpu-v4-podslice",
    "tpu-v5e": "tpu-v5-lite-podslice",
    "tpu-v5p": "tpu-v5p-slice",
    "tpu-v6e": "tpu-v6e-slice",
    "tpu-v7": "tpu7x",
}
"""What GKE calls generations of TPUs in the label of a node."""
TPU_PORTS = (8471, 8080)
"""On which hosts of a slice talk to each other: libtpu, and the metadata that GKE's pods serve."""


def resource_of_partition(profile: str) -> str:
    """The resource of a slice of a GPU: ``nvidia.com/mig-1g.10gb``."""
    return f"{MIG}{profile}"


def topology_of(kind: Kind, chips: int) -> str:
    """The usual shape of so many chips: ``2x4``, ``2x2x4``."""
    assert kind.slices is not None
    if kind.slices.dimensions == 2:
        short = 2 ** int(math.log2(chips) / 2)
        return f"{short}x{chips // short}"
    sides = [2, 2, 1]
    while math.prod(sides) < chips:
        sides[sides.index(min(sides))] *= 2
        sides.sort()
    return "x".join(map(str, sides)) if chips > 4 else "2x2x1"


def chips_per_host(kind: Kind, chips: int) -> int:
    """Chips on each machine of a slice of so many: GKE's machines of several hosts have 4."""
    assert kind.slices is not None
    return chips if chips <= kind.slices.per_machine else min(4, kind.slices.per_machine)


def is_device(resource: str) -> bool:
    """Whether a resource of a node is one of devices."""
    return resource.startswith(MIG) or any(resource in names for names in RESOURCES.values())


def partition_in(product: str) -> str | None:
    """The profile of a node whose GPUs are all cut alike, from its label: ``…-MIG-1g.10gb``."""
    found = re.search(r"-MIG-(\d+g\.\d+gb\S*)$", product)
    return found[1] if found else None
