"""What a request gets of nodes whose shapes are known: the same rules for Slurm, Ray and Kubernetes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs

from upshift.backends.base import Finding, Offer
from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.kinds import kind_of_model
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import SCHEDULER, Device, Hardware, Shortfall


class Shape(Protocol):
    """What all nodes have."""

    @property
    def name(self) -> str:
        """As its cluster calls it."""

    @property
    def cpus(self) -> float:
        """CPUs that jobs can have."""

    @property
    def memory(self) -> int:
        """Bytes that jobs can have."""

    @property
    def accelerators(self) -> int:
        """Devices of all kinds."""


Node = TypeVar("Node", bound=Shape)

_FIELDS: Mapping[str, tuple[str, Callable[[Any], str], str]] = {
    "cpu_count": ("cpus", "{:g}".format, "CPUs"),
    "memory": ("memory", format_size, "of memory"),
    "disk": ("disk", format_size, "of disk"),
}
"""Of each field of a request: the attribute of a node, and how it is written."""


def largest(nodes: Iterable[Node]) -> Node | None:
    """The node with the most devices, of several with as many the one with the most CPUs."""
    return max(nodes, key=lambda node: (node.accelerators, node.cpus, node.memory), default=None)


def counted(nodes: Sequence[object]) -> str:
    """How many nodes there are, in words."""
    return f"{len(nodes)} nodes" if len(nodes) != 1 else "1 node"


def devices_finding(counts: Iterable[Mapping[str, int]], *, none: str = "none", where: str = "") -> Finding:
    """The devices of all nodes, of which each has so many of each kind."""
    total: Counter[str] = Counter()
    for of_node in counts:
        total.update(of_node)
    shown = ", ".join(f"{number} × {kind}" for kind, number in total.items() if number)
    return Finding(name="devices", text=f"{shown or none}{where}")


def shared_memory_within(memory: int | None, asked: int | None) -> tuple[int | None, list[Shortfall]]:
    """What is granted of shared memory, which is a part of the memory."""
    if asked is None or memory is None or asked <= memory:
        return asked, []
    short = Shortfall(
        field="shared_memory",
        asked=f"{format_size(asked)} of shared memory",
        got=format_size(memory),
        why=f"it is part of the memory, of which there is {format_size(memory)}",
        fix="Ask for more memory, or for less shared memory.",
    )
    return memory, [short]


@attrs.define(kw_only=True)
class Fit(Generic[Node]):
    """A request that is compared with nodes; what it cannot have is in :attr:`short`."""

    request: ResourceSettings
    nodes: Sequence[Node]  # those that a job may run on
    why: str  # what the largest of them is
    unknown: bool = False  # whether there may be larger ones: an autoscaler adds them, or none may be listed
    short: list[Shortfall] = attrs.field(factory=list)

    def sizes(self, *fields: str) -> tuple[tuple[Any, ...], list[Node]]:
        """What is granted of these fields on each node, and the nodes that have all of it."""
        granted = tuple(self._most(field) for field in fields)
        fits = [
            node
            for node in self.nodes
            if all(
                (amount or 0) <= getattr(node, _FIELDS[field][0])
                for field, amount in zip(fields, granted, strict=True)
            )
        ]
        return granted, fits

    def _most(self, field: str) -> Any:
        attribute, shown, what = _FIELDS[field]
        asked = getattr(self.request, field)
        most = max((getattr(node, attribute) for node in self.nodes), default=0)
        if asked is None or asked <= most or self.unknown:
            return asked
        self.lacks(field, f"{shown(asked)} {what}", shown(most))
        return most

    def lacks(self, field: str, asked: str, got: str, why: str | None = None) -> None:
        """A part of the request that no node has."""
        self.short.append(Shortfall(field=field, asked=asked, got=got, why=why or self.why))

    def lacks_devices(self, why: str | None = None) -> None:
        """No node has the accelerators."""
        self.lacks("gpu_count", " or ".join(map(str, self.request.alternatives)), "none", why)

    def offer(self, granted: Hardware, avoids: Sequence[str], **enforced_by: str) -> Offer:
        """What is granted on each node, and by whom it is enforced; devices, by the scheduler."""
        by = {**enforced_by, **({"gpus": SCHEDULER} if granted.gpus else {})}
        details = {"enforced_by": by, **granted.details, **({"avoids": list(avoids)} if avoids else {})}
        return Offer(granted=attrs.evolve(granted, details=details), shortfalls=tuple(self.short))

    def confirm(self, fits: Sequence[Node]) -> None:
        """See that there is a node with all of it at once."""
        if not self.short and not fits and not self.unknown:
            self.lacks("cpu_count", "all of it on one node", "no node")

    def devices(
        self,
        models: Iterable[str | None],  # what the cluster calls the devices of nodes; None: it has not said
        holding: Callable[[Sequence[Device]], int],  # how many nodes have these devices
        *,
        added: Callable[[Wanted], tuple[Device, ...]] = lambda wanted: (),  # of nodes that are not there yet
    ) -> tuple[Device, ...]:
        """The first alternative that enough nodes have, or else one node at least; none: no node has any."""
        models = list(dict.fromkeys(models))
        for least in (1,) if self.unknown else dict.fromkeys((self.request.least_nodes, 1)):
            for wanted in self.request.alternatives:
                for found in _of_models(wanted, models):
                    if holding(found) >= least:
                        return found
                if new := added(wanted):
                    return new
        return ()

    def spread(
        self,
        able: Sequence[Node],  # those with all that is asked for
        avoid: Iterable[str],  # the names of nodes that are not to be used, if there are enough others
        *,
        room: Callable[[Sequence[Node]], tuple[int, str]],  # how many of them one job gets, and why not more
        takes: Callable[[Node], bool] = lambda node: True,  # whether a node takes jobs now
        hosts: int = 1,  # how many nodes its devices need
    ) -> tuple[int, list[str]]:
        """On how many nodes a job runs, and which it avoids: none where there would be too few without them.

        A job on a fixed number of nodes waits for some that are down; one that will do with fewer does not
        count on them.
        """
        request = self.request
        avoids = sorted({node.name for node in self.nodes}.intersection(avoid))
        count = hosts if hosts > 1 else request.most_nodes
        if count == 1 or self.short or self.unknown:
            return count, avoids
        left = [node for node in able if node.name not in avoids]
        if request.is_elastic:
            left = [node for node in left if takes(node)]
        least, has = max(request.least_nodes, hosts), room(left)[0]
        if has >= least:
            return min(count, has), avoids
        has, why = room(able)
        if least <= has:
            return least, []
        self.lacks("num_nodes", f"{least} nodes", str(has), why)
        return max(1, has), []


def _of_models(wanted: Wanted, models: Iterable[str | None]) -> Iterable[tuple[Device, ...]]:
    """Devices that are what is wanted: any at all, if no more is said, or those of a model."""
    if not any((wanted.kind, wanted.name, wanted.vendor, wanted.memory, wanted.partition)):
        yield (Device(),) * wanted.count
    for model in models:
        kind = kind_of_model(model)
        vendor, name, memory = (kind.vendor, kind.name, kind.memory) if kind else (None, None, None)
        if model is not None and wanted.admits(vendor=vendor, model=model, kind=name, memory=memory):
            yield (Device(vendor=vendor, model=model, kind=name),) * wanted.count
