"""What runs now, over all runs of the catalog: which attempt has which devices, and what it uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import NotFound, StoreError
from upshift.model.spec.hardware import Device, Hardware
from upshift.model.spec.task import TaskId
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import INTERRUPTED, see_running, standing
from upshift.runs.catalog.rows import AttemptRow, RunRow
from upshift.runs.history.records import utc
from upshift.runtime.storage.series import Number, Series, given, read_series
from upshift.runtime.storage.store import Store, open_store

TAIL = 1 << 16
"""Bytes at the end of a series that are read each time."""
MINUTE = 60.0
"""Seconds that are shown."""
STALE = 10.0
"""Seconds after which a series that does not grow is of something that has ended."""


@attrs.frozen(kw_only=True)
class GpuNow:
    """One device of an attempt, as it is now; None: it does not tell."""

    uuid: str | None = None
    vendor: str | None = None
    index: int | None = None
    model: str | None = None
    memory_total: int | None = None
    busy: Number = None  # percent
    memory: Number = None  # bytes
    own_memory: Number = None
    power: Number = None  # W
    temperature: Number = None  # °C

    def as_json(self) -> dict[str, Any]:
        """For ``upshift top --json``."""
        sizes = {name: _whole(getattr(self, name)) for name in ("memory", "own_memory")}
        return attrs.asdict(self) | sizes


@attrs.frozen(kw_only=True)
class Running:
    """An attempt that runs."""

    run: RunRow
    task: TaskId  # which of its attempts it is
    attempt: int
    node: str | None  # name of the host
    started: float  # since when, in seconds since the epoch, and for how long
    seconds: float
    granted: Hardware | None
    now: Mapping[str, Number]  # the newest sample, by column; empty: there is none yet
    waits: str | None = None  # what it waits for before it can start, in words; None: it runs
    gpus: tuple[GpuNow, ...] = ()
    minute: Series = attrs.field(factory=Series)  # the samples of the last minute

    @property
    def gpu_mean(self) -> float | None:
        """How many of its devices are busy; None: they do not tell."""
        busy = [gpu.busy for gpu in self.gpus if gpu.busy is not None]
        return sum(busy) / 100 if busy else None

    def curve(self) -> list[Number]:
        """The last minute of its GPUs, in percent of all of them; of its CPUs where it has no GPU."""
        columns = self.minute.columns
        busy = [columns[name] for name in columns if name.startswith("gpu.") and name.endswith(".busy")]
        if not busy:
            return list(columns.get("cpu", ()))
        return [
            sum(known) / len(known) if (known := [value for value in row if value is not None]) else None
            for row in zip(*busy, strict=True)
        ]

    def as_json(self) -> dict[str, Any]:
        """For ``upshift top --json``: times in seconds, sizes in bytes, null where unknown."""
        names = ("memory", "read", "written", "received", "sent")
        return {
            "run": self.run.id,
            "pipeline": self.run.pipeline,
            "step": self.task.step,
            "index": self.task.index,
            "attempt": self.attempt,
            "node": self.node,
            "started": utc(self.started).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "seconds": round(self.seconds, 3),
            "waits": self.waits,
            "granted": self.granted.as_json() if self.granted is not None else None,
            "cpu": self.now.get("cpu"),
            **{name: _whole(self.now.get(name)) for name in names},
            "gpus": [gpu.as_json() for gpu in self.gpus],
        }


@attrs.frozen(kw_only=True)
class DeviceNow:
    """A device of this machine."""

    device: Device
    holder: Running | None = None  # the attempt that has it; None: none of these
    pid: int | None = None  # another process that has it; None: none that is seen

    @property
    def now(self) -> GpuNow | None:
        """The newest sample of the device, from the task that holds it."""
        gpus = self.holder.gpus if self.holder is not None else ()
        return next((gpu for gpu in gpus if gpu.uuid == self.device.uuid), None)

    def as_json(self) -> dict[str, Any]:
        """For ``upshift top --json``."""
        holder = None
        if self.holder is not None:
            holder = {
                "run": self.holder.run.id,
                "task": str(self.holder.task),
                "attempt": self.holder.attempt,
            }
        return self.device.as_json() | {"holder": holder, "pid": self.pid}


@attrs.frozen(kw_only=True)
class Now:
    """What runs, and the devices of this machine, at some moment."""

    at: float  # seconds since the epoch
    running: Sequence[Running]
    devices: Sequence[DeviceNow] = ()

    def as_json(self) -> dict[str, Any]:
        """For ``upshift top --json``."""
        return {
            "running": [one.as_json() for one in self.running],
            "devices": [one.as_json() for one in self.devices],
        }


_SEE = 5.0
"""Seconds between two looks into stores, for what engines of other homes have started."""


class Watch:
    """Looks at what runs, again and again."""

    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.time) -> None:
        self._catalog = catalog
        self._clock = clock
        self._stores: dict[str, Store] = {}
        self._granted: dict[tuple[TaskId, int], Hardware | None] = {}
        self._devices: tuple[Device, ...] = ()
        self._discovery: threading.Thread | None = None
        self._see_at = 0.0

    def look(self, *, wait: bool = True) -> Now:
        """What runs now, by run and step."""
        if self._discovery is None:
            self._discovery = threading.Thread(target=self._discover, daemon=True)
            self._discovery.start()
        running = self._running_now()
        if wait:
            self._discovery.join()
        return Now(at=self._clock(), running=running, devices=_held(self._devices, running))

    def _discover(self) -> None:
        from upshift.runtime.accelerators.agent import discover

        self._devices = tuple(device for inventory in discover() for device in inventory.devices)

    def _running_now(self) -> list[Running]:
        if time.monotonic() >= self._see_at:
            self._see_at = time.monotonic() + _SEE
            see_running(self._catalog)
        rows = self._catalog.running()
        runs = self._runs({row.task.run for row in rows})
        granted, self._granted = self._granted, {}
        found = []
        for row in rows:
            key = row.task, row.number
            run = runs.get(row.task.run)
            if run is None:
                continue
            store = self._store(run.store)
            path = store.series_path(row.task, row.number)
            if run.status == INTERRUPTED and not self._grows(path):
                continue
            if row.waits is not None:
                self._granted[key] = None
            else:
                self._granted[key] = granted.get(key) or _granted(row, store)
            found.append(self._running(run, row, read_series(path, tail=TAIL)))
        return found

    def _runs(self, ids: set[str]) -> Mapping[str, RunRow]:
        rows = []
        for run in ids:
            try:
                rows.append(self._catalog.run(run))
            except NotFound:  # it was removed meanwhile
                continue
        return {row.id: row for row in standing(rows, self._catalog)}

    def _running(self, run: RunRow, row: AttemptRow, series: Series | None) -> Running:
        started = row.started or (series.started if series is not None else self._clock())
        minute = _last(series, MINUTE) if series is not None else Series()
        now = {name: values[-1] for name, values in minute.columns.items() if values}
        return Running(
            run=run,
            task=row.task,
            attempt=row.number,
            node=row.node,
            started=started,
            seconds=max(0.0, self._clock() - started),
            granted=given(self._granted[row.task, row.number], series),
            waits=row.waits,
            now=now,
            gpus=tuple(_gpus(minute, now)),
            minute=minute,
        )

    def _grows(self, path: Path) -> bool:
        """Whether a sample was written lately: the engine is gone, and its task goes on."""
        try:
            return self._clock() - path.stat().st_mtime < STALE
        except OSError:
            return False

    def _store(self, address: str) -> Store:
        if address not in self._stores:
            self._stores[address] = open_store(address)
        return self._stores[address]


def _whole(value: Number) -> int | None:
    return None if value is None else round(value)


def _granted(row: AttemptRow, store: Store) -> Hardware | None:
    try:
        return store.read_spec(store.spec_path(row.task, row.number)).granted
    except StoreError:
        return None


def _last(series: Series, seconds: float) -> Series:
    times = series.columns["time"]
    end = times[-1] or 0.0
    first = next(i for i, at in enumerate(times) if at is not None and at >= end - seconds)
    return attrs.evolve(series, columns={name: values[first:] for name, values in series.columns.items()})


def _gpus(series: Series, now: Mapping[str, Number]) -> Iterator[GpuNow]:
    for number, device in enumerate(series.gpus):
        fields: dict[str, Any] = {name: device.get(name) for name in ("uuid", "vendor", "index", "model")}
        for name in ("busy", "memory", "own_memory", "power", "temperature"):
            fields[name] = now.get(f"gpu.{number}.{name}")
        yield GpuNow(memory_total=device.get("memory"), **fields)


def _held(devices: Sequence[Device], running: Sequence[Running]) -> list[DeviceNow]:
    if not devices:
        return []
    from upshift.runtime.accelerators.locks import holder

    by_uuid = {gpu.uuid: one for one in running for gpu in one.gpus if gpu.uuid is not None}
    return [
        DeviceNow(device=device, holder=found, pid=None if found is not None else holder(device))
        for device in devices
        for found in [by_uuid.get(device.uuid or "")]
    ]
