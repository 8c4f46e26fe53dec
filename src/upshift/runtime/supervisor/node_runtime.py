"""What an attempt has on one machine: CPUs lent to it, memory it may use, and processes within these bounds.

An attempt has one, or one on each of its nodes; each is looked after by the supervisor that is there.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.settings.sizes import format_size
from upshift.model.spec import Failure, Gap, Hardware, Rank, TaskSpec
from upshift.model.spec.hardware import CGROUP, SCHEDULER, SUPERVISOR
from upshift.runtime import confine, marks, proc
from upshift.runtime.accelerators.files import device_root
from upshift.runtime.confine import Confinement, Spawned, Starter, host_facts
from upshift.runtime.launch.ranks import (
    cpus_near,
    environment_of,
    numa_nodes,
    own_device,
    shares_of_cpus,
    threads_of,
)
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.proc import Consumed
from upshift.runtime.storage import claims, home_folders
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.device_queue import QUIET
from upshift.runtime.supervisor.forkable import users_own
from upshift.runtime.supervisor.members import LocalMember
from upshift.runtime.supervisor.sampling import INTERVAL, Sampler, SharedCounters, Totals

if TYPE_CHECKING:
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor
    from upshift.runtime.supervisor.device_pool import Grant


class Machine:
    """What the attempts of one supervisor share on this machine."""

    def __init__(
        self, supervisor: str, accelerators: Callable[[], DeviceMonitor], *, host: str | None = None
    ) -> None:
        self.supervisor = supervisor
        self.accelerators = accelerators
        self.cpus = CpuSet()
        self.kills = HostMemory()
        self.node = SharedCounters()
        self.facts = {key: value for key, value in host_facts().items() if key != "memory"}
        self.facts |= {} if host is None else {"host": host}  # a pod's own is not its node's


class NodeRuntime:
    """The bounds of an attempt on this machine, and its processes there."""

    def __init__(
        self,
        spec: TaskSpec,
        *,
        store: Store,
        loop: Loop,
        machine: Machine,
        grant: Grant | None,
        secrets: Mapping[str, str],
        number: int = 0,
    ) -> None:
        self.started = time.time()
        self._spec = spec
        self._store = store
        self._loop = loop
        self._machine = machine
        self._grant = grant
        self._number = number
        self._scratch = home_folders.unused()
        self._memory, self._bounds = _bounds_of(spec, machine.cpus, self._environment(secrets))
        self._lent = self._bounds.cpus or ()
        self._count = 0
        self._sampler: Sampler | None = None  # there is none yet where the attempt ends as it begins

    def start(
        self,
        starter: Starter,
        ranks: Sequence[Rank | None],
        member: Callable[[Spawned, Rank | None], LocalMember],
    ) -> list[LocalMember]:
        """Start the processes: all of them, or none."""
        held = self._grant.descriptors if self._grant is not None else ()
        started: list[LocalMember] = []
        try:
            for rank, own in zip(ranks, list(_bounds_of_each(ranks, self._spec, self._bounds)), strict=True):
                started.append(member(starter(self._spec, own, held), rank))
        except BaseException:
            for one in started:
                one.kill()
                one.close()
            self.give_back_cpus()
            self.release()
            raise
        self._count = len(started)
        return started

    def watch(
        self,
        members: Sequence[LocalMember],
        *,
        tell: Callable[[str], None],
        stop: Callable[[Failure], None],
        kill: Callable[[], None],
    ) -> None:
        """Look at what the processes use from now on."""
        baselines = {member.pid: member.baseline for member in members}
        self._sampler = sampler = self._kind_of_sampler(stop)(
            self._loop,
            self._spec,
            self._store,
            baselines=baselines,
            started=self.started,
            node=self._machine.node,
            number=self._number,
            tell=tell,
        )
        if self._memory is not None:
            self._memory.watch(self._loop, baselines, kill)
        for remark in (*(self._grant.remarks if self._grant is not None else ()), *sampler.remarks):
            tell(remark)

    # -- what became of it ------------------------------------------------------------------------

    def end_watch(self) -> None:
        """Look at what the processes use a last time."""
        if self._sampler is not None:
            self._sampler.close()

    def used(self, *, seconds: float, consumed: Consumed, peak: int | None) -> Hardware:
        """The record ``used`` of this node."""
        peak = self._memory.reached(peak) if self._memory else peak
        if self._sampler is None:
            return Totals().record(seconds=seconds, consumed=consumed, peak=peak)
        return self._sampler.record(seconds=seconds, consumed=consumed, peak=peak)

    def peak_of(self, pid: int) -> int | None:
        """Bytes of memory of one of the processes at most, as far as was seen from outside."""
        return None if self._sampler is None else self._sampler.peak_of(pid)

    def verdict(self, peak: int | None) -> Failure | None:
        """The failure, if the processes went beyond their memory."""
        if self._memory is None:
            return None
        return self._memory.verdict(peak if self._count == 1 else None, processes=self._count)

    @property
    def largest(self) -> int | None:
        """The process that had the most memory when all were killed for going beyond theirs."""
        return self._memory.largest if self._memory else None

    def killed_for_memory(self, code: int) -> Failure | None:
        """The failure, if a process was killed because the machine had no memory left."""
        if -code != signal.SIGKILL or self._memory is not None:
            return None
        what = self._machine.kills.killed()
        if what is None:
            return None
        peak = 0 if self._sampler is None else self._sampler.memory_peak
        return Failure(
            reason="out-of-memory",
            message=f"{what}, ran out of memory, and the kernel killed the step, "
            f"which had {format_size(peak)} or more",
            fix="Ask for what the step needs (memory=…), so that fewer steps run at once.",
            memory=peak or None,
        )

    def granted(self) -> Hardware | None:
        """The record ``granted``, with what is known on this machine alone."""
        granted = self._spec.granted
        if granted is None:
            return None
        if granted.cpu_count is None and granted.enforced_by("cpu") == SCHEDULER:
            cpus = len(os.sched_getaffinity(0))
            granted = attrs.evolve(granted, cpu_count=min(cpus, confine.own_cpus() or cpus))
        if granted.memory is None and granted.enforced_by("memory") == SCHEDULER:
            granted = attrs.evolve(granted, memory=confine.own_limit())
        details: dict[str, Any] = dict(granted.details)
        if self._lent:
            details["cpus"] = list(self._lent)
        if self._memory is not None:
            details["memory_limit"] = self._memory.kind
        if self._grant is not None and self._grant.waited >= QUIET:
            details["waited"] = round(self._grant.waited, 1)
        return attrs.evolve(granted, details=details)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Samples that are missing from the record."""
        gap = None if self._sampler is None else self._sampler.gap
        return () if gap is None else (gap,)

    def give_back_cpus(self) -> None:
        """Others may have its CPUs: the processes have nothing more to do."""
        self._machine.cpus.give_back(self._lent)

    def release(self) -> None:
        """Nothing of it runs any more: let go of whatever else it has."""
        if os.path.isdir(self._scratch):
            home_folders.remove(self._scratch)
        if self._memory is not None:
            self._memory.close()
            self._machine.kills.killed()  # what the kernel killed in this group says nothing of the host
        if self._grant is not None:
            self._grant.give_back()

    def _environment(self, secrets: Mapping[str, str]) -> dict[str, str]:
        environment = {
            **self._spec.environment,
            **secrets,
            marks.VARIABLE: self._machine.supervisor,
            home_folders.VARIABLE: self._scratch,
            claims.VARIABLE: self._store.claims.file(),
        }
        return environment | (dict(self._grant.environment) if self._grant is not None else {})

    def _kind_of_sampler(self, stop: Callable[[Failure], None]) -> Callable[..., Sampler]:
        devices = self._spec.granted.gpus if self._spec.granted is not None else None
        if not devices:
            return Sampler
        from upshift.runtime.supervisor.gpu_usage import GpuSampler, GpuUsage  # no other task needs it

        interval = self._spec.settings.profile or INTERVAL
        return partial(
            GpuSampler, GpuUsage(devices, self._machine.accelerators(), interval=interval), stop=stop
        )


