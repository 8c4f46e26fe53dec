"""Which ready task starts next, as far as there is room.

The longest remaining path goes first, then the order of the graph, then the index. A task that fits
may overtake one that waits for more room, so that a machine does not stand idle; but after
:data:`PATIENCE` such times the room that comes free is kept for the one that waits: nothing else
starts until it does. What runs ends some day, so it gets its turn, and then the next one does.

Ready tasks are kept in one heap for each distinct need. A graph has few of those, however many tasks
it has, so that finding the next one that fits does not search through all that do not.
"""

from __future__ import annotations

from heapq import heappop, heappush

import attrs

from upshift.engine.tasks import Task
from upshift.spec.hardware import Hardware

PATIENCE = 8
"""How often tasks of lower priority may overtake one that waits for room."""

_Priority = tuple[int, int, int]


@attrs.frozen
class Need:
    """What a task takes up while it runs: thousandths of a CPU, bytes of memory, GPUs."""

    cpu: int = 1000
    memory: int = 0
    gpus: int = 0

    @classmethod
    def of(cls, granted: Hardware) -> Need:
        """What a grant takes up. A task that asks for nothing counts as one CPU."""
        # Whole thousandths: sums of 0.1 drift, and a machine would seem full that is not.
        cpus = 1 if granted.cpu_count is None else granted.cpu_count
        return cls(round(cpus * 1000), granted.memory or 0, len(granted.gpus or ()))


class Room:
    """What is free on one backend.

    Parameters
    ----------
    capacity
        What runs at once; None: any number. A field that is None is not limited.
    """

    def __init__(self, capacity: Hardware | None) -> None:
        if capacity is None:
            capacity = Hardware()
        self._cpu = None if capacity.cpu_count is None else round(capacity.cpu_count * 1000)
        self._memory = capacity.memory
        self._gpus = None if capacity.gpus is None else len(capacity.gpus)
        self._free_cpu, self._free_memory, self._free_gpus = (
            self._cpu or 0,
            self._memory or 0,
            self._gpus or 0,
        )

    def clipped(self, need: Need) -> Need:
        """The need, never more than all there is: what asks for more runs alone."""
        return Need(
            need.cpu if self._cpu is None else min(need.cpu, self._cpu),
            need.memory if self._memory is None else min(need.memory, self._memory),
            need.gpus if self._gpus is None else min(need.gpus, self._gpus),
        )

    def fits(self, need: Need) -> bool:
        """Whether there is room for it now."""
        return (
            (self._cpu is None or need.cpu <= self._free_cpu)
            and (self._memory is None or need.memory <= self._free_memory)
            and (self._gpus is None or need.gpus <= self._free_gpus)
        )

    def take(self, need: Need) -> None:
        """Something with this need runs now."""
        self._free_cpu -= need.cpu
        self._free_memory -= need.memory
        self._free_gpus -= need.gpus

    def give_back(self, need: Need) -> None:
        """It is over."""
        self._free_cpu += need.cpu
        self._free_memory += need.memory
        self._free_gpus += need.gpus


class Queue:
    """The ready tasks of one backend.

    Parameters
    ----------
    room
        What is free there.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self._heaps: dict[Need, list[tuple[_Priority, Task]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, task: Task, need: Need) -> None:
        """The task may start as soon as there is room for ``need``."""
        node = task.node
        priority = (-node.remaining, node.order, -1 if task.index is None else task.index)
        heappush(self._heaps.setdefault(self.room.clipped(need), []), (priority, task))
        self._size += 1

    def take(self) -> tuple[Task, Need] | None:
        """The next task that there is room for, and the room it took; None: there is none."""
        head: tuple[_Priority, Task] | None = None
        best: tuple[_Priority, Task] | None = None
        best_need = None
        for need, heap in self._heaps.items():
            # A task is ready once, so priorities never tie and tasks are never compared.
            first = heap[0]
            if head is None or first[0] < head[0]:
                head = first
            if (best is None or first[0] < best[0]) and self.room.fits(need):
                best, best_need = first, need
        if head is None or best is None or best_need is None:
            return None
        if best is not head:
            if head[1].overtaken >= PATIENCE:
                return None
            head[1].overtaken += 1
        heap = self._heaps[best_need]
        heappop(heap)
        if not heap:
            del self._heaps[best_need]
        self._size -= 1
        self.room.take(best_need)
        return best[1], best_need

    def clear(self) -> None:
        """Forget every task that waits."""
        self._heaps.clear()
        self._size = 0
