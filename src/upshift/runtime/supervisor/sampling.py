"""What a task uses over time, looked at from outside, so that it survives the task being killed.

The kernel counts what processes use; whatever descends from a process counts with it. Bytes over the network
are those of the whole node or container, since the kernel does not tell them by process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from upshift.model.spec import Gap, Hardware, TaskSpec
from upshift.runtime import proc
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.proc import Consumed, read
from upshift.runtime.storage.store import Store

if TYPE_CHECKING:
    from upshift.runtime.storage.series import Number, SeriesWriter


INTERVAL = 1.0
"""Seconds between two samples."""


class SharedCounters:
    """The counters that the samplers of one supervisor share."""

    def __init__(self) -> None:
        self.network = Network()
        self.shared = SharedMemory()


class Sampler:
    """Samples the processes of a step, and what descends from them, once a second.

    The samples go to the attempt's series. A task that ends before the first one has no series; its
    totals come from the kernel's accounting at its end. Times are of a clock that never jumps.

    Memory that the processes were forked with does not count.
    """

    def __init__(
        self,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        *,
        baselines: Mapping[int, int],
        started: float,  # when, in seconds since the epoch
        node: SharedCounters,
        number: int = 0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._store = store
        self._baselines = baselines  # bytes that each process was forked with
        self._wall = started
        self._node = node
        self._number = number
        self._tell = tell
        self._interval = spec.settings.profile or INTERVAL
        self._totals = Totals()
        self._processes = {pid: Processes(pid, node.shared) for pid in baselines}
        self._each: dict[int, Consumed] = {}  # of processes that have ended what was seen last
        self._peaks: dict[int, int] = {}
        self._series: SeriesWriter | None = None
        self._consumed = Consumed()
        self._network = self._network_before = node.network.counts(age=FRESH)
        self._started = self._last = time.monotonic()
        self._timer: Timer = loop.after(self._interval, self._tick)

    @property
    def memory_peak(self) -> int:
        """Bytes at most, as far as was seen."""
        return self._totals.memory_peak

    def peak_of(self, pid: int) -> int | None:
        """Bytes at most of one of the processes and what descends from it; None: no sample has it."""
        return self._peaks.get(pid)

    @property
    def gap(self) -> Gap | None:
        """Since when there are no samples on record, and why; None: they are."""
        return self._series.gap if self._series is not None else None

    @property
    def remarks(self) -> list[str]:
        """What the step asks for that there is no GPU for, a line each."""
        found = []
        if self._spec.settings.gpu_idle_timeout is not None:
            found.append("gpu_idle_timeout has nothing to watch: the step was granted no GPU")
        if self._spec.settings.profile is not None:
            found.append("@gpu_profile: the step was granted no GPU; the profile has its CPUs and memory")
        return found

    def close(self) -> None:
        """Take a last sample, if there are others and the process still lives, and no further one.

        The kernel counts CPU time in hundredths of a second: of a moment it says nothing.
        """
        self._timer.cancel()
        if self._totals.samples and time.monotonic() - self._last >= self._interval / 2:
            self._sample()
        if self._series is not None:
            self._series.close()
        for pid in self._processes:
            self._node.shared.forget(pid)

    def _tick(self) -> None:
        self._timer = self._loop.after(self._interval, self._tick)
        self._sample()

    def _sample(self) -> None:
        loads = {pid: load for pid, one in self._processes.items() if (load := one.look()) is not None}
        if not loads:
            return
        now = time.monotonic()
        seconds = max(now - self._last, 1e-3)
        at = now - self._started
        self._each |= {pid: load.consumed for pid, load in loads.items()}
        used, before = Consumed.sum(self._each.values()), self._consumed
        self._consumed, self._last = used, now
        each = {pid: max(0, load.memory - self._baselines[pid]) for pid, load in loads.items()}
        self._peaks |= {pid: max(held, self._peaks.get(pid, 0)) for pid, held in each.items()}
        memory = sum(each.values())
        cpus = (used.cpu_seconds - before.cpu_seconds) / seconds
        self._totals.add(seconds, cpus, memory)
        values: dict[str, Number] = {"time": at, "cpu": cpus, "memory": memory}
        if all(load.disks_known for load in loads.values()):
            values["read"] = (used.read - before.read) / seconds
            values["written"] = (used.written - before.written) / seconds
        network = self._node.network.counts(age=self._interval / 2)  # another step may just have read it
        if network is not None and self._network is not None:
            values["received"] = max(0, network[0] - self._network[0]) / seconds
            values["sent"] = max(0, network[1] - self._network[1]) / seconds
        self._network = network
        values |= self._of_devices(at, seconds, cpus, [pid for load in loads.values() for pid in load.pids])
        writer = self._writer()
        lost = writer.gap is not None
        writer.write(values)
        if writer.gap is not None and not lost:
            self._tell(f"the file of samples ends here: {writer.gap.why}")

    def _writer(self) -> SeriesWriter:
        if self._series is None:
            from upshift.runtime.storage.series import (
                SeriesWriter,  # most steps end before their first sample
            )

            self._series = SeriesWriter(
                self._store.series_path(self._spec.task, self._spec.attempt, self._number),
                self._wall,
                self._table(),
                temporaries=self._store.temporaries,
            )
        return self._series

    def _of_devices(
        self, at: float, seconds: float, cpus: float, pids: Sequence[int]
    ) -> Mapping[str, Number]:
        """Further columns of a sample, where the step has devices."""
        return {}

    def _table(self) -> Sequence[Mapping[str, Any]]:
        """What devices these are, for the head of the series."""
        return ()

    def record(self, *, seconds: float, consumed: Consumed, peak: int | None) -> Hardware:
        """The record ``used``."""
        return self._totals.record(
            seconds=seconds,
            consumed=consumed.or_more(self._consumed),
            peak=peak,
            network=self._traffic(),
            interval=self._interval,
            series=self._series.name if self._series is not None else None,
        )

    def _traffic(self) -> tuple[int | None, int | None]:
        before, now = self._network_before, self._network
        if before is None or now is None or not self._totals.samples:
            return None, None
        return max(0, now[0] - before[0]), max(0, now[1] - before[1])


Pair = tuple[int | None, int | None]


class Mean:
    """The mean of a reading over the time in which it was known, and the most it was."""

    __slots__ = ("peak", "seconds", "sum")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sum = 0.0
        self.peak: float | None = None

    def add(self, value: float | None, seconds: float) -> None:
        """Add a value that lasted so many seconds; None: unknown."""
        if value is not None:
            self.seconds += seconds
            self.sum += value * seconds
            self.peak = value if self.peak is None else max(self.peak, value)

    @property
    def value(self) -> float | None:
        """The mean; None: it was never known."""
        return self.sum / self.seconds if self.seconds else None


class Totals:
    """The totals over all samples of an attempt."""

    def __init__(self) -> None:
        self.samples = 0
        self._cpus, self._memory = Mean(), Mean()

    def add(self, seconds: float, cpus: float, memory: int) -> None:
        """For so many seconds so many CPUs were busy, and so many bytes of memory in use."""
        self.samples += 1
        self._cpus.add(cpus, seconds)
        self._memory.add(memory, seconds)

    @property
    def memory_peak(self) -> int:
        """Bytes at most, of all samples."""
        return int(self._memory.peak or 0)

    def record(
        self,
        *,
        seconds: float,
        consumed: Consumed,
        peak: int | None = None,  # bytes of memory at most, as the step process itself saw it at its end
        network: Pair = (None, None),  # bytes received and sent
        interval: float | None = None,  # seconds between two samples
        series: str | None = None,
    ) -> Hardware:
        """The record."""
        cpus = consumed.cpu_seconds / seconds if seconds > 0 else 0.0
        peak = max(peak or 0, self.memory_peak)
        details = {
            "seconds": round(seconds, 6),
            "cpu_seconds": round(consumed.cpu_seconds, 6),
            "cpu_mean": round(cpus, 3),
            "cpu_peak": round(max(self._cpus.peak or 0.0, cpus), 3),
            "memory_peak": peak,
            "memory_mean": int(peak if self._memory.value is None else self._memory.value),
            "disk_read": consumed.read,
            "disk_written": consumed.written,
            "network_received": network[0],
            "network_sent": network[1],
            "samples": self.samples,
            "interval": interval,
            "series": series,
        }
        return Hardware(cpu_count=round(cpus, 3), memory=peak, nodes=1, details=details)


SHARE = 0.0025
"""Share of one CPU that all samplers of a supervisor may spend on finding out which memory is shared."""
LARGEST = 2 << 30
"""Bytes of all processes of a step of which the kernel is asked what they share."""
_LOOKS = 3
"""Times that processes are looked at anew because one of them ended meanwhile."""

Process = tuple[int, int]
"""A process: its id, and when it started, since ids are given again."""


class Usage(NamedTuple):
    """Resources that the processes use at one moment."""

    pids: Sequence[int]
    consumed: proc.Consumed  # up to now, also by processes that have ended
    memory: int  # bytes, anonymous and shared; what processes share counts once, as far as is known
    disks_known: bool  # whether the kernel tells what is read and written


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
    """Tells how much memory several processes have together, where they share some.

    The kernel walks every page to tell, 30 ms for each GiB of each process, in which a supervisor does
    nothing else. So it is asked so often only that it costs a small share of a CPU, and never about more
    than :data:`LARGEST`. What it has not been asked about is taken for granted: a process that was forked,
    and has executed no program, shares what it has when it is first seen, as far as its parent has as
    much; any other process shares nothing; and what a process gets later is its own. So the figure is too
    low by what forked processes overwrite, until the kernel can be asked. One of these is for all steps
    of a supervisor.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._elsewhere: dict[int, dict[Process, int]] = {}

    def together(self, root: int, stats: Mapping[int, proc.Stat], each: Mapping[int, int]) -> int:
        """Bytes that the processes below ``root`` have together, of what each has by its id."""
        total = sum(each.values())
        if len(each) < 2 or not total:
            return total
        known = self._elsewhere.get(root, {})
        now = self._elsewhere[root] = {
            stat.process: known[stat.process] if stat.process in known else _inherited(stat, stats, each)
            for stat in stats.values()
        }
        began = time.monotonic()
        if began >= self._due and total <= LARGEST:
            for pid, stat in stats.items():
                now[stat.process] = each[pid] - proc.proportional([pid])
            ended = time.monotonic()
            self._due = ended + (ended - began) / SHARE
        own = sum(max(0, each[pid] - now[stat.process]) for pid, stat in stats.items())
        return max(own, *each.values())

    def forget(self, root: int) -> None:
        """The process has ended."""
        self._elsewhere.pop(root, None)