def _bounds_of(
    spec: TaskSpec, cpus: CpuSet, environment: Mapping[str, str]
) -> tuple[MemoryLimit | None, Confinement]:
    """The bounds of a task on this node, and what keeps its memory there; CPUs are taken from ``cpus``."""
    granted = spec.granted
    devices = [device.numa_node for device in (granted.gpus if granted is not None else None) or ()]
    memory = taken = threads = None
    if granted is not None and granted.memory is not None:
        by = granted.enforced_by("memory")
        if by in (SUPERVISOR, CGROUP):  # what a scheduler kills for memory is told by HostMemory
            memory = MemoryLimit(granted.memory, asked=spec.request.memory, contained=by == CGROUP)
    by = None if granted is None else granted.enforced_by("cpu")
    if granted is not None and granted.cpu_count is not None and by is not None:
        if by == SUPERVISOR:
            near = cpus_near(devices, numa_nodes(device_root())) if devices else ()
            taken = cpus.take(granted.cpu_count, near)
        # By a quota on any of the CPUs, or on those that a scheduler has chosen.
        threads = math.ceil(granted.cpu_count) if taken is None else len(taken)
    bounds = Confinement(
        cpus=taken,
        threads=threads,
        group=memory.folder if memory else None,
        memory=memory.limit if memory else None,
        environment=environment,
    )
    return memory, bounds


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
            interface=_interface(rank) if rank.nodes > 1 else None,
        )
        yield attrs.evolve(
            bounds,
            rank=rank,
            cpus=bounds.cpus if own is None else own,
            threads=threads_of(spec.launch, room),
            environment=environment,
        )


