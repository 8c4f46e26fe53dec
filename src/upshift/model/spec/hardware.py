"""The hardware and the processes of an attempt.

Four records of hardware share one shape: asked, granted, seen, used. A :class:`Launch` says how many
processes a task has, a :class:`Rank` which of them one is, a :class:`Stack` where it was when all were asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from upshift.model.settings.resources import ResourceSettings

Model = tuple[str, str, str]
"""What makes two devices interchangeable: vendor, model, and profile of a slice."""
SUPERVISOR, CGROUP, SCHEDULER = "supervisor", "cgroup", "scheduler"
"""Who enforces a part of a grant: the supervisor; a cgroup that it is in itself, with the step; or the
scheduler, which has handed out what is there."""


def enforced(by: str) -> dict[str, dict[str, str]]:
    """Details of a grant of which all is enforced by one of these."""
    return {"enforced_by": dict.fromkeys(("cpu", "memory", "gpus"), by)}


@attrs.frozen(kw_only=True)
class Device:
    """One GPU or other accelerator; None where unknown or not asked for.

    Parameters
    ----------
    vendor
        ``"nvidia"``, ``"amd"``, …
    model
        As the vendor's library names it, or the kind that was asked for.
    memory
        Bytes.
    uuid
        The vendor's identifier of the device, or of the slice of it.
    index
        Number on its node.
    node
        Number of the node in the task, from 0.
    kind
        Its name in :mod:`upshift.model.settings.kinds`: ``"H100"``.
    compute_capability
        NVIDIA's, ``"9.0"``; of AMD the architecture, ``"gfx942"``.
    partition
        Profile, if it is a slice of a device: ``"1g.10gb"``.
    parent
        The uuid of the device that it is a slice of.
    numa_node
        Number of the NUMA node of its machine that it is attached to; None also where there is only one.
    details
        What the record of it knows beyond that: in ``used`` how busy it was.
    """

    vendor: str | None = None
    model: str | None = None
    memory: int | None = None
    uuid: str | None = None
    index: int | None = None
    node: int = 0
    kind: str | None = None
    compute_capability: str | None = None
    partition: str | None = None
    parent: str | None = None
    numa_node: int | None = None
    details: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @property
    def sort(self) -> Model:
        """What makes it interchangeable with others."""
        return (self.vendor or "", self.model or self.kind or "", self.partition or "")

    def as_json(self) -> dict[str, Any]:
        """Every field by name, null where unknown, details beside them."""
        return _flat(self)


@attrs.frozen(kw_only=True)
class Hardware:
    """Hardware, per node; None where unknown, or where nothing was asked for.

    Parameters
    ----------
    cpu_count
        CPUs, a fraction allowed.
    memory
        Bytes of host memory.
    gpus
        Accelerators; empty: none. None: not asked for, or unknown.
    nodes
        Number of nodes.
    processes
        Over all nodes, in ``asked`` and ``granted`` where a launcher starts them.
    disk, shared_memory
        Bytes.
    details
        What this record knows beyond the common shape: in ``asked`` the alternatives, where there are
        several or topologies (:class:`upshift.model.settings.accelerator.Wanted`), and the least number of
        nodes where it is not that of ``nodes``, in ``granted`` who enforces what (``{"cpu", "memory",
        "gpus"}``), the nodes that are avoided, the CPUs by number and how memory is limited, in ``seen`` the
        host, its Python and its cgroup, in ``used`` the peaks, the means and the digest of the series.
    """

    cpu_count: float | None = None
    memory: int | None = None
    gpus: tuple[Device, ...] | None = None
    nodes: int | None = None
    processes: int | None = None
    disk: int | None = None
    shared_memory: int | None = None
    details: Mapping[str, Any] = attrs.field(factory=dict)

    @classmethod
    def asked(cls, request: ResourceSettings, launch: Launch | None = None) -> Hardware:
        """The record of a request: of its devices those that are preferred; and of how many processes."""
        wanted = request.alternatives
        gpus = None
        if wanted:
            device = Device(
                vendor=wanted[0].vendor,
                model=wanted[0].name,
                kind=wanted[0].kind.name if wanted[0].kind else None,
                memory=wanted[0].memory,
                partition=wanted[0].partition,
            )
            gpus = (device,) * wanted[0].count
        details: dict[str, Any] = {}
        if len(wanted) > 1 or any(one.topology for one in wanted):
            details["alternatives"] = [one.as_json() for one in wanted]
        if request.is_elastic:
            details["least_nodes"] = request.least_nodes
        return cls(
            cpu_count=request.cpu_count,
            memory=request.memory,
            gpus=gpus,
            nodes=None if request.num_nodes is None else request.most_nodes,
            processes=None if launch is None else launch.processes,
            disk=request.disk,
            shared_memory=request.shared_memory,
            details=details,
        )

    def enforced_by(self, part: str) -> str | None:
        """Who enforces a part of this grant: ``"cpu"``, ``"memory"`` or ``"gpus"``; None: nobody does."""
        by = self.details.get("enforced_by")
        return by.get(part) if isinstance(by, Mapping) else None

    def as_json(self) -> dict[str, Any]:
        """Every field by name, null where unknown, details beside them; the form ``--json`` shows.

        ``processes`` is there only where a launcher starts them.
        """
        gpus = None if self.gpus is None else [gpu.as_json() for gpu in self.gpus]
        record = _flat(self) | {"gpus": gpus}
        if self.processes is None:
            del record["processes"]
        return record


def _flat(record: Device | Hardware) -> dict[str, Any]:
    fields = {f.name: getattr(record, f.name) for f in attrs.fields(type(record)) if f.name != "details"}
    return fields | dict(record.details)


@attrs.frozen(kw_only=True)
class Shortfall:
    """One thing that was asked for and is not granted.

    Parameters
    ----------
    field
        Of the request, or ``"image"``.
    asked, got
        For people: ``"8 GPUs"``, ``"none"``.
    why
        The reason.
    fix
        What to do about it.
    """

    field: str
    asked: str
    got: str
    why: str
    fix: str | None = None


IDLE = 5.0
"""Percent: a GPU that is less busy than this is idle."""
ONE_CPU = (0.85, 1.25)
"""CPUs in use, from and to, where one thread works and nothing else does."""


def one_cpu(cpus: float) -> bool:
    """Whether exactly about one CPU is busy."""
    return ONE_CPU[0] <= cpus <= ONE_CPU[1]


@attrs.frozen(kw_only=True)
class Launch:
    """How many processes make one task, and how they are started.

    Upshift's supervisor is the launcher: it starts the processes, and gives each the environment that
    the launcher of this name would have given it.

    Parameters
    ----------
    launcher
        ``"accelerate"``, ``"torchrun"``, or ``"parallel"``: the nodes of a flow's ``num_parallel``.
    processes
        How many over all nodes, as it was asked for.
    counted
        Whether somebody has said how many; else it is one on each node.
    per_node
        How many on each node: decided when the step is offered its hardware, None before.
    devices
        Whether each process is to have a device of its own.
    arguments
        What else the launcher was told: its own arguments by their Python names, those alone that were given.
    files
        Texts of the files that its arguments name, by argument: its configuration (YAML or JSON), and others.
    port
        The port of the main process; None: one that is free.
    hang
        Seconds without progress after which the processes are stopped; None: it is only said.
    numa_binding
        Whether each process keeps to the CPUs of the NUMA node of its device; None: where there are several.
    """

    launcher: str
    processes: int = 1
    counted: bool = True
    per_node: int | None = None
    devices: bool = False
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    files: Mapping[str, str] = attrs.field(factory=dict)
    port: int | None = None
    hang: float | None = None
    numa_binding: bool | None = None

    @property
    def each(self) -> int:
        """How many a node has; one, as long as that is not decided."""
        return self.per_node or 1


@attrs.frozen(kw_only=True)
class Rank:
    """Which of the processes of a task one is.

    Parameters
    ----------
    rank, world_size
        Its number over all nodes, from 0, and how many there are.
    local_rank, local_world_size
        The same on its own node. Ranks of a node follow each other.
    node, nodes
        Number of its node, from 0, and how many there are.
    address, port
        Where the process of rank 0 listens for the others.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0


@attrs.frozen(kw_only=True)
class Stack:
    """Where one of the processes of a task was when all of them were asked.

    Parameters
    ----------
    rank
        Which one.
    waits
        What it waits for, where that is known: ``"all_reduce"``, ``"init_process_group"``; None: it works.
    where
        The user's innermost line, ``file:line``.
    silent
        Why it did not say where it was: its process is stopped, for example. None: it did.
    text
        The Python stacks of all of its threads.
    """

    rank: int
    waits: str | None = None
    where: str | None = None
    silent: str | None = None
    text: str = ""
