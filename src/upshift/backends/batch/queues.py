"""A job queue with its compute environments, as AWS Batch describes them, and what a request gets there."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.backends.base import Ask, Finding, Offer
from upshift.backends.batch.api import MIB, REGISTERED, InstanceType, size, table, types_of
from upshift.errors import RequestRefused
from upshift.model.settings.accelerator import Wanted
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec.hardware import CGROUP, SCHEDULER, Device, Hardware, Shortfall

EC2, FARGATE = "EC2", "FARGATE"
PLATFORM = "platform"
"""In the details of a grant: where it is granted."""
VCPUS, MEMORY = 1, 4096
"""What a job gets that asks for neither CPUs nor devices, nor memory, in MiB: Batch wants to know both."""
DISK = (20, 200)
"""GiB that each task on Fargate has, and that one can be given at most."""
LONGEST = 14 * 24 * 3600.0
"""Seconds after which a task on Fargate is stopped: AWS Batch, "Fargate compute environments"."""
PAIRS: Mapping[float, Sequence[int]] = {
    0.25: (512, 1024, 2048),
    0.5: range(1024, 4097, 1024),
    1: range(2048, 8193, 1024),
    2: range(4096, 16385, 1024),
    4: range(8192, 30721, 1024),
    8: range(16384, 61441, 4096),
    16: range(32768, 122881, 8192),
}
"""MiB of memory that go with vCPUs on Fargate: API_ResourceRequirement of AWS Batch."""
_ROLE = "Name one: iam_role of the target, or of BatchSettings."


@attrs.frozen(kw_only=True)
class Environment:
    """A compute environment."""

    name: str
    kind: str  # "EC2", "SPOT", "FARGATE", "FARGATE_SPOT", …
    state: str  # "ENABLED" or "DISABLED"
    status: str  # "VALID", "INVALID", "UPDATING", …
    reason: str = ""
    most_vcpus: int | None = None
    wanted_vcpus: int = 0  # what AWS Batch has it start now
    types: tuple[InstanceType, ...] = ()
    unknown: tuple[str, ...] = ()  # types that the table does not have

    @property
    def works(self) -> bool:
        """Whether it starts jobs."""
        return self.state == "ENABLED" and self.status != "INVALID"

    @property
    def is_full(self) -> bool:
        """Whether it starts no more than there is."""
        return self.most_vcpus is not None and self.wanted_vcpus >= self.most_vcpus

    @property
    def trouble(self) -> str:
        """Why it starts none."""
        if self.state != "ENABLED":
            return f"compute environment {self.name} is disabled"
        return f"compute environment {self.name} is {self.status}" + (
            f": {self.reason}" if self.reason else ""
        )


@attrs.frozen(kw_only=True)
class Queue:
    """A job queue."""

    name: str
    arn: str
    state: str
    status: str
    reason: str = ""
    shares: bool = False  # whether jobs have to say whose share they count as
    environments: tuple[Environment, ...] = ()

    @property
    def platform(self) -> str:
        """``FARGATE`` or ``EC2``: no queue has both."""
        return FARGATE if any(e.kind.startswith(FARGATE) for e in self.environments) else EC2

    @property
    def types(self) -> tuple[InstanceType, ...]:
        """What it may start, the smallest first."""
        return tuple(sorted({one for e in self.environments for one in e.types}, key=size))

    @property
    def unknown(self) -> tuple[str, ...]:
        """What it may start that the table does not have."""
        return tuple(name for e in self.environments for name in e.unknown)

    @property
    def interruptible(self) -> bool:
        """Whether jobs may lose their instance to who pays more."""
        return any("SPOT" in e.kind for e in self.environments)

    def __str__(self) -> str:
        return f"queue {self.name!r}"


def read_queue(queue: Mapping[str, Any], environments: Collection[Mapping[str, Any]]) -> Queue:
    """What DescribeJobQueues and DescribeComputeEnvironments say."""
    by_arn = {
        key: e for e in environments for key in (e.get("computeEnvironmentArn"), e["computeEnvironmentName"])
    }
    order = sorted(queue.get("computeEnvironmentOrder", ()), key=lambda one: one["order"])
    return Queue(
        name=queue["jobQueueName"],
        arn=queue["jobQueueArn"],
        state=queue.get("state", "ENABLED"),
        status=queue.get("status", "VALID"),
        reason=queue.get("statusReason", ""),
        shares=bool(queue.get("schedulingPolicyArn")),
        environments=tuple(
            _environment(by_arn[one["computeEnvironment"]])
            for one in order
            if one["computeEnvironment"] in by_arn
        ),
    )


def _environment(said: Mapping[str, Any]) -> Environment:
    resources = said.get("computeResources") or {}
    known, unknown = types_of(resources.get("instanceTypes") or ())
    kind = resources.get("type") or said.get("type", "")
    if "eksConfiguration" in said:
        kind = "EKS"
    return Environment(
        name=said["computeEnvironmentName"],
        kind=kind,
        state=said.get("state", "ENABLED"),
        status=said.get("status", "VALID"),
        reason=said.get("statusReason", ""),
        most_vcpus=resources.get("maxvCpus"),
        wanted_vcpus=resources.get("desiredvCpus") or 0,
        types=known,
        unknown=unknown if known or unknown or kind.startswith(FARGATE) else ("instances of its own",),
    )


def offer(ask: Ask, said: Mapping[str, Any], queue: Queue) -> Offer:
    """What a request gets in a queue, where it is submitted with these settings.

    Raises
    ------
    RequestRefused
        The queue takes no jobs, or none with these settings.
    """
    _refuse(said, queue)
    if queue.platform == FARGATE:
        return _on_fargate(ask, said, queue)
    return _on_instances(ask.request, said, queue)


def _refuse(said: Mapping[str, Any], queue: Queue) -> None:
    if any(e.kind == "EKS" for e in queue.environments):
        raise RequestRefused(
            f"{queue} runs its jobs on EKS",
            why="Jobs of this backend are containers of ECS: on EC2, Spot or Fargate.",
            fix="Name a queue with such compute environments, or run on the cluster itself: --on kubernetes.",
        )
    if queue.shares and not said.get("share_identifier"):
        raise RequestRefused(
            f"{queue} has fair-share scheduling, and the job has no share identifier",
            fix='Name it: share_identifier="…" of the target, or of BatchSettings.',
        )
    if queue.state != "ENABLED":
        raise RequestRefused(
            f"{queue} is disabled",
            fix=f"Enable it: aws batch update-job-queue --job-queue {queue.name} --state ENABLED",
        )
    if queue.environments and not any(e.works for e in queue.environments):
        raise RequestRefused(
            f"{queue} can start nothing: " + "; ".join(e.trouble for e in queue.environments),
            fix="Enable a compute environment, or see what is wrong with it: aws batch "
            "describe-compute-environments",
        )


# -- EC2 and Spot ----------------------------------------------------------------------------------


def _on_instances(request: ResourceSettings, said: Mapping[str, Any], queue: Queue) -> Offer:
    short: list[Shortfall] = []
    wanted = request.alternatives or (Wanted(count=0),)
    devices = max(one.count for one in wanted)
    least = {
        "vcpus": math.ceil(request.cpu_count or 0),
        "memory": math.ceil((request.memory or 0) / MIB),
        "efa": said.get("efa") or 0,
    }
    chosen, fits = next(
        ((one, found) for one in wanted if (found := _holding(queue.types, one, least))), (wanted[0], ())
    )
    if not fits and not queue.unknown:
        short.append(_too_large(request, wanted, least, queue))
    smallest = fits[0] if fits else None
    vcpus, memory = _filled(request, chosen.count, smallest)
    if chosen.count and fits:
        others = [one for one in _beside(queue.types, chosen, vcpus, memory) if not one.has(chosen)]
        if others:
            short.append(_other_kind(chosen, others, queue))
    if smallest is not None and smallest.vendor == "neuron" and chosen.count:
        vcpus = max(vcpus, smallest.vcpus // 2 + 1)
        larger = [one for one in _holding(queue.types, chosen, {"vcpus": vcpus}) if one.vcpus >= 2 * vcpus]
        if larger:
            short.append(_overlap(chosen, smallest, larger[-1], queue))
    most = max((e.most_vcpus for e in queue.environments if e.most_vcpus is not None), default=None)
    nodes = request.most_nodes
    if most is not None and vcpus * nodes > most:
        nodes = max(request.least_nodes, most // vcpus)
    if nodes > 1 and queue.interruptible:
        short.append(
            Shortfall(
                field="num_nodes",
                asked=f"{nodes} nodes",
                got="1",
                why=f"{queue} has Spot instances, on which AWS Batch runs no jobs of several nodes",
                fix="Name a queue with compute environments of type EC2.",
            )
        )
    if most is not None and vcpus * nodes > most and not short:
        short.append(
            Shortfall(
                field="cpu_count",
                asked=f"{vcpus * nodes} vCPUs",
                got=str(most),
                why=f"no compute environment of {queue} has more vCPUs at once (maxvCpus)",
                fix="Raise it: aws batch update-compute-environment --compute-resources maxvCpus=…",
            )
        )
    for name in ("ephemeral_storage", "assign_public_ip"):
        if said.get(name):
            why, fix = f"{queue} is on EC2, where this is Fargate's alone", f"Leave {name} out."
            short.append(Shortfall(field=name, asked=f"{name}={said[name]}", got="none", why=why, fix=fix))
    if request.disk is not None:
        short.append(
            Shortfall(
                field="disk",
                asked=f"{format_size(request.disk)} of disk",
                got="no promise",
                why="an instance has the disk that the launch template of its compute environment says",
                fix="Leave disk out, and see that the launch template's volumes are large enough.",
            )
        )
    return Offer(
        granted=Hardware(
            cpu_count=vcpus,
            memory=request.memory or memory * MIB,
            gpus=_devices(chosen, smallest) if request.gpu_count is not None else None,
            nodes=nodes,
            shared_memory=request.shared_memory,
            details={"enforced_by": _ENFORCED | ({"gpus": SCHEDULER} if devices else {}), PLATFORM: EC2},
        ),
        shortfalls=tuple(short),
    )


_ENFORCED = {"cpu": SCHEDULER, "memory": CGROUP}


def _holding(
    types: Sequence[InstanceType], wanted: Wanted, least: Mapping[str, float]
) -> tuple[InstanceType, ...]:
    return tuple(one for one in types if one.holds(**least) and one.has(wanted))


def _beside(types: Sequence[InstanceType], wanted: Wanted, vcpus: int, memory: int) -> Iterator[InstanceType]:
    """Types that Batch may as well start: it knows of GPUs how many, and not of which kind."""
    vendor = next((one.vendor for one in types if one.has(wanted)), None)
    for one in types:
        if one.vendor == vendor and one.count >= wanted.count and one.holds(vcpus=vcpus, memory=memory):
            yield one


def _filled(request: ResourceSettings, devices: int, smallest: InstanceType | None) -> tuple[int, int]:
    """vCPUs and MiB, of which what is not asked for goes with the devices: their share of an instance."""
    vcpus, memory = VCPUS, MEMORY
    if devices and smallest is not None and smallest.count:
        vcpus = max(1, smallest.vcpus * devices // smallest.count)
        memory = max(4, int(smallest.memory * REGISTERED * devices / smallest.count))
    if request.cpu_count is not None:
        vcpus = max(1, math.ceil(request.cpu_count))
    if request.memory is not None:
        memory = max(4, math.ceil(request.memory / MIB))
    return vcpus, memory


def _devices(wanted: Wanted, smallest: InstanceType | None) -> tuple[Device, ...]:
    if not wanted.count:
        return ()
    if smallest is None or not smallest.device:  # an instance that the table does not know
        kind = wanted.kind.name if wanted.kind else None
        return (Device(vendor=wanted.vendor, model=wanted.name, kind=kind),) * wanted.count
    if wanted.kind is None and wanted.memory is None:  # any will do: the queue may have several kinds
        return (Device(vendor=smallest.vendor),) * wanted.count
    device = Device(
        vendor=smallest.vendor, model=wanted.name or smallest.device, kind=wanted.name or smallest.device
    )
    return (device,) * wanted.count


def _too_large(
    request: ResourceSettings, wanted: Sequence[Wanted], least: Mapping[str, float], queue: Queue
) -> Shortfall:
    """What no instance type of a queue can hold, with the smallest that could."""
    types = queue.types
    largest = max(types, key=size, default=None)
    where = (
        f"{queue} has no instance type that is known"
        if largest is None
        else f"the largest type of {queue} is {largest}"
    )
    fix = "No instance type of EC2 could. Ask for less, or for several nodes."
    architecture = "arm64" if {one.architecture for one in types} == {"arm64"} else "x86_64"
    every = [one for one in table().values() if not one.name.endswith(".metal")]
    common, every = types_of([f"default_{architecture}"])[0], sorted(every, key=size)
    could = next(
        (found for of in (common, every) for one in wanted if (found := _holding(of, one, least))), ()
    )
    if could:
        fix = f"The smallest type that could is {could[0]}: have a compute environment of the queue start it."
    counted = [one for one in types if any(one.has(w) for w in wanted)]
    if request.gpu_count and not counted:
        asked = " or ".join(map(str, wanted))
        return Shortfall(field="gpu_count", asked=asked, got="none", why=where, fix=fix)
    for field, unit in (("cpu_count", "vcpus"), ("memory", "memory"), ("efa", "efa")):
        if not any(one.holds(**{unit: least[unit]}) for one in counted):
            got = max((getattr(one, unit) for one in counted), default=0)
            asked, less = (_amount(unit, amount) for amount in (least[unit], got))
            return Shortfall(field=field, asked=asked, got=less, why=where, fix=fix)
    return Shortfall(field="cpu_count", asked="all of it on one instance", got="no type", why=where, fix=fix)


def _amount(unit: str, amount: float) -> str:
    if unit == "memory":
        return f"{format_size(int(amount) * MIB)} of memory"
    return f"{amount:g} {'vCPUs' if unit == 'vcpus' else 'EFA interfaces'}"


def _other_kind(wanted: Wanted, others: Sequence[InstanceType], queue: Queue) -> Shortfall:
    return Shortfall(
        field="accelerator",
        asked=str(wanted),
        got=f"perhaps {others[0].device}",
        why=f"AWS Batch counts GPUs and does not know their kinds, and {queue} may start {others[0]}",
        fix='Name a queue whose compute environments have one kind of GPU each: queue="…".',
    )


def _overlap(wanted: Wanted, smallest: InstanceType, larger: InstanceType, queue: Queue) -> Shortfall:
    return Shortfall(
        field="accelerator",
        asked=str(wanted),
        got="devices that another job may have, too",
        why="AWS Batch hands out no Neuron devices: a job gets those from /dev/neuron0 on, and so many vCPUs "
        f"that no second one fits beside it. {queue} has {smallest.name} and {larger.name}, for which no "
        "number of vCPUs does that",
        fix=f"Name a queue that starts {smallest.name} alone, or ask for all {larger.count} devices of a "
        f"{larger.name}.",
    )


# -- Fargate ---------------------------------------------------------------------------------------


def pair(vcpus: float, memory: int) -> tuple[float, int] | None:
    """The least that Fargate has of at least so many vCPUs and MiB; None: it has no more of one."""
    for cpu, sizes in PAIRS.items():
        fitting = next((size for size in sizes if size >= memory), None)
        if cpu >= vcpus and fitting is not None:
            return cpu, fitting
    return None


def _on_fargate(ask: Ask, said: Mapping[str, Any], queue: Queue) -> Offer:
    request, short = ask.request, []
    if not said.get("execution_role"):
        raise RequestRefused(
            f"{queue} is on Fargate, and no execution role is named",
            why="With it the image is fetched and what the container prints is kept.",
            fix="Name one: execution_role of the target, or of BatchSettings.",
        )

    def not_there(field: str, asked: str, why: str) -> None:
        fix = "Name a queue on EC2."
        short.append(
            Shortfall(
                field=field, asked=asked, got="none", why=f"{queue} is on Fargate, which {why}", fix=fix
            )
        )

    if request.gpu_count:
        not_there("gpu_count", " or ".join(map(str, request.alternatives)), "has no devices")
    if request.least_nodes > 1:
        not_there("num_nodes", f"{request.least_nodes} nodes", "runs no jobs of several nodes")
    if request.shared_memory is not None:
        not_there("shared_memory", f"{format_size(request.shared_memory)} of /dev/shm", "has 64 MB for all")
    for name in ("max_swap", "efa", "host_volumes", "use_tmpfs", "privileged"):
        if said.get(name):
            not_there(name, f"{name}={said[name]!r}", "has nothing of the kind")
    disk = None if request.disk is None else math.ceil(request.disk / (1 << 30))
    if disk is not None and disk > DISK[1]:
        not_there("disk", f"{disk} GiB of disk", f"gives a task {DISK[1]} GiB at most")
        disk = DISK[1]
    if ask.timeout is not None and ask.timeout > LONGEST:
        not_there("timeout", f"{ask.timeout / 86400:g} days", "stops each task after 14 days")
    found = pair(request.cpu_count or 0, math.ceil((request.memory or (MEMORY * MIB)) / MIB))
    if found is None:
        most, (*_, largest) = list(PAIRS.items())[-1]
        asked = (
            f"{request.cpu_count or 1:g} vCPUs with {format_size(request.memory or MEMORY * MIB)} of memory"
        )
        short.append(
            Shortfall(
                field="cpu_count" if (request.cpu_count or 0) > most else "memory",
                asked=asked,
                got=f"{most} with {format_size(largest * MIB)}",
                why=f"{queue} is on Fargate, which has no more",
                fix="Name a queue on EC2.",
            )
        )
        found = (most, largest)
    disk = max(disk or 0, said.get("ephemeral_storage") or 0) or None
    enforced = {"cpu": CGROUP, "memory": CGROUP}
    return Offer(
        granted=Hardware(
            cpu_count=found[0],
            memory=found[1] * MIB,
            gpus=None if request.gpu_count is None else (),
            nodes=1,
            disk=None if disk is None else max(disk, DISK[0]) << 30,
            details={"enforced_by": enforced, PLATFORM: FARGATE},
        ),
        shortfalls=tuple(short),
    )


# -- what a person is told -------------------------------------------------------------------------


def findings(said: Mapping[str, Any], queue: Queue) -> Iterator[Finding]:
    """How a queue and its compute environments are."""
    trouble = queue.state != "ENABLED" or queue.status == "INVALID"
    said_of_it = f"{queue} is {queue.state}, {queue.status}" + (
        f": {queue.reason}" if trouble and queue.reason else ""
    )
    yield Finding(
        name="queue",
        text=said_of_it,
        status="problem" if trouble else "ok",
        remedy=f"aws batch update-job-queue --job-queue {queue.name} --state ENABLED" if trouble else None,
    )
    works = any(e.works for e in queue.environments)
    for one in queue.environments:
        most = "" if one.most_vcpus is None else f", {one.most_vcpus} vCPUs at most"
        largest = f", the largest {max(one.types, key=size)}" if one.types else ""
        if not one.works:
            yield Finding(
                name="environment",
                text=one.trouble,
                status="warning" if works else "problem",
                remedy="See statusReason of aws batch describe-compute-environments --compute-environments "
                f"{one.name}",
            )
            continue
        yield Finding(
            name="environment",
            text=f"compute environment {one.name}, {one.kind}{most}{largest}",
            status="warning" if one.unknown or one.most_vcpus == 0 else "ok",
            remedy=f"This version does not know what {', '.join(one.unknown)} has: requests are submitted as "
            "they are."
            if one.unknown
            else ("Nothing starts while maxvCpus is 0." if one.most_vcpus == 0 else None),
        )
    devices = {f"{one.count} × {one.device}" for one in queue.types if one.device}
    if queue.platform == EC2:
        yield Finding(name="devices", text=", ".join(sorted(devices)) or f"none in {queue}")
    if not said.get("iam_role"):
        yield Finding(
            name="role",
            text="no iam_role is named: steps read and write the store with the rights of their instance",
            status="problem" if queue.platform == FARGATE else "warning",
            remedy=_ROLE,
        )
