"""What happens when: the engine's clock and timers, and which ready task starts next where there is room.

The longest remaining path goes first, then the order of the graph, then the index. A task that fits
may overtake one that waits for more room, so that a machine does not stand idle; but after
:data:`PATIENCE` such times the room that comes free is kept for the one that waits: nothing else
starts until it does. What runs ends some day, so it gets its turn, and then the next one does.

Ready tasks are kept in one heap for each distinct demand. A graph has few of those, however many tasks
it has, so that finding the next one that fits does not search through all that do not.

Tests give the engine a clock that jumps.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import attrs

from upshift.backends.base import Capacity
from upshift.engine.tasks import TaskState
from upshift.model.spec.hardware import Device, Hardware, Launch, Model


class Clock(Protocol):
    """What the engine knows of time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""

    def wait(self, inbox: SimpleQueue[Any], deadline: float | None) -> Any | None:
        """The next thing in ``inbox``; None: ``deadline``, in monotonic seconds, came first."""


class SystemClock:
    """The clock of the machine."""

    def __init__(self) -> None:
        self._ahead = -math.inf

    def now(self) -> float:
        """Seconds since the epoch; never less than before, also where the machine's clock is set back."""
        monotonic = time.monotonic()
        self._ahead = max(self._ahead, time.time() - monotonic)
        return monotonic + self._ahead

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        return time.monotonic()

    def wait(self, inbox: SimpleQueue[Any], deadline: float | None) -> Any | None:
        """The next thing in ``inbox``; None: ``deadline``, in monotonic seconds, came first."""
        try:
            if deadline is None:
                return inbox.get()
            return inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None


class Timers:
    """What is to be done later, the soonest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Call ``what`` after this many seconds."""
        self._count += 1
        heappush(self._waiting, (self._clock.monotonic() + seconds, self._count, what))

    @property
    def next(self) -> float | None:
        """When the first is due, in monotonic seconds; None: there is none."""
        return self._waiting[0][0] if self._waiting else None

    def ring(self) -> None:
        """Call what is due."""
        while self._waiting and self._waiting[0][0] <= self._clock.monotonic():
            heappop(self._waiting)[2]()

    def clear(self) -> None:
        """Drop everything that waits."""
        self._waiting.clear()


PATIENCE = 8
"""How often tasks of lower priority may overtake one that waits for room."""

_Priority = tuple[int, int, int]
Devices = tuple[tuple[Model, int], ...]
"""How many of which accelerators."""


@attrs.frozen
class Demand:
    """What a task takes up while it runs."""

    cpu: int = 1000  # thousandths of a CPU
    memory: int = 0  # bytes
    devices: tuple[Devices, ...] = ()  # accelerators, one of these sets; the first one that is free
    port: int | None = None
    """The port at which its processes meet, where the user has fixed it: one task has it at a time."""
    jobs: int = 1

    @classmethod
    def of(
        cls,
        granted: Hardware,
        alternatives: Sequence[Sequence[Device]] = (),
        *,
        launch: Launch | None = None,
    ) -> Demand:
        """What a grant takes up on all of its nodes: where capacity is limited, these are on one machine.

        One that asks for no CPUs counts as one for each process.
        """
        nodes = granted.nodes or 1
        cpus = granted.processes or 1 if granted.cpu_count is None else granted.cpu_count * nodes
        # Whole thousandths: sums of 0.1 drift, and a machine would seem full that is not.
        sets = (granted.gpus or (), *map(tuple, alternatives))
        devices = (tuple(sorted(Counter(gpu.sort for gpu in gpus * nodes).items())) for gpus in sets if gpus)
        return cls(
            round(cpus * 1000),
            (granted.memory or 0) * nodes,
            tuple(dict.fromkeys(devices)),
            launch.port if launch is not None else None,
        )

    @property
    def host(self) -> Demand:
        """This demand without the accelerators, and without what it keeps while it waits for these."""
        return attrs.evolve(self, devices=(), port=None, jobs=0)


