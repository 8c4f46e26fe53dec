"""What the accelerators of one attempt are used for, and for how long they have been idle."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.model.spec.hardware import IDLE, Device, Hardware, one_cpu
from upshift.model.spec.task import Failure
from upshift.runtime.storage.series import GPU_COLUMNS, Number
from upshift.runtime.supervisor.sampling import Mean, Sampler

if TYPE_CHECKING:
    from upshift.model.spec import TaskSpec
    from upshift.runtime.accelerators.vendor import Reading
    from upshift.runtime.loop import Loop
    from upshift.runtime.proc import Consumed
    from upshift.runtime.storage.store import Store
    from upshift.runtime.supervisor.device_monitor import DeviceMonitor

XIDS = 20
"""Xid events of a device that are recorded: the first ones."""
UNREADABLE = 15.0
"""Seconds after which a device that has not told how busy it is never will."""
STALE = 5.0
"""Seconds, or as many intervals, after which a reading says nothing any more."""
_PLAIN = tuple(
    name for name in GPU_COLUMNS if name not in ("own_memory", "ecc_errors", "xid", "processes")
)  # as the device tells them


class GpuSampler(Sampler):
    """Samples the devices of a step, too, and stops a step that leaves them idle for too long."""

    def __init__(
        self,
        gpus: GpuUsage,
        loop: Loop,
        spec: TaskSpec,
        store: Store,
        *,
        stop: Callable[[Failure], None],
        **more: Any,
    ) -> None:
        super().__init__(loop, spec, store, **more)
        self._gpus = gpus
        self._stop = stop
        self._idle_timeout = spec.settings.gpu_idle_timeout

    @property
    def remarks(self) -> list[str]:
        return []

    def record(self, *, seconds: float, consumed: Consumed, peak: int | None) -> Hardware:
        record = super().record(seconds=seconds, consumed=consumed, peak=peak)
        details = {**record.details, **self._gpus.together()}
        return attrs.evolve(record, gpus=self._gpus.record(), details=details)

    def _of_devices(
        self, at: float, seconds: float, cpus: float, pids: Sequence[int]
    ) -> Mapping[str, Number]:
        return self._gpus.sample(at, seconds, cpus, pids)

    def _table(self) -> Sequence[Mapping[str, Any]]:
        return self._gpus.table()

    def _tick(self) -> None:
        super()._tick()
        self._apply_policy()

    def _apply_policy(self) -> None:
        timeout, gpus = self._idle_timeout, self._gpus
        if timeout is None:
            return
        if gpus.idleness.seconds >= timeout:
            self._idle_timeout = None
            self._stop(gpus.idleness.failure(len(gpus), timeout))
        elif not gpus.known and self._last - self._started >= UNREADABLE:
            self._tell("gpu_idle_timeout is not applied: the GPU does not tell how busy it is")
            self._idle_timeout = None


class GpuTotals:
    """What one device was used for so far; ``last`` is what was read of it before."""

    def __init__(self, device: Device, last: Reading | None) -> None:
        self.device = device
        self.new_xid: int | None = None
        self._xid_events = 0 if last is None else last.xid_events
        self.busy = Mean()
        self._power, self._memory, self._own, self._temperature = Mean(), Mean(), Mean(), Mean()
        before = None if last is None else last.ecc_errors
        self._ecc: tuple[int, int] | None = None if before is None else (before, before)
        self._xids: list[dict[str, float]] = []
        self._problem: str | None = None
        self._lost_at: float | None = None

    def add(self, at: float, seconds: float, reading: Reading, own: int | None) -> None:
        """It was like this for so many seconds, until ``at``; ``own`` bytes on it are the step's."""
        self.busy.add(reading.busy, seconds)
        self._power.add(reading.power, seconds)
        self._memory.add(reading.memory, seconds)
        self._own.add(own, seconds)
        self._temperature.add(reading.temperature, seconds)
        if reading.problem is not None:
            self._problem = reading.problem
            self._lost_at = at if self._lost_at is None else self._lost_at
        if reading.ecc_errors is not None:
            self._ecc = (self._ecc[0] if self._ecc else reading.ecc_errors, reading.ecc_errors)
        self.new_xid = reading.xid if reading.xid_events > self._xid_events else None
        self._xid_events = reading.xid_events  # less than before: who watches was started again
        if self.new_xid is not None and len(self._xids) < XIDS:
            self._xids.append({"at": round(at, 2), "code": self.new_xid})

    @property
    def ecc_errors(self) -> int | None:
        """Uncorrected errors since the first reading; the driver counts from 0 when it is loaded anew."""
        return None if self._ecc is None else max(0, self._ecc[1] - self._ecc[0])

    def record(self) -> Device:
        """The device, with all that in its details."""
        details = {
            "busy_mean": _rounded(self.busy.value, 1),
            "busy_peak": _rounded(self.busy.peak, 1),
            "memory_peak": _whole(self._memory.peak),
            "own_memory_peak": _whole(self._own.peak),
            "power_mean": _rounded(self._power.value, 1),
            "energy": _rounded(self._power.sum if self._power.seconds else None, 1),
            "temperature_peak": _rounded(self._temperature.peak, 1),
            "ecc_errors": self.ecc_errors,
            "xids": self._xids,
            "problem": self._problem,
            "lost_at": _rounded(self._lost_at, 2),
        }
        return attrs.evolve(self.device, details=details)