def _inherited(stat: proc.Stat, stats: Mapping[int, proc.Stat], each: Mapping[int, int]) -> int:
    """Bytes that a process has in common with its parent, as far as can be told without asking."""
    parent = stats.get(stat.parent)
    if parent is None or not stat.forked_from(parent):
        return 0
    return min(each[stat.process[0]], each[stat.parent])


class Processes:
    """The processes of one step."""

    def __init__(self, pid: int, shared: SharedMemory) -> None:
        self._pid = pid
        self._shared = shared
        self._cpu, self._read, self._written = Odometer(), Odometer(), Odometer()
        self._counts_disks = True

    def look(self) -> Usage | None:
        """What they use now; None: the first of them has ended."""
        pids, stats = self._stats()
        first = stats.get(self._pid)
        if first is None or not first.alive:
            return None
        self._cpu.advance({stat.process: (stat.own, stat.inherited) for stat in stats.values()})
        self._look_at_disks(stats)
        memory = self._shared.together(self._pid, stats, {pid: proc.unreclaimable(pid) for pid in stats})
        consumed = proc.Consumed(self._cpu.total / proc.TICKS, self._read.total, self._written.total)
        return Usage(pids, consumed, memory, self._counts_disks)

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


COUNTERS = "/proc/self/net/dev"
DEVICES = "/sys/class/net"
FRESH = 1.0
"""Seconds for which a reading will do where a step starts."""