def _interface(rank: Rank) -> str | None:
    from upshift.runtime.launch.network import interface_towards  # what no other task needs is not imported

    return interface_towards(rank.address)


def _places(ranks: Sequence[Rank], spec: TaskSpec, bounds: Confinement) -> list[tuple[int, ...]]:
    """The CPUs of each process, where they are to be near its device; none: it is where the task is."""
    launch = spec.launch
    if launch is None or not (len(ranks) > 1 if launch.numa_binding is None else launch.numa_binding):
        return []
    devices = [own_device(spec, rank) for rank in ranks]
    cpus = bounds.cpus or tuple(os.sched_getaffinity(0))
    nodes = [None if device is None else device.numa_node for device in devices]
    shares = shares_of_cpus(cpus, numa_nodes(device_root()), nodes)
    return shares if any(len(share) < len(cpus) for share in shares) else []


class CpuSet:
    """The CPUs that this process may use, lent to tasks: the least used ones first."""

    def __init__(self) -> None:
        self._lent = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0)

    def take(self, count: float, near: Sequence[Collection[int]] = ()) -> tuple[int, ...]:
        """As many CPUs as ``count``, rounded up; all of them where there are fewer.

        Of those that are used as little as any, the ones ``near`` each device come first, in turn.
        """
        left, chosen = dict(self._lent), list[int]()
        while left and len(chosen) < math.ceil(count):
            close = near[len(chosen) % len(near)] if near else ()
            chosen.append(min(left, key=lambda cpu: (left[cpu], cpu not in close)))
            del left[chosen[-1]]
        for cpu in chosen:
            self._lent[cpu] += 1
        return tuple(sorted(chosen))

    def give_back(self, cpus: tuple[int, ...]) -> None:
        """Return what was taken."""
        for cpu in cpus:
            self._lent[cpu] -= 1


WATCH = 0.05
"""Seconds between two looks of the watchdog."""
REST = 20
"""After a look it rests for so many times as long: of large processes that share memory one takes seconds."""

DISABLE = "UPSHIFT_NO_CGROUPS"
"""Environment variable: set, memory is limited by the watchdog everywhere."""

_numbers = itertools.count(1)


class HostMemory:
    """Whether the kernel has killed for want of memory: of this host, or of the container that this is in.

    The machine's count includes what was killed in any group because that was full. The group that a process
    is in counts its end, too, whatever was full; so if that one counts, and did not now, it was another's.
    """

    def __init__(self) -> None:
        self._groups = confine.own_limits()
        self._kills = self._count()

    def killed(self) -> str | None:
        """What has run out of memory since the last look, in words; None: nothing has."""
        before, self._kills = self._kills, self._count()
        here, host, *groups = (now > then for now, then in zip(self._kills, before, strict=True))
        for (limit, _), killed in zip(self._groups, groups, strict=True):
            if killed:
                return f"the container or cgroup of this run, which may have {format_size(limit)}"
        return f"this machine, which has {format_size(proc.host_memory())}" if here and host else None

    def _count(self) -> list[int]:
        machine, own = proc.kernel_kills(), confine.own_kills()
        return [machine if own is None else own, machine, *(group.kills() for _, group in self._groups)]


