"""What a task uses over time, looked at from outside, so that it survives the task being killed."""

from __future__ import annotations

import json
import time
from pathlib import Path

from upshift.spec.hardware import Hardware
from upshift.worker import proc
from upshift.worker.loop import Loop, Timer

INTERVAL = 1.0
"""Seconds between two samples."""


class Sampler:
    """Samples a step process and its descendants, once a second.

    The series is a file of lines ``[seconds since the start, CPUs in use, bytes of memory]``, each
    complete as soon as it is written. A task that ends before the first sample has no series; its
    totals come from the kernel's accounting at its end.

    Memory that the process was forked with does not count. Memory shared between processes of one
    task counts for each of them.
    """

    def __init__(self, loop: Loop, pid: int, path: Path, baseline: int) -> None:
        self.peak = 0
        self.samples = 0
        self.cpu_peak = 0.0
        self._memory_sum = 0
        self._cpu_seconds = 0.0
        self._loop = loop
        self._pid = pid
        self._path = path
        self._baseline = baseline
        self._started = self._last = time.monotonic()
        self._timer: Timer = loop.after(INTERVAL, self._tick)

    def stop(self) -> None:
        """Take no further sample."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.after(INTERVAL, self._tick)
        found = proc.usage(proc.tree(self._pid))
        now = time.monotonic()
        memory = max(0, found.memory - self._baseline)
        cpus = max(0.0, found.cpu_seconds - self._cpu_seconds) / max(now - self._last, 1e-3)
        self._cpu_seconds, self._last = max(found.cpu_seconds, self._cpu_seconds), now
        self.samples += 1
        self._memory_sum += memory
        self.peak = max(self.peak, memory)
        self.cpu_peak = max(self.cpu_peak, cpus)
        line = json.dumps([round(now - self._started, 3), round(cpus, 3), memory])
        try:
            with open(self._path, "a", encoding="ascii") as file:
                file.write(line + "\n")
        except OSError:
            self.stop()  # the disk is full: totals are still kept, the rest of the series is not

    def record(self, *, seconds: float, cpu_seconds: float, peak: int | None) -> Hardware:
        """The record ``used``.

        Parameters
        ----------
        seconds
            From start to end.
        cpu_seconds
            As the kernel accounted them at the end.
        peak
            Bytes at most, as the step process itself saw it at its end.
        """
        return used(
            seconds=seconds,
            cpu_seconds=max(cpu_seconds, self._cpu_seconds),
            cpu_peak=self.cpu_peak,
            peak=max(self.peak, peak or 0),
            mean=self._memory_sum / self.samples if self.samples else None,
            samples=self.samples,
            series=self._path.name if self.samples else None,
        )


def used(
    *,
    seconds: float,
    cpu_seconds: float,
    peak: int,
    cpu_peak: float = 0.0,
    mean: float | None = None,
    samples: int = 0,
    series: str | None = None,
) -> Hardware:
    """The record ``used``, of totals and, where there are samples, of these."""
    cpus = cpu_seconds / seconds if seconds > 0 else 0.0
    details = {
        "seconds": round(seconds, 6),
        "cpu_seconds": round(cpu_seconds, 6),
        "cpu_mean": round(cpus, 3),
        "cpu_peak": round(max(cpu_peak, cpus), 3),
        "memory_peak": peak,
        "memory_mean": int(peak if mean is None else mean),
        "samples": samples,
        "series": series,
    }
    return Hardware(cpu_count=round(cpus, 3), memory=peak, nodes=1, details=details)
