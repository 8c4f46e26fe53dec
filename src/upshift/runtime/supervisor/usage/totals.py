"""The record ``used``: totals, peaks and means of an attempt, added up sample by sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from upshift.model.spec.hardware import Device, Hardware
from upshift.runtime.proc import Consumed

Pair = tuple[int | None, int | None]


class Mean:
    """The mean of a reading over the time in which it was known, and the most it was."""

    __slots__ = ("peak", "seconds", "sum")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sum = 0.0
        self.peak: float | None = None

    def add(self, value: float | None, seconds: float) -> None:
        """It was this for so long; None: unknown."""
        if value is not None:
            self.seconds += seconds
            self.sum += value * seconds
            self.peak = value if self.peak is None else max(self.peak, value)

    @property
    def value(self) -> float | None:
        """The mean; None: it was never known."""
        return self.sum / self.seconds if self.seconds else None


class Totals:
    """What the samples of an attempt add up to."""

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
        gpus: tuple[Device, ...] | None = None,
        more: Mapping[str, Any] | None = None,
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
        return Hardware(
            cpu_count=round(cpus, 3), memory=peak, gpus=gpus, nodes=1, details=details | dict(more or {})
        )
