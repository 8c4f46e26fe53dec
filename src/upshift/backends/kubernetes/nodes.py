"""The nodes of a cluster as its API lists them, and what a request gets there.

A device is a resource of its vendor's, with the labels and taints of nodes that have it. Sources: Kubernetes,
"Schedule GPUs"; the pages of the device plugins, Neuron's among them; GKE, "Plan TPUs".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import attrs

from upshift.backends.base import Finding, Offer
from upshift.backends.shapes import Fit, counted, devices_finding, largest, shared_memory_within
from upshift.errors import RequestRefused
from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.kinds import Kind, kind_of_model
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import CGROUP, SCHEDULER, Device, Hardware

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


POD = "pod"
"""What of a grant's details says how a pod gets it: resources, and labels of its node."""

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:e([+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?")
_FACTORS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


def quantity(text: Any) -> float:
    """A number as Kubernetes writes it: ``3920m``, ``16393244Ki``; 0 for what is none."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return 0.0
    amount = Decimal(found[1]) * Decimal(10) ** int(found[2] or 0)
    return float(amount * _FACTORS.get(found[3] or "", Decimal(1)))


@attrs.frozen(kw_only=True)
class Node:
    """A node, as far as pods are concerned."""

    name: str
    cpus: float
    memory: int  # bytes that pods can have
    disk: int
    devices: Mapping[str, int]  # by resource
    labels: Mapping[str, str] = attrs.field(factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    others: Mapping[str, int] = attrs.field(factory=dict)  # further resources: vpc.amazonaws.com/efa
    takes_pods: bool = True  # whether it is ready, and not cordoned

    @property
    def accelerators(self) -> int:
        """Devices of all resources."""
        return sum(self.devices.values())

    def product(self, vendor: str) -> str | None:
        """What its label calls the devices of a vendor."""
        return next((self.labels[name] for name in PRODUCTS[vendor] if name in self.labels), None)

    def __str__(self) -> str:
        shown = "".join(f", {count} × {self.shown(name)}" for name, count in self.devices.items() if count)
        return f"{self.name} with {self.cpus:g} CPUs, {format_size(self.memory)} of memory{shown}"

    def shown(self, resource: str) -> str:
        """What people read of a resource: its name, and the product that its devices are."""
        vendor = vendor_of(resource)
        product = None if vendor is None or resource.startswith(MIG) else self.product(vendor)
        return f"{resource} ({product})" if product else resource


def vendor_of(resource: str) -> str | None:
    """Whose devices a resource is of."""
    if resource.startswith(MIG):
        return "nvidia"
    return next((vendor for vendor, names in RESOURCES.items() if resource in names), None)


def read_nodes(listed: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The nodes in an answer of ``/api/v1/nodes``."""
    return tuple(map(_node, listed))


def _node(item: Mapping[str, Any]) -> Node:
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    has = status.get("allocatable", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    counted = {name: int(quantity(amount)) for name, amount in has.items() if "/" in name}
    return Node(
        name=meta["name"],
        cpus=quantity(has.get("cpu", 0)),
        memory=int(quantity(has.get("memory", 0))),
        disk=int(quantity(has.get("ephemeral-storage", 0))),
        devices={name: count for name, count in counted.items() if is_device(name)},
        labels=meta.get("labels") or {},
        # A taint of its condition goes away with that.
        taints=tuple(t for t in spec.get("taints") or () if not t["key"].startswith("node.kubernetes.io/")),
        others={name: count for name, count in counted.items() if not is_device(name)},
        takes_pods=ready and not spec.get("unschedulable", False),
    )


def offer(
    request: ResourceSettings,
    said: Mapping[str, Any],
    nodes: Sequence[Node] | None,
    *,
    grows: bool = False,
    avoid: Iterable[str] = (),
) -> Offer:
    """What a request gets, in a pod with these settings.

    Parameters
    ----------
    nodes
        None: they may not be listed, so that nothing is compared with them.
    grows
        Whether an autoscaler may add nodes that are larger than those that are there.
    avoid
        Names of nodes that are not to be used, if there are enough others.

    Raises
    ------
    RequestRefused
        No node has the labels or lacks the taints that the settings name, or settings contradict the request.
    """
    unknown = grows or nodes is None
    open_ = [node for node in nodes or () if not _refuses(node, said, request)]
    if nodes and not open_ and not unknown:
        raise _nowhere(said, nodes)
    most = largest(open_)
    why = "the cluster has no nodes" if most is None else f"the largest node is {most}"
    fit = Fit(request=request, nodes=open_, why=why, unknown=unknown)
    (cpus, memory, disk), fits = fit.sizes("cpu_count", "memory", "disk")
    efa = said.get("efa") or 0
    if efa and not unknown:
        there = max((node.others.get(EFA, 0) for node in fits), default=0)
        if efa > there:
            raise RequestRefused(f"no node has {efa} × {EFA}", why=f"The most that one has is {there}.")
        fits = [node for node in fits if node.others.get(EFA, 0) >= efa]
    gpus: tuple[Device, ...] | None = None if request.gpu_count is None else ()
    pod: dict[str, Any] = {}
    hosts = 1
    if request.gpu_count:
        found = next(filter(None, (_found(one, fits, said, unknown) for one in request.alternatives)), None)
        if found is not None:
            gpus, pod = (found.device,) * found.count, found.pod()
            hosts = found.hosts
            fits = [node for node in fits if found.is_on(node)]
        elif not fit.short:
            fit.lacks_devices(_gpus_of(open_, nodes, why))
    fit.confirm(fits)
    count, avoids = fit.spread(
        fits,
        avoid,
        room=lambda some: (len(some), "there are no more nodes with what is asked for on each"),
        takes=lambda node: node.takes_pods,
        hosts=hosts,
    )
    shared, lack = shared_memory_within(memory, request.shared_memory)
    fit.short += lack
    guaranteed = said.get("qos") == "Guaranteed"
    if guaranteed and (cpus is None or memory is None):
        raise RequestRefused(
            'qos="Guaranteed" needs to know how many CPUs and how much memory',
            why="Kubernetes guarantees what is limited.",
            fix="Ask for both: ResourceSettings(cpu_count=…, memory=…).",
        )
    granted = Hardware(
        cpu_count=cpus,
        memory=memory,
        gpus=gpus,
        nodes=count,
        disk=disk,
        shared_memory=shared,
        details={POD: pod} if pod else {},
    )
    return fit.offer(granted, avoids, cpu=CGROUP if guaranteed else SCHEDULER, memory=CGROUP)


@attrs.frozen(kw_only=True)
class _Found:
    """Devices that are what is wanted: so many on each host, of a node with these labels."""

    device: Device
    count: int
    resource: str
    selector: Mapping[str, str] = attrs.field(factory=dict)
    hosts: int = 1

    def pod(self) -> dict[str, Any]:
        found: dict[str, Any] = {"resource": self.resource}
        return {**found, "node_selector": dict(self.selector)} if self.selector else found

    def is_on(self, node: Node) -> bool:
        labels = all(node.labels.get(name) == value for name, value in self.selector.items())
        return labels and node.devices.get(self.resource, 0) >= self.count


def _found(wanted: Wanted, nodes: Sequence[Node], said: Mapping[str, Any], unknown: bool) -> _Found | None:
    """The devices that are wanted, on a node that has them, or that one may be added with."""
    if wanted.kind is not None and wanted.kind.vendor == "tpu":
        return _slice(wanted, nodes, unknown)
    for resource in _resources(wanted):
        for node in sorted(nodes, key=lambda node: node.devices.get(resource, 0)):
            found = _on(node, resource, wanted)
            if found is not None:
                return found
    if not unknown:
        return None
    named = said.get("node_selector") or said.get("affinity")
    if (wanted.kind or wanted.name or wanted.memory) and not named:
        return None  # which label its node would have nobody knows
    vendor = wanted.vendor or (wanted.kind.vendor if wanted.kind else "nvidia")
    kind = wanted.kind.name if wanted.kind else None
    device = Device(vendor=vendor, model=wanted.name, kind=kind, partition=wanted.partition)
    return _Found(device=device, count=wanted.count, resource=_resources(wanted)[0])


def _resources(wanted: Wanted) -> list[str]:
    """The resources that devices like these may be under."""
    vendor = wanted.vendor or (wanted.kind.vendor if wanted.kind else None)
    if wanted.partition is not None:
        return [resource_of_partition(wanted.partition), "nvidia.com/gpu"]
    return [name for one in ([vendor] if vendor else GPUS) for name in RESOURCES[one]]


def _on(node: Node, resource: str, wanted: Wanted) -> _Found | None:
    """Devices of a node, if they are what is wanted."""
    if node.devices.get(resource, 0) < wanted.count:
        return None
    vendor = vendor_of(resource)
    assert vendor is not None
    product = node.product(vendor)
    kind = kind_of_model(product.split(".")[0] if vendor in ("neuron", "habana") and product else product)
    kind = kind if kind is not None and kind.vendor == vendor else None
    partition = None
    if resource.startswith(MIG):
        partition = resource.removeprefix(MIG)
    elif product is not None:
        partition = partition_in(product)
    admitted = wanted.admits(
        vendor=vendor,
        model=product,
        kind=kind.name if kind else None,
        memory=_memory(node, vendor) or (kind.memory if kind else None),
        partition=partition,
    )
    if not admitted:
        return None
    particular = wanted.kind or wanted.name or wanted.memory
    label = next((name for name in PRODUCTS[vendor] if name in node.labels), None)
    device = Device(vendor=vendor, model=product, kind=kind.name if kind else None, partition=partition)
    selector = {label: node.labels[label]} if particular and label else {}
    return _Found(device=device, count=wanted.count, resource=resource, selector=selector)


def _memory(node: Node, vendor: str) -> int | None:
    """Bytes of each GPU, as GPU feature discovery says in MiB."""
    said = node.labels.get("nvidia.com/gpu.memory", "") if vendor == "nvidia" else ""
    return int(said) << 20 if said.isdecimal() else None


def _slice(wanted: Wanted, nodes: Sequence[Node], unknown: bool) -> _Found | None:
    """A slice of TPUs: nodes of one topology, each with some of its chips."""
    assert wanted.kind is not None
    resource, (label,) = RESOURCES["tpu"][0], PRODUCTS["tpu"]
    for node in nodes:
        product, topology = node.product("tpu"), node.labels.get(TPU_TOPOLOGY, "")
        kind = kind_of_model(product)
        chips = math.prod(int(side) for side in topology.split("x")) if topology else 0
        here = node.devices.get(resource, 0)
        fits = kind is not None and kind.meets(wanted.kind) and chips == wanted.count and here
        if fits and topology == (wanted.topology or topology):
            device = Device(vendor="tpu", model=product, kind=wanted.kind.name)
            selector = {label: product or "", TPU_TOPOLOGY: topology}
            each = min(here, chips)
            return _Found(
                device=device, count=each, resource=resource, selector=selector, hosts=chips // each
            )
    name = TPU_LABELS.get(wanted.kind.name)
    if not unknown or name is None:
        return None
    each = chips_per_host(wanted.kind, wanted.count)
    topology = wanted.topology or topology_of(wanted.kind, wanted.count)
    return _Found(
        device=Device(vendor="tpu", model=name, kind=wanted.kind.name),
        count=each,
        resource=resource,
        selector={label: name, TPU_TOPOLOGY: topology},
        hosts=wanted.count // each,
    )


def _refuses(node: Node, said: Mapping[str, Any], request: ResourceSettings) -> bool:
    """Whether pods with these settings never run on a node, as far as labels and taints say."""
    selector = said.get("node_selector", {})
    if any(node.labels.get(name) != value for name, value in selector.items()):
        return True
    tolerations = list(said.get("tolerations", ()))
    if request.gpu_count:
        tolerations += [{"key": name, "operator": "Exists"} for name in tainted(node.devices)]
    repelling = [t for t in node.taints if t.get("effect") in ("NoSchedule", "NoExecute")]
    return not all(any(_tolerates(one, taint) for one in tolerations) for taint in repelling)


def tainted(resources: Iterable[str]) -> list[str]:
    """The taints that nodes with such devices have: they are named as the resources, by custom."""
    names = ["nvidia.com/gpu" if name.startswith(MIG) else name for name in resources]
    return list(dict.fromkeys(names))


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, taint.get("effect")):
        return False
    if toleration.get("key") is None:
        return True
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _nowhere(said: Mapping[str, Any], nodes: Sequence[Node]) -> RequestRefused:
    """No node takes such a pod."""
    selector = said.get("node_selector", {})
    for name, value in selector.items():
        values = sorted({node.labels[name] for node in nodes if name in node.labels})
        if value not in values:
            there = f"Nodes have {', '.join(values[:8])}." if values else "No node has such a label."
            raise RequestRefused(
                f"no node has the label {name}={value}",
                why=there,
                fix="See kubectl get nodes --show-labels. If an autoscaler adds such nodes, set "
                "autoscaling = true.",
            )
    taints = sorted({f"{t['key']}={t.get('value', '')}:{t.get('effect')}" for n in nodes for t in n.taints})
    return RequestRefused(
        "no node takes a pod with these settings" + (" (node_selector)" if selector else ""),
        why=f"The nodes have taints that are not tolerated: {', '.join(taints[:8])}." if taints else None,
        fix='Tolerate one: tolerations=[{"key": "…", "operator": "Exists"}].',
    )


def _gpus_of(open_: Sequence[Node], nodes: Sequence[Node] | None, why: str) -> str:
    if nodes is None:
        return (
            "Upshift may not list the nodes, so that it does not know by which label this kind is asked for; "
            "name it in node_selector, or let it list nodes"
        )
    if not any(node.devices for node in open_):
        return f"{why}: no node has devices, for which a device plugin has to run"
    unnamed = [n for n in open_ if n.devices and not any(n.product(v) for v in PRODUCTS)]
    more = "; nodes without a label of the product can be asked for by gpu_count alone" if unnamed else ""
    return why + more


def findings(nodes: Sequence[Node], said: Mapping[str, Any]) -> Iterator[Finding]:
    """What a pod meets now: nodes, and their devices."""
    able = [node for node in nodes if node.takes_pods]
    most = largest(able)
    if most is None:
        yield Finding(
            name="nodes",
            text=f"none of {len(nodes)} takes pods" if nodes else "the cluster has none",
            status="problem",
            remedy="See kubectl get nodes. If an autoscaler adds them, set autoscaling = true.",
        )
        return
    away = "" if len(able) == len(nodes) else f", {len(able)} of which take pods now"
    yield Finding(
        name="nodes",
        text=f"{counted(nodes)}{away}, the largest {most}",
        status="ok" if len(able) == len(nodes) else "warning",
    )
    counts = ({node.shown(name): number for name, number in node.devices.items()} for node in able)
    yield devices_finding(counts, none="none: no device plugin has announced any")
