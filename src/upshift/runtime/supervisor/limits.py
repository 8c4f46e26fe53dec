"""The CPUs of a machine, lent to tasks, and the memory they may use: who exceeded it, and what ran out."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from upshift.model.settings.sizes import format_size
from upshift.model.spec.task import Failure
from upshift.runtime import confine, proc
from upshift.runtime.loop import Loop, Timer


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
