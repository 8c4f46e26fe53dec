"""The processes of a task on one node: how many, which rank each is, and within what bounds they start."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from upshift.model.spec import Rank, TaskSpec
from upshift.model.spec.hardware import CONTAINED, ENFORCED
from upshift.runtime.confine import Confinement
from upshift.runtime.launch.addresses import interface_towards
from upshift.runtime.launch.environment import environment_of, threads_of
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
    memory = taken = threads = None
    by = None if granted is None else granted.details.get("enforced_by")
    if granted is not None and by in (ENFORCED, CONTAINED):
        if granted.memory is not None:
            asked = spec.request.memory
            memory = MemoryLimit(granted.memory, asked=asked, contained=by == CONTAINED)
        if granted.cpu_count is not None and by == CONTAINED:  # by a quota, on any of the CPUs
            threads = math.ceil(granted.cpu_count)
        elif granted.cpu_count is not None:
            taken = cpus.take(granted.cpu_count)
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
    ranks: Iterable[Rank | None],
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
        for rank in ranks:
            started.append(member(starter(spec, _bounds_of_rank(rank, spec, bounds), held), rank))
    except BaseException:
        for one in started:
            one.kill()
            one.close()
        raise
    return started


def _bounds_of_rank(rank: Rank | None, spec: TaskSpec, bounds: Confinement) -> Confinement:
    if rank is None or spec.launch is None:
        return bounds
    cpus = bounds.threads or len(bounds.cpus or os.sched_getaffinity(0))
    threads = threads_of(spec.launch, rank, cpus)
    environment = environment_of(
        spec.launch,
        rank,
        task=str(spec.task),
        devices=spec.granted is not None and bool(spec.granted.gpus),
        own={**users_own(), **bounds.environment},
        inherited=os.environ,
        interface=interface_towards(rank.address) if rank.nodes > 1 else None,
    )
    return attrs.evolve(bounds, rank=rank, threads=threads, environment=environment)
