"""The processes of a task on one node: how many, which rank each is, and within what bounds they start."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from upshift.model.spec import Rank, TaskSpec
from upshift.model.spec.hardware import CONTAINED, ENFORCED
from upshift.runtime.accelerators.root import device_root
from upshift.runtime.confine import Confinement
from upshift.runtime.launch import numa
from upshift.runtime.launch.addresses import interface_towards
from upshift.runtime.launch.environment import environment_of, threads_of
from upshift.runtime.launch.processes import own_device
from upshift.runtime.supervisor.bounds.cpus import CpuSet
from upshift.runtime.supervisor.bounds.limits import MemoryLimit
from upshift.runtime.supervisor.member import LocalMember
from upshift.runtime.supervisor.starters.pools import users_own
from upshift.runtime.supervisor.starters.starter import Born, Starter


def processes(spec: TaskSpec) -> int:
    """How many processes a task has on each node."""
    return 1 if spec.launch is None else spec.launch.each


def ranks_of(spec: TaskSpec, *, address: str, port: int, node: int = 0, nodes: int = 1) -> list[Rank]:
    """Which processes of a task with a launch are to be on a node, by the address of the first of all."""
    count = processes(spec)
    return [
        Rank(
            rank=node * count + number,
            world_size=nodes * count,
            local_rank=number,
            local_world_size=count,
            node=node,
            nodes=nodes,
            address=address,
            port=port,
        )
        for number in range(count)
    ]


def bounds_of(
    spec: TaskSpec, cpus: CpuSet, environment: Mapping[str, str]
) -> tuple[MemoryLimit | None, Confinement]:
    """The bounds of a task on this node, and what keeps its memory there; CPUs are taken from ``cpus``."""
    granted = spec.granted
    devices = [device.numa_node for device in (granted.gpus if granted is not None else None) or ()]
    memory = taken = threads = None
    by = None if granted is None else granted.details.get("enforced_by")
    if granted is not None and by in (ENFORCED, CONTAINED):
        if granted.memory is not None:
            asked = spec.request.memory
            memory = MemoryLimit(granted.memory, asked=asked, contained=by == CONTAINED)
        if granted.cpu_count is not None and by == CONTAINED:  # by a quota, on any of the CPUs
            threads = math.ceil(granted.cpu_count)
        elif granted.cpu_count is not None:
            near = numa.near(devices, numa.nodes(device_root())) if devices else ()
            taken = cpus.take(granted.cpu_count, near)
            threads = len(taken)
    bounds = Confinement(
        cpus=taken,
        threads=threads,
        group=memory.folder if memory else None,
        memory=memory.limit if memory else None,
        environment=environment,
    )
    return memory, bounds


def start(
    spec: TaskSpec,
    starter: Starter,
    bounds: Confinement,
    ranks: Sequence[Rank | None],
    *,
    held: Sequence[int],
    member: Callable[[Born, Rank | None], LocalMember],
) -> list[LocalMember]:
    """Start the processes of a task on this node: all of them, or none.

    Parameters
    ----------
    bounds
        Of the task; its processes share them.
    ranks
        Which processes; None: one that is on its own.
    held
        Descriptors that they keep open.
    member
        Makes of a process what the supervisor knows it by.

    Raises
    ------
    OSError
        There can be no further process.
    """
    started: list[LocalMember] = []
    try:
        for rank, own in zip(ranks, list(_bounds_of_each(ranks, spec, bounds)), strict=True):
            started.append(member(starter(spec, own, held), rank))
    except BaseException:
        for one in started:
            one.kill()
            one.close()
        raise
    return started


def _bounds_of_each(
    ranks: Sequence[Rank | None], spec: TaskSpec, bounds: Confinement
) -> Iterator[Confinement]:
    """The bounds of each process, within those of the task."""
    places = _places([rank for rank in ranks if rank is not None], spec, bounds)
    for rank in ranks:
        if rank is None or spec.launch is None:
            yield bounds
            continue
        own = places[rank.local_rank] if places else None
        cpus = own or bounds.cpus or os.sched_getaffinity(0)
        room = len(cpus) // (rank.local_world_size if own is None else places.count(own))
        if bounds.cpus is None and bounds.threads is not None:  # a quota, on any of the CPUs
            room = min(room, bounds.threads // rank.local_world_size)
        environment = environment_of(
            spec.launch,
            rank,
            task=str(spec.task),
            devices=spec.granted is not None and bool(spec.granted.gpus),
            own={**users_own(), **bounds.environment},
            inherited=os.environ,
            interface=interface_towards(rank.address) if rank.nodes > 1 else None,
        )
        yield attrs.evolve(
            bounds,
            rank=rank,
            cpus=bounds.cpus if own is None else own,
            threads=threads_of(spec.launch, room),
            environment=environment,
        )


def _places(ranks: Sequence[Rank], spec: TaskSpec, bounds: Confinement) -> list[tuple[int, ...]]:
    """The CPUs of each process, where they are to be near its device; none: it is where the task is."""
    launch = spec.launch
    if launch is None or not (len(ranks) > 1 if launch.numa_binding is None else launch.numa_binding):
        return []
    devices = [own_device(spec, rank) for rank in ranks]
    cpus = bounds.cpus or tuple(os.sched_getaffinity(0))
    nodes = [None if device is None else device.numa_node for device in devices]
    shares = numa.shares(cpus, numa.nodes(device_root()), nodes)
    return shares if any(len(share) < len(cpus) for share in shares) else []