class Room:
    """What is free on one backend.

    Which accelerators a task gets is for the backend to choose, so what is counted here only keeps
    tasks from being submitted that would have to wait there.
    """

    def __init__(self, capacity: Capacity | None) -> None:
        hardware = None if capacity is None else capacity.hardware
        self.one_machine = hardware is not None
        """Whether jobs share what is counted here; else the backend queues them itself."""
        self._free_jobs = None if capacity is None else capacity.jobs
        if hardware is None:
            hardware = Hardware()
        self._cpu = None if hardware.cpu_count is None else round(hardware.cpu_count * 1000)
        self._memory = hardware.memory
        self._devices = None if hardware.gpus is None else Counter(gpu.sort for gpu in hardware.gpus)
        self._free_cpu, self._free_memory = self._cpu or 0, self._memory or 0
        self._free_devices = Counter(self._devices or {})
        self._ports: set[int] = set()

    def clipped(self, demand: Demand) -> Demand:
        """The demand, never more than all there is: what asks for more runs alone."""
        return Demand(
            demand.cpu if self._cpu is None else min(demand.cpu, self._cpu),
            demand.memory if self._memory is None else min(demand.memory, self._memory),
            demand.devices if self._devices is None else self._clipped(demand.devices, self._devices),
            demand.port if self.one_machine else None,
            demand.jobs,
        )

    @staticmethod
    def _clipped(sets: tuple[Devices, ...], there: Counter[Model]) -> tuple[Devices, ...]:
        possible = tuple(each for each in sets if all(count <= there[model] for model, count in each))
        return possible or tuple(tuple((m, min(n, there[m])) for m, n in each) for each in sets[:1])

    def fits(self, demand: Demand) -> bool:
        """Whether a demand fits into what is free now."""
        return (
            (self._cpu is None or demand.cpu <= self._free_cpu)
            and (self._memory is None or demand.memory <= self._free_memory)
            and (not demand.devices or self._chosen(demand) is not None)
            and demand.port not in self._ports
            and (self._free_jobs is None or demand.jobs <= self._free_jobs)
        )

    def take(self, demand: Demand) -> Demand:
        """Something with this demand runs now; gives what it takes up: of several sets of devices one."""
        self._free_cpu -= demand.cpu
        self._free_memory -= demand.memory
        if self._free_jobs is not None:
            self._free_jobs -= demand.jobs
        if demand.port is not None:
            self._ports.add(demand.port)
        if not demand.devices:
            return demand
        chosen = self._chosen(demand) or demand.devices[0]
        self._free_devices.subtract(dict(chosen))
        return attrs.evolve(demand, devices=(chosen,))

    def give_back(self, demand: Demand) -> None:
        """Return what a task took; ``demand`` is what :meth:`take` gave."""
        self._free_cpu += demand.cpu
        self._free_memory += demand.memory
        if self._free_jobs is not None:
            self._free_jobs += demand.jobs
        if demand.port is not None:
            self._ports.discard(demand.port)
        for model, count in demand.devices[0] if demand.devices else ():
            self._free_devices[model] += count

    def _chosen(self, demand: Demand) -> Devices | None:
        """The first set of accelerators that is free."""
        if self._devices is None:
            return demand.devices[0]
        for each in demand.devices:
            if all(count <= self._free_devices[model] for model, count in each):
                return each
        return None


class Queue:
    """The ready tasks of one backend."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._heaps: dict[Demand, list[tuple[_Priority, TaskState]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, task: TaskState, demand: Demand) -> None:
        """The task may start as soon as there is room for ``demand``."""
        node = task.node
        priority = (-node.remaining, node.order, -1 if task.index is None else task.index)
        heappush(self._heaps.setdefault(self.room.clipped(demand), []), (priority, task))
        self._size += 1

    def take(self) -> tuple[TaskState, Demand] | None:
        """The next task that there is room for, and the room that it takes; None: there is none."""
        head: tuple[_Priority, TaskState] | None = None
        best: tuple[_Priority, TaskState] | None = None
        best_demand = None
        for demand, heap in self._heaps.items():
            # A task is ready once, so priorities never tie and tasks are never compared.
            first = heap[0]
            if head is None or first[0] < head[0]:
                head = first
            if (best is None or first[0] < best[0]) and self.room.fits(demand):
                best, best_demand = first, demand
        if head is None or best is None or best_demand is None:
            return None
        if best is not head:
            if head[1].overtaken >= PATIENCE:
                return None
            head[1].overtaken += 1
        heap = self._heaps[best_demand]
        heappop(heap)
        if not heap:
            del self._heaps[best_demand]
        self._size -= 1
        return best[1], self.room.take(best_demand)

    def clear(self) -> None:
        """Forget every task that waits."""
        self._heaps.clear()
        self._size = 0