class MemoryLimit:
    """Keeps a task below its limit, and knows when it was not.

    With a cgroup the kernel kills the process that goes beyond. Without one, anonymous and shared
    memory of the task's processes above what they were forked with is looked at twenty times a
    second, and the peak once more at the end; mapped inputs do not count. What the watchdog cannot
    see: memory that was taken and given back between two looks by a process other than the step's
    own.
    """

    def __init__(self, limit: int, *, asked: int | None = None, contained: bool = False) -> None:
        self.limit = limit  # bytes
        self._asked = limit if asked is None else asked  # more, where less is granted
        self.exceeded: int | None = None
        self.largest: int | None = None
        self._made = self._own = None  # a container's cgroup is read, and none is made
        if contained:
            self._own = confine.own_group()
        elif not os.environ.get(DISABLE):
            self._made = confine.create_group(f"upshift-{os.getpid()}-{next(_numbers)}", limit)
        self._group = self._made or self._own
        self._timer: Timer | None = None

    @property
    def kind(self) -> str:
        """How the limit is enforced: ``"cgroup"`` or ``"watchdog"``."""
        return "watchdog" if self._group is None else "cgroup"

    @property
    def folder(self) -> str | None:
        """The folder of the cgroup that the step process has to join."""
        return None if self._made is None else str(self._made.path)

    def watch(self, loop: Loop, baselines: Mapping[int, int], stop: Callable[[], None]) -> None:
        """Call ``stop`` if processes go beyond the limit; of each a baseline of bytes is its parent's."""
        if self._group is not None:
            return

        def look() -> None:
            began = time.monotonic()
            trees = {pid: proc.tree(pid) for pid in baselines}
            each = {
                pid: max(0, sum(map(proc.unreclaimable, tree)) - baselines[pid])
                for pid, tree in trees.items()
            }
            pids, memory = [pid for tree in trees.values() for pid in tree], sum(each.values())
            if memory > self.limit and len(pids) > 1:  # shared pages were counted more than once
                memory = proc.proportional(pids)
            if memory > self.limit:
                self.exceeded, self.largest = memory, max(each, key=each.__getitem__)
                stop()
            else:
                self._timer = loop.after(max(WATCH, REST * (time.monotonic() - began)), look)

        look()

    def verdict(self, peak: int | None, *, processes: int = 1) -> Failure | None:
        """The failure, if the limit was exceeded; the process itself found ``peak``."""
        killed = self._group is not None and self._group.kills() > 0
        if self._group is None and self.exceeded is None and peak is not None and peak > self.limit:
            self.exceeded = peak
        if not killed and self.exceeded is None:
            return None
        peak = self.exceeded or self.limit
        who, it = ("", "it") if processes == 1 else (f"its {processes} processes together ", "them")
        reached = f"{who}reached {format_size(peak)}"
        reached += "" if self.exceeded else f", where the kernel stopped {it}"
        asked = f"asked for {format_size(self._asked)} of memory"
        fix = f'Ask for more, for example memory="{_more(peak)}".'
        if self._asked > self.limit:
            asked += f", was granted {format_size(self.limit)}"
            fix = "Run it where there is more memory (--on TARGET), or let it need less."
        return Failure(
            reason="out-of-memory", message=f"the step {asked}, and {reached}", fix=fix, memory=peak
        )

    def reached(self, peak: int | None) -> int | None:
        """Bytes that the task had at least: its own ``peak``, and what the verdict was about."""
        if self.verdict(peak) is None:
            return peak
        return max(peak or 0, self.exceeded or self.limit)

    def close(self) -> None:
        """End the watch and remove the cgroup that was made, with whatever still lives in it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._made is not None:
            self._made.remove()


def _more(size: int) -> str:
    megabytes = -(-size * 2 // 1_000_000)
    return f"{-(-megabytes // 1000)}GB" if megabytes >= 4000 else f"{megabytes}MB"
