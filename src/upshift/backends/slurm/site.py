"""A cluster and its jobs as ``scontrol`` and ``squeue`` describe them, and what a request gets there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.base import Finding, Offer
from upshift.backends.scheduler import State
from upshift.backends.shapes import Fit, counted, devices_finding, largest
from upshift.errors import RequestRefused, suggestion
from upshift.model.settings.kinds import kind_of_model
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.settings.slurm import minutes_of
from upshift.model.spec.hardware import SCHEDULER, SUPERVISOR, Device, Hardware

MIB = 1 << 20
_PENDING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_RUNNING = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"})
_CAUSES = {
    "BOOT_FAIL": ("infrastructure", "its node did not boot"),
    "CANCELLED": ("cancelled", "somebody cancelled the job"),
    "DEADLINE": ("timeout", "the job reached its deadline"),
    "NODE_FAIL": ("infrastructure", "its node failed"),
    "OUT_OF_MEMORY": ("out-of-memory", "the job went beyond its memory"),
    "PREEMPTED": ("preempted", "the job made room for another one"),
    "REVOKED": ("infrastructure", "another cluster runs the job"),
    "TIMEOUT": ("timeout", "the job reached its time limit"),
}
"""What the states mean by which a job ends otherwise than by itself: squeue(1), "JOB STATE CODES"."""
_HOPELESS = re.compile(
    r"AccountNotAllowed|BadConstraints|DependencyNeverSatisfied|InvalidAccount|InvalidQOS|PartitionNodeLimit"
    r"|PartitionTimeLimit|QOSNotAllowed|ReservationDeleted|(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode)\w*"
)
"""Reasons of waiting that do not go away by themselves: squeue(1), "JOB REASON CODES"."""


@attrs.frozen(kw_only=True)
class Node:
    """A node, up or down."""

    name: str
    cpus: int
    memory: int  # bytes
    disk: int  # bytes of its folder for temporary files; 0: the site has not said
    gpus: Mapping[str | None, int]  # by type; None: the site has not said
    partitions: frozenset[str]
    state: str = "IDLE"  # in Slurm's words: IDLE+DRAIN, DOWN*

    @property
    def accelerators(self) -> int:
        """GPUs of all types."""
        return sum(self.gpus.values())

    @property
    def takes_jobs(self) -> bool:
        """Whether it runs jobs now, or will once others have ended."""
        down = ("DOWN", "DRAIN", "FAIL", "MAINT", "NOT_RESPONDING", "POWERED_DOWN", "UNKNOWN", "*")
        return not any(word in self.state for word in down)

    def __str__(self) -> str:
        gpus = "".join(f", {count} × {kind or 'GPU'}" for kind, count in self.gpus.items())
        return f"{self.name} with {self.cpus} CPUs, {format_size(self.memory)} of memory{gpus}"


@attrs.frozen(kw_only=True)
class Partition:
    """A partition."""

    name: str
    default: bool
    up: bool
    most_minutes: int | None
    most_nodes: int | None  # of one job
    accounts: tuple[str, ...]  # that may use it; none: all


@attrs.frozen(kw_only=True)
class Site:
    """What there is."""

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]


def read_site(nodes: str, partitions: str) -> Site:
    """What ``scontrol --oneliner show nodes`` and ``show partitions`` have printed."""
    return Site(
        nodes=tuple(map(_node, _records(nodes, "NodeName"))),
        partitions=tuple(map(_partition, _records(partitions, "PartitionName"))),
    )


def state_of(id: str, name: str, nodes: str, reason: str) -> State:
    """A job's state, in the words of ``squeue``."""
    nodes = "" if nodes == "None assigned" else nodes  # as sacct says it
    name, node = name.split()[0].rstrip("+"), nodes or None
    if name in _PENDING:
        waits = None if reason in ("None", "") else reason
        return State(phase="pending", why=waits, hopeless=bool(_HOPELESS.search(reason)))
    if name in _RUNNING:
        return State(phase="running", node=node)
    if name == "COMPLETED":
        return State(phase="ended", node=node)
    cause, words = _CAUSES.get(name, ("infrastructure", "the job failed"))
    if re.search(r"[\[,]", nodes):  # squeue does not say which
        words = words.replace("its node", "one of its nodes")
    at = f" on {nodes}" if nodes else ""
    return State(
        phase="ended",
        reason=cause,
        message=f"{words}{at}: Slurm says {name} of job {id}",
        vague=name not in _CAUSES,
        node=node,
    )