class GpuUsage:
    """Samples the devices that an attempt was granted."""

    def __init__(self, devices: Sequence[Device], accelerators: DeviceMonitor, *, interval: float) -> None:
        self.idleness = Idleness()
        self._totals = [GpuTotals(d, accelerators.readings.get(d.uuid or "")) for d in devices]
        self._all_idle, self._one_cpu = Mean(), Mean()
        self._accelerators = accelerators
        self._stale = max(STALE, STALE * interval)
        accelerators.want(interval=interval)

    def __len__(self) -> int:
        return len(self._totals)

    @property
    def known(self) -> bool:
        """Whether any of them has ever told how busy it is."""
        return any(totals.busy.seconds for totals in self._totals)

    def table(self) -> list[Mapping[str, Any]]:
        """What devices these are, for the head of a series."""
        drivers = {inventory.vendor: inventory.driver for inventory in self._accelerators.inventories}
        names = ("uuid", "vendor", "index", "model", "memory", "partition")
        return [
            {name: value for name in names if (value := getattr(totals.device, name)) is not None}
            | ({"driver": drivers[vendor]} if (vendor := totals.device.vendor or "") in drivers else {})
            for totals in self._totals
        ]

    def sample(self, at: float, seconds: float, cpus: float, pids: Collection[int]) -> Mapping[str, Number]:
        """What is known of them now, as columns of the series; ``at`` in seconds since it started."""
        readings = self._readings()
        columns: dict[str, Number] = {}
        busy: list[float | None] = []
        for number, totals in enumerate(self._totals):
            reading = readings.get(totals.device.uuid or "")
            busy.append(None if reading is None else reading.busy)
            if reading is None:
                continue
            own = own_memory(reading, pids)
            totals.add(at, seconds, reading, own)
            values = {name: getattr(reading, name) for name in _PLAIN}
            values["own_memory"] = own
            values["ecc_errors"] = totals.ecc_errors
            values["xid"] = totals.new_xid
            values["processes"] = sum(map(_exists, reading.processes.keys() - set(pids)))
            columns |= {f"gpu.{number}.{name}": values[name] for name in GPU_COLUMNS}
        idle = all_idle(busy)
        if idle is not None:
            self._all_idle.add(float(idle), seconds)
            self._one_cpu.add(float(idle and one_cpu(cpus)), seconds)
        self.idleness.add(seconds, cpus, idle)
        return columns

    def record(self) -> tuple[Device, ...]:
        """The devices, each with what it was used for."""
        return tuple(totals.record() for totals in self._totals)

    def together(self) -> Mapping[str, float | str | None]:
        """The usage of all devices together."""
        known = [mean for totals in self._totals if (mean := totals.busy.value) is not None]
        drivers = {inventory.vendor: inventory.driver for inventory in self._accelerators.inventories}
        vendor = self._totals[0].device.vendor or ""
        return {
            "gpu_mean": _rounded(sum(known) / 100 if known else None, 3),
            "gpu_idle": _rounded(self._all_idle.value, 3),
            "gpu_idle_cpu_bound": _rounded(self._one_cpu.value, 3),
            "gpu_driver": drivers.get(vendor),
        }

    def _readings(self) -> Mapping[str, Reading]:
        now = time.monotonic()
        return {
            reading.uuid: reading
            for snapshot in self._accelerators.latest
            if now - snapshot.at <= self._stale
            for reading in snapshot.readings
        }


def all_idle(busy: Sequence[float | None]) -> bool | None:
    """Whether all devices are idle, by how many percent each is busy; None: nobody knows."""
    if any(value is not None and value >= IDLE for value in busy):
        return False
    return None if not busy or None in busy else True


def own_memory(reading: Reading, pids: Collection[int]) -> int | None:
    """Bytes on the device that these processes have; None: it does not tell.

    In a container a driver may tell the ids that processes have outside, by which nobody knows them here.
    """
    own = [size for pid, size in reading.processes.items() if pid in pids]
    if not own and not (reading.processes and all(map(_exists, reading.processes))):
        return None
    known = [size for size in own if size is not None]
    return None if own and not known else sum(known)


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


_WAITING = 0.1
"""CPUs in use below which the step waits for something else."""


@attrs.define
class Idleness:
    """How long all GPUs of a step have been idle without a break; unknown times do not count."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # CPU time of the step's processes meanwhile

    def add(self, seconds: float, cpus: float, idle: bool | None) -> None:
        """For so many seconds so many CPUs were in use, and all GPUs were idle; None: nobody knows."""
        if idle:
            self.seconds += seconds
            self.cpu_seconds += cpus * seconds
        elif idle is False:
            self.seconds = self.cpu_seconds = 0.0

    def failure(self, gpus: int, timeout: float) -> Failure:
        """Why a step that has been idle for so long is stopped."""
        cpus = self.cpu_seconds / self.seconds if self.seconds else 0.0
        them = "its GPU was" if gpus == 1 else f"all of its {gpus} GPUs were"
        return Failure(
            reason="hang",
            message=f"{them} idle for {self.seconds:.0f} s, while its processes used {cpus:.2g} CPUs "
            f"(gpu_idle_timeout is {timeout:g} s)",
            fix=_advice(cpus),
        )


def _advice(cpus: float) -> str:
    if cpus < _WAITING:
        why = "It waits for something else: the network, a lock, another process; see its log."
    elif one_cpu(cpus):
        why = "One thread prepares the data: give the data loader more workers, or do that in a step before."
    else:
        why = "The CPUs prepare the data: do that in a step before, which needs no GPU."
    return f"{why} Where such a pause is in order, set a longer gpu_idle_timeout."
