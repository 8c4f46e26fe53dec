"""What the processes of a step use: the process that was started, and whatever descends from it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from upshift.worker import proc

SHARE = 0.0025
"""Share of one CPU that all samplers of a supervisor may spend on finding out which memory is shared."""
_LOOKS = 3
"""Times that processes are looked at anew because one of them ended meanwhile."""

Process = tuple[int, int]
"""A process: its id, and when it started, since ids are given again."""


class Load(NamedTuple):
    """What the processes use, at one moment.

    Parameters
    ----------
    pids
        The processes.
    consumed
        So far, by processes that have ended as well.
    memory
        Bytes of anonymous and shared memory; what processes share counts once, as far as is known.
    disks_known
        Whether the kernel tells what is read and written.
    """

    pids: Sequence[int]
    consumed: proc.Consumed
    memory: int
    disks_known: bool


class Odometer:
    """Adds up a count that every process has, over processes that come and go.

    The kernel adds the count of a process that has ended to what whoever waited for it has *inherited*.
    Where nobody waits (``SIGCHLD`` is ignored) it is lost; what was seen of it is kept here.
    """

    def __init__(self) -> None:
        self.total = 0
        self._last: Mapping[Process, tuple[int, int]] = {}

    def advance(self, now: Mapping[Process, tuple[int, int]]) -> None:
        """The counts are these now: of each process its own, and what it has inherited."""
        own = inherited = 0
        for process, counts in now.items():
            before = self._last.get(process, (0, 0))
            own += counts[0] - before[0]
            inherited += counts[1] - before[1]
        ended = sum(sum(counts) for process, counts in self._last.items() if process not in now)
        self.total += max(0, own) + max(0, inherited - ended)
        self._last = now


class SharedMemory:
    """Tells how much of the memory of several processes they share.

    The kernel walks every page to tell, milliseconds for each gigabyte, so it is asked so often only
    that it costs a small share of a CPU; meanwhile the last answer is believed. One of these is for
    all steps of a supervisor.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._parts: dict[int, float] = {}

    def together(self, root: int, pids: Sequence[int], each: Sequence[int]) -> int:
        """Bytes that the processes below ``root`` have together; ``each`` has so many."""
        total = sum(each)
        if len(pids) < 2 or not total:
            return total
        began = time.monotonic()
        if began >= self._due:
            self._parts[root] = min(1.0, proc.proportional(pids) / total)
            ended = time.monotonic()
            self._due = ended + (ended - began) / SHARE
        return max(*each, round(total * self._parts.get(root, 1.0)))

    def forget(self, root: int) -> None:
        """The process has ended."""
        self._parts.pop(root, None)


class Processes:
    """The processes of one step.

    Parameters
    ----------
    pid
        The first of them.
    shared
        Who finds out what they share.
    """

    def __init__(self, pid: int, shared: SharedMemory) -> None:
        self._pid = pid
        self._shared = shared
        self._cpu, self._read, self._written = Odometer(), Odometer(), Odometer()
        self._counts_disks = True

    def look(self) -> Load | None:
        """What they use now; None: the first of them has ended."""
        pids, stats = self._stats()
        first = stats.get(self._pid)
        if first is None or not first.alive:
            return None
        self._cpu.advance({stat.process: (stat.own, stat.inherited) for stat in stats.values()})
        self._look_at_disks(stats)
        memory = self._shared.together(self._pid, pids, [proc.unreclaimable(pid) for pid in pids])
        consumed = proc.Consumed(self._cpu.total / proc.TICKS, self._read.total, self._written.total)
        return Load(pids, consumed, memory, self._counts_disks)

    def _stats(self) -> tuple[Sequence[int], Mapping[int, proc.Stat]]:
        """Every process with its times, none of which ended between being found and being looked at.

        Else its time would be missing, or be counted with it and with who waited for it.
        """
        for _ in range(_LOOKS):
            pids = proc.tree(self._pid)
            stats = {pid: stat for pid in pids if (stat := proc.stat(pid)) is not None}
            if len(stats) == len(pids):
                break
        return pids, stats

    def _look_at_disks(self, stats: Mapping[int, proc.Stat]) -> None:
        if not self._counts_disks:
            return
        counts = {stat.process: io for pid, stat in stats.items() if (io := proc.disk(pid)) is not None}
        self._counts_disks = bool(counts)
        self._read.advance({process: (0, io[0]) for process, io in counts.items()})
        self._written.advance({process: (0, io[1]) for process, io in counts.items()})