def findings(said: Mapping[str, Any], site: Site) -> Iterator[Finding]:
    """What a job with these settings meets now: partitions and their nodes, devices.

    Raises
    ------
    RequestRefused
        A partition or account is none of this cluster's.
    """
    for partition in chosen(said, site):
        nodes = [node for node in site.nodes if partition.name in node.partitions]
        able = [node for node in nodes if node.takes_jobs]
        where = f"partition {partition.name!r}"
        if not partition.up or not able:
            why = "is not up" if not partition.up else f"has no node of {len(nodes)} that takes jobs"
            states = ", ".join(sorted({node.state for node in nodes}))
            yield Finding(
                name="queue",
                text=f"{where} {why}" + (f": nodes are {states}" if states else ""),
                status="problem",
                remedy="Name another partition, or ask the site: sinfo -R says what is the matter.",
            )
            continue
        away = "" if len(able) == len(nodes) else f", {len(able)} of which take jobs now"
        limit = "" if partition.most_minutes is None else f", jobs of {_span(partition.most_minutes)} at most"
        yield Finding(
            name="queue",
            text=f"{where}: {counted(nodes)}{away}, the largest {largest(able)}{limit}",
            status="ok" if len(able) == len(nodes) else "warning",
        )
        counts = ({kind or "GPU": number for kind, number in node.gpus.items()} for node in able)
        yield devices_finding(counts, where=f" in {where}")


def offer(
    request: ResourceSettings, said: Mapping[str, Any], site: Site, *, avoid: Iterable[str] = ()
) -> Offer:
    """What a request gets, where it is submitted with these settings.

    Parameters
    ----------
    avoid
        Names of nodes that are not to be used, if there are enough others.

    Raises
    ------
    RequestRefused
        A partition or account is none of this cluster's.
    """
    partitions = chosen(said, site)
    nodes = [node for node in site.nodes if not node.partitions.isdisjoint(p.name for p in partitions)]
    where = (
        "partition" + (" " if len(partitions) == 1 else "s ") + ", ".join(repr(p.name) for p in partitions)
    )
    most = largest(nodes)
    why = f"{where} has no nodes" if most is None else f"the largest node of {where} is {most}"
    fit = Fit(request=request, nodes=nodes, why=why)
    (cpus, memory, disk), fits = fit.sizes("cpu_count", "memory", "disk")
    gpus: tuple[Device, ...] | None = None if request.gpu_count is None else ()
    if request.gpu_count and said.get("gres"):
        gpus = (Device(),) * request.gpu_count
    elif request.gpu_count:
        models = (model for node in fits for model in node.gpus)
        gpus = fit.devices(models, lambda devices: sum(_has(node, devices) for node in fits))
        if not gpus:
            fit.lacks_devices(_gpus_of(where, nodes, why))
    fit.confirm(fits)
    count, avoids = fit.spread(
        [node for node in fits if said.get("gres") or _has(node, gpus or ())],
        avoid,
        room=lambda some: _most_nodes(partitions, some),
        takes=lambda node: node.takes_jobs,
    )
    if request.shared_memory is not None:
        fit.lacks(
            "shared_memory",
            f"{format_size(request.shared_memory)} of shared memory",
            "no promise",
            "/dev/shm is that of the node, and Slurm hands out none of it",
        )
    granted = Hardware(cpu_count=cpus, memory=memory, gpus=gpus, nodes=count, disk=disk)
    return fit.offer(granted, avoids, cpu=SCHEDULER, memory=SUPERVISOR)


