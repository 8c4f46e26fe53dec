"""What a task uses over time, looked at from outside, so that it survives the task being killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from upshift.model.spec import Failure, Gap, Hardware, TaskSpec
from upshift.runtime.loop import Loop, Timer
from upshift.runtime.proc import Consumed
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.counters import FRESH, Network, Processes, SharedMemory, Totals

if TYPE_CHECKING:
    from upshift.runtime.storage.series import Number, SeriesWriter
    from upshift.runtime.supervisor.gpu_usage import GpuUsage

INTERVAL = 1.0
"""Seconds between two samples."""
UNREADABLE = 15.0
"""Seconds after which a device that has not told how busy it is never will."""


class SharedCounters:
    """The counters that the samplers of one supervisor share."""

    def __init__(self) -> None:
        self.network = Network()
        self.shared = SharedMemory()


class Sampler:
    """Samples the processes of a step, what descends from them, and its devices, once a second.

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
        gpus: GpuUsage | None = None,
        tell: Callable[[str], None] = lambda line: None,
        stop: Callable[[Failure], None] = lambda failure: None,
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._store = store
        self._baselines = baselines  # bytes that each process was forked with
        self._wall = started
        self._node = node
        self._number = number
        self._gpus = gpus
        self._tell = tell
        self._stop = stop
        self._interval = spec.settings.profile or INTERVAL
        self._idle_timeout = spec.settings.gpu_idle_timeout
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
        if self._gpus is None and self._spec.settings.gpu_idle_timeout is not None:
            found.append("gpu_idle_timeout has nothing to watch: the step was granted no GPU")
        if self._gpus is None and self._spec.settings.profile is not None:
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
        self._apply_policy()

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
        if self._gpus is not None:
            pids = [pid for load in loads.values() for pid in load.pids]
            values |= self._gpus.sample(at, seconds, cpus, pids)
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
                self._gpus.table() if self._gpus is not None else (),
                temporaries=self._store.temporaries,
            )
        return self._series

    def _apply_policy(self) -> None:
        timeout, gpus = self._idle_timeout, self._gpus
        if timeout is None or gpus is None:
            return
        if gpus.idleness.seconds >= timeout:
            self._idle_timeout = None
            self._stop(gpus.idleness.failure(len(gpus), timeout))
        elif not gpus.known and self._last - self._started >= UNREADABLE:
            self._tell("gpu_idle_timeout is not applied: the GPU does not tell how busy it is")
            self._idle_timeout = None

    def record(self, *, seconds: float, consumed: Consumed, peak: int | None) -> Hardware:
        """The record ``used``."""
        return self._totals.record(
            seconds=seconds,
            consumed=consumed.or_more(self._consumed),
            peak=peak,
            network=self._traffic(),
            interval=self._interval,
            series=self._series.name if self._series is not None else None,
            gpus=self._gpus.record() if self._gpus is not None else None,
            more=self._gpus.together() if self._gpus is not None else None,
        )

    def _traffic(self) -> tuple[int | None, int | None]:
        before, now = self._network_before, self._network
        if before is None or now is None or not self._totals.samples:
            return None, None
        return max(0, now[0] - before[0]), max(0, now[1] - before[1])