class Network:
    """Bytes received and sent so far, other than over loopback."""

    def __init__(self, counters: str = COUNTERS, devices: str = DEVICES) -> None:
        self._counters = counters
        self._devices = devices
        self._read_at = float("-inf")
        self._latest: tuple[int, int] | None = None

    def counts(self, *, age: float = 0.0) -> tuple[int, int] | None:
        """Bytes received and sent, up to ``age`` seconds ago; None: not known."""
        now = time.monotonic()
        if now - self._read_at > age:
            self._read_at = now
            self._latest = self._read()
        return self._latest

    def _read(self) -> tuple[int, int] | None:
        found = {name: counts for name, *counts in _interfaces(read(self._counters) or "")}
        chosen = self._counted(found)
        if not chosen:
            return None
        return sum(found[name][0] for name in chosen), sum(found[name][1] for name in chosen)

    def _counted(self, names: Collection[str]) -> list[str]:
        """Devices, and none that passes on to others (bridges, tunnels, bonds): that would count twice.

        A container has no device of its own; there it is everything but loopback.
        """
        real = [name for name in names if os.path.exists(f"{self._devices}/{name}/device")]
        return real or [name for name in names if name != "lo"]


def _interfaces(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, bytes received and sent of each interface: ``/proc/net/dev``, proc(5)."""
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        yield name.strip(), int(fields[0]), int(fields[8])