def chosen(said: Mapping[str, Any], site: Site) -> list[Partition]:
    """The partitions that a job with these settings may run in.

    Raises
    ------
    RequestRefused
        One of them is none of this cluster's, or may not be used like that.
    """
    by_name = {partition.name: partition for partition in site.partitions}
    names = (
        said["partition"].split(",")
        if said.get("partition")
        else [p.name for p in site.partitions if p.default]
    )
    if not names:
        raise RequestRefused(
            "this cluster has no default partition, and none is named",
            fix=f'Name one, partition="…": {", ".join(by_name)}.',
        )
    for name in names:
        if name not in by_name:
            raise RequestRefused(
                f"this cluster has no partition {name!r}", fix=f"{suggestion(name, by_name)}"
            )
    found = [by_name[name] for name in names]
    account = said.get("account")
    for partition in found:
        if partition.accounts and account not in partition.accounts:
            raise RequestRefused(
                f"account {account!r} may not use partition {partition.name!r}"
                if account
                else f"partition {partition.name!r} wants to know the account, and none is named",
                fix=f'Name one of these, account="…": {", ".join(partition.accounts)}.',
            )
        minutes = minutes_of(said["time"]) if said.get("time") else 0
        if partition.most_minutes is not None and minutes > partition.most_minutes:
            raise RequestRefused(
                f"time={said['time']!r} is more than partition {partition.name!r} allows",
                why=f"No job runs longer there than {_span(partition.most_minutes)}.",
                fix="Ask for less, or choose another partition.",
            )
    return found


def _most_nodes(partitions: Iterable[Partition], fits: Sequence[Node]) -> tuple[int, str]:
    """How many nodes like these a job has in one of these partitions at most, and why not more."""
    return max((_most_nodes_of(one, fits) for one in partitions), key=lambda found: found[0])


def _most_nodes_of(partition: Partition, fits: Iterable[Node]) -> tuple[int, str]:
    there = sum(partition.name in node.partitions for node in fits)
    if partition.most_nodes is not None and partition.most_nodes < there:
        return partition.most_nodes, f"partition {partition.name!r} gives a job no more (MaxNodes)"
    return there, f"partition {partition.name!r} has no more nodes with what is asked for on each"


def _has(node: Node, devices: Sequence[Device]) -> bool:
    """Whether a node has so many of these devices."""
    model = devices[0].model if devices else None
    return len(devices) <= (sum(node.gpus.values()) if model is None else node.gpus.get(model, 0))


def _gpus_of(where: str, nodes: Sequence[Node], why: str) -> str:
    """Why no node has the devices; where the site names them in its own way, how they are asked for."""
    kinds = sorted({kind for node in nodes for kind in node.gpus if kind})
    unknown = [kind for kind in kinds if kind_of_model(kind) is None]
    if unknown:
        return (
            f'{why}; what {", ".join(unknown)} is only the site knows: gres="gpu:{unknown[0]}:1" asks for it'
        )
    if any(None in node.gpus for node in nodes):
        return f"{why}; the site does not say of which kind its GPUs are: gpu_count alone asks for any"
    return why


def _records(text: str, first: str) -> Iterator[dict[str, str]]:
    """``NAME=VALUE NAME=VALUE …`` of each line that begins with ``first``."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            yield dict(re.findall(r"(\w+)=(\S*)", line))


def _node(record: Mapping[str, str]) -> Node:
    gpus: dict[str | None, int] = {}
    # gpu:h200:4(S:0-1),gpu:a100:2, or gpu:4 where the site has said no type
    for said in re.findall(r"(?:^|,)gpu:([^,(]+)", record.get("Gres", "")):
        kind, _, count = said.rpartition(":")
        if count.isdecimal():
            gpus[kind or None] = gpus.get(kind or None, 0) + int(count)
    return Node(
        name=record["NodeName"],
        cpus=int(record.get("CPUEfctv") or record.get("CPUTot") or 0),
        memory=int(record.get("RealMemory") or 0) * MIB,
        disk=int(record.get("TmpDisk") or 0) * MIB,
        gpus=gpus,
        partitions=frozenset(record.get("Partitions", "").split(",")),
        state=record.get("State", "UNKNOWN"),
    )


def _partition(record: Mapping[str, str]) -> Partition:
    accounts = record.get("AllowAccounts", "ALL")
    time = record.get("MaxTime", "UNLIMITED")
    return Partition(
        name=record["PartitionName"],
        default=record.get("Default") == "YES",
        up=record.get("State") == "UP",
        most_minutes=None if time in ("UNLIMITED", "NONE") else minutes_of(time),
        most_nodes=int(nodes) if (nodes := record.get("MaxNodes", "")).isdecimal() else None,
        accounts=() if accounts == "ALL" else tuple(accounts.split(",")),
    )


def _span(minutes: int) -> str:
    for unit, size in (("d", 1440), ("h", 60)):
        if minutes >= size and minutes % size == 0:
            return f"{minutes // size} {unit}"
    return f"{minutes} min"
