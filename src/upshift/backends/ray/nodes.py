"""The nodes of a cluster as its dashboard lists them, and what a request gets there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.base import Finding, Offer
from upshift.errors import RequestRefused
from upshift.model.settings.kinds import kind_of_model
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.settings.wanted import Wanted
from upshift.model.spec.hardware import SCHEDULER, SUPERVISOR, Device, Hardware, Shortfall

TYPE = "accelerator_type:"
"""What the resource is called by which a node says of which type its accelerators are."""
_OF_RAY = re.compile(rf"CPU|GPU|memory|object_store_memory|node:.*|{TYPE}.*")
_PLAIN = re.compile(r"[\w./-]+")


@attrs.frozen(kw_only=True)
class Node:
    """A node that is up."""

    name: str
    cpus: float
    memory: int  # bytes that Ray hands out
    gpus: int
    kind: str | None  # of its GPUs, as Ray calls it; None: it has not said
    resources: Mapping[str, float]  # the cluster's own
    labels: Mapping[str, str]

    def __str__(self) -> str:
        gpus = f", {self.gpus} × {self.kind or 'GPU'}" if self.gpus else ""
        own = "".join(f", {amount:g} × {name}" for name, amount in self.resources.items())
        return f"{self.name} with {self.cpus:g} CPUs, {format_size(self.memory)} of memory{gpus}{own}"


def read_nodes(listed: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """What ``/api/v0/nodes`` lists (``NodeState`` of ``ray.util.state``), of those that are alive."""
    return tuple(_node(node) for node in listed if node["state"] == "ALIVE")


def offer(
    request: ResourceSettings,
    said: Mapping[str, Any],
    nodes: Sequence[Node],
    *,
    grows: bool = False,
    avoid: Iterable[str] = (),
) -> Offer:
    """What a request gets, where it is submitted with these settings.

    Parameters
    ----------
    grows
        Whether an autoscaler may add nodes that are larger than those that are there.
    avoid
        Names of nodes that are not to be used, if there are enough others.

    Raises
    ------
    RequestRefused
        No node has a resource or a label that the settings name.
    """
    short: list[Shortfall] = []
    largest = max(nodes, key=lambda node: (node.gpus, node.cpus, node.memory), default=None)
    why = "the cluster has no nodes" if largest is None else f"its largest node is {largest}"

    def least(field: str, asked: float | None, of: Iterable[float], shown: Any, what: str) -> Any:
        most = max(of, default=0)
        if asked is None or asked <= most or grows:
            return asked
        short.append(Shortfall(field=field, asked=f"{shown(asked)} {what}", got=shown(most), why=why))
        return most

    cpus = least("cpu_count", request.cpu_count, (n.cpus for n in nodes), "{:g}".format, "CPUs")
    memory = least("memory", request.memory, (n.memory for n in nodes), format_size, "of memory")
    fits = [node for node in nodes if (cpus or 0) <= node.cpus and (memory or 0) <= node.memory]
    lacking = [] if grows else _lacking(said, nodes)
    if lacking:
        raise RequestRefused(f"no node of the cluster has {lacking[0]}", why=_listed(nodes))
    fits = [node for node in fits if not _lacking(said, [node])]
    gpus: tuple[Device, ...] | None = None if request.gpu_count is None else ()
    if request.gpu_count:
        wanted = request.alternatives
        for number in dict.fromkeys((request.least_nodes, 1)):
            found = (_devices(one, fits, grows=grows, least=number) for one in wanted)
            gpus = gpus or next(filter(None, found), ())
        if not gpus and not short:
            asked = " or ".join(map(str, wanted))
            untold = any(node.gpus and node.kind is None for node in nodes)
            more = "; it does not say of which type all of its GPUs are: gpu_count alone asks for any"
            short.append(
                Shortfall(field="gpu_count", asked=asked, got="none", why=why + (more if untold else ""))
            )
    if not short and not fits and not grows:
        short.append(Shortfall(field="cpu_count", asked="all of it on one node", got="no node", why=why))
    count, avoids = request.most_nodes, sorted({node.name for node in nodes}.intersection(avoid))
    if count > 1 and not short and not grows:
        able = [node for node in fits if _has(node, gpus or ())]
        left = [node for node in able if node.name not in avoids]
        if len(left) >= request.least_nodes:
            count = min(count, len(left))
        else:  # it waits until others have what it asks for
            avoids, count = [], request.least_nodes
            if count > len(able):
                has = "what is asked for on each" if able else "what is asked for"
                short.append(
                    Shortfall(
                        field="num_nodes",
                        asked=f"{count} nodes",
                        got=str(len(able)),
                        why=f"no more nodes of the cluster have {has}. {_listed(nodes)}",
                    )
                )
                count = max(1, len(able))
    for field, reason in (
        ("disk", "Ray does not hand out disk"),
        ("shared_memory", "/dev/shm is that of the node, and Ray hands out none of it"),
    ):
        value = getattr(request, field)
        if value is not None:
            short.append(Shortfall(field=field, asked=format_size(value), got="no promise", why=reason))
    enforced_by = {"cpu": SCHEDULER, "memory": SUPERVISOR} | ({"gpus": SCHEDULER} if gpus else {})
    return Offer(
        granted=Hardware(
            cpu_count=cpus,
            memory=memory,
            gpus=gpus,
            nodes=count,
            details={"enforced_by": enforced_by} | ({"avoids": avoids} if avoids else {}),
        ),
        shortfalls=tuple(short),
    )


def findings(nodes: Sequence[Node]) -> Iterator[Finding]:
    """What a job meets now: nodes, and their devices."""
    largest = max(nodes, key=lambda node: (node.gpus, node.cpus, node.memory), default=None)
    if largest is None:
        yield Finding(name="nodes", text="none is up", status="problem", remedy="Start some: ray start.")
        return
    count = f"{len(nodes)} nodes" if len(nodes) != 1 else "1 node"
    yield Finding(name="nodes", text=f"{count}, the largest {largest}")
    gpus: Counter[str] = Counter()
    for node in nodes:
        gpus[node.kind or "GPU"] += node.gpus
    shown = ", ".join(f"{number} × {kind}" for kind, number in gpus.items() if number)
    yield Finding(name="devices", text=shown or "none")


def _lacking(said: Mapping[str, Any], nodes: Sequence[Node]) -> list[str]:
    """The resources and labels of these that no node has; of labels, values that are no selectors."""
    return [
        *(
            f"{amount:g} × {name}"
            for name, amount in said.get("resources", {}).items()
            if not any(node.resources.get(name, 0) >= amount for node in nodes)
        ),
        *(
            f"label {name}={value}"
            for name, value in said.get("labels", {}).items()
            if _PLAIN.fullmatch(value) and not any(node.labels.get(name) == value for node in nodes)
        ),
    ]


def _listed(nodes: Sequence[Node]) -> str:
    if not nodes:
        return "It has no nodes."
    return "Its nodes: " + "; ".join(sorted({str(node) for node in nodes})[:8]) + "."


def _has(node: Node, devices: Sequence[Device]) -> bool:
    """Whether a node has so many of these devices."""
    model = devices[0].model if devices else None
    return node.gpus >= len(devices) and model in (None, node.kind)


def _devices(wanted: Wanted, nodes: Sequence[Node], *, grows: bool, least: int = 1) -> tuple[Device, ...]:
    """Devices of so many nodes at least that are what is wanted; none: there are not so many."""
    said = (wanted.kind, wanted.name, wanted.vendor, wanted.memory, wanted.partition)
    if not any(said) and (grows or sum(node.gpus >= wanted.count for node in nodes) >= least):
        return (Device(),) * wanted.count
    for node in nodes:
        kind = kind_of_model(node.kind)
        vendor, name, memory = (kind.vendor, kind.name, kind.memory) if kind else (None, None, None)
        if node.kind is None or node.gpus < wanted.count:
            continue
        if wanted.admits(vendor=vendor, model=node.kind, kind=name, memory=memory):
            found = (Device(vendor=vendor, model=node.kind, kind=name),) * wanted.count
            if grows or sum(_has(other, found) for other in nodes) >= least:
                return found
    if grows and wanted.kind is not None and wanted.partition is None and wanted.memory is None:
        return (
            Device(vendor=wanted.kind.vendor, model=wanted.kind.name, kind=wanted.kind.name),
        ) * wanted.count
    return ()


def _node(record: Mapping[str, Any]) -> Node:
    total = record["resources_total"]
    return Node(
        name=record["node_ip"],
        cpus=total.get("CPU", 0),
        memory=int(total.get("memory", 0)),
        gpus=int(total.get("GPU", 0)),
        kind=next((name.removeprefix(TYPE) for name in total if name.startswith(TYPE)), None),
        resources={name: amount for name, amount in total.items() if not _OF_RAY.fullmatch(name)},
        labels=record.get("labels") or {},
    )
