"""What is made of the readings of a step's devices."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from upshift.model.spec import Device
from upshift.runtime.accelerators.agent import Snapshot
from upshift.runtime.accelerators.vendor import Inventory, Reading
from upshift.runtime.supervisor.gpu_usage import GpuUsage, Idleness, all_idle, own_memory

STRANGER = os.getpid()
OUTSIDE = 1 << 30
"""No process has this id here."""
DEVICES = [Device(uuid=f"GPU-{n}", vendor="nvidia", model="H100", memory=80, index=n) for n in range(2)]


class Scripted:
    """DeviceMonitor that say what they are told to."""

    def __init__(self) -> None:
        self.inventories = (Inventory(vendor="nvidia", devices=tuple(DEVICES), driver="570.86"),)
        self.latest: Sequence[Snapshot] = ()
        self.interval: float | None = None

    @property
    def readings(self) -> Mapping[str, Reading]:
        return {reading.uuid: reading for snapshot in self.latest for reading in snapshot.readings}

    def want(self, *, interval: float) -> None:
        self.interval = interval

    def say(self, *readings: Reading, age: float = 0.0) -> None:
        snapshot = Snapshot(inventory=self.inventories[0], readings=readings, at=time.monotonic() - age)
        self.latest = (snapshot,)


@pytest.fixture
def accelerators() -> Scripted:
    return Scripted()


@pytest.fixture
def usage(accelerators: Scripted) -> GpuUsage:
    return GpuUsage(DEVICES, accelerators, interval=1.0)  # type: ignore[arg-type]


def gpu(number: int, **values: Any) -> Reading:
    return Reading(uuid=f"GPU-{number}", **values)


def test_means_are_over_time_and_peaks_are_kept(usage: GpuUsage, accelerators: Scripted) -> None:
    accelerators.say(
        gpu(0, busy=100, memory=50, power=400.0, temperature=70, processes={7: 30}),
        gpu(1, busy=0, memory=5, power=100.0, temperature=30, processes={STRANGER: 5}),
    )
    usage.sample(1.0, 1.0, 1.0, [7])
    accelerators.say(
        gpu(0, busy=40, memory=20, power=200.0, temperature=60, processes={7: 10}), gpu(1, busy=0)
    )
    usage.sample(4.0, 3.0, 1.0, [7])
    first, second = (device.details for device in usage.record())
    assert (first["busy_mean"], first["busy_peak"]) == (55.0, 100.0)
    assert (first["power_mean"], first["energy"]) == (250.0, 1000.0)
    assert (first["memory_peak"], first["own_memory_peak"], first["temperature_peak"]) == (50, 30, 70)
    assert (second["busy_mean"], second["own_memory_peak"], second["energy"]) == (0.0, 0, 100.0)
    together = usage.together()
    assert together["gpu_mean"] == 0.55 and together["gpu_driver"] == "570.86"


def test_columns_of_each_device(usage: GpuUsage, accelerators: Scripted) -> None:
    accelerators.say(gpu(1, busy=7, memory=5, processes={1: 2, 2: None, STRANGER: 1, OUTSIDE: 1}))
    columns = usage.sample(1.0, 1.0, 1.0, [1, 2])
    assert columns["gpu.1.busy"] == 7 and columns["gpu.1.own_memory"] == 2 and columns["gpu.1.processes"] == 1
    assert not [name for name in columns if name.startswith("gpu.0.")], "of it nothing is known"


def test_what_is_idle_while_one_cpu_works(usage: GpuUsage, accelerators: Scripted) -> None:
    for busy, cpus in ((90, 1.0), (0, 1.0), (0, 6.0), (2, 0.0)):
        accelerators.say(gpu(0, busy=busy), gpu(1, busy=0))
        usage.sample(1.0, 1.0, cpus, [])
    together = usage.together()
    assert (together["gpu_idle"], together["gpu_idle_cpu_bound"]) == (0.75, 0.25)


def test_old_readings_and_lost_devices_say_nothing(usage: GpuUsage, accelerators: Scripted) -> None:
    accelerators.say(gpu(0, busy=90), gpu(1, busy=90), age=60.0)
    assert usage.sample(1.0, 1.0, 1.0, []) == {}
    assert not usage.known and usage.together()["gpu_mean"] is None
    accelerators.say(gpu(0, busy=90), gpu(1, problem="GPU is lost"))
    usage.sample(2.0, 1.0, 1.0, [])
    lost = usage.record()[1].details
    assert (lost["busy_mean"], lost["problem"], lost["lost_at"]) == (None, "GPU is lost", 2.0)
    usage.sample(3.0, 1.0, 1.0, [])
    assert usage.record()[1].details["lost_at"] == 2.0
    assert usage.record()[0].details["lost_at"] is None
    assert usage.known


def test_errors_are_counted_from_the_start_and_events_are_kept(
    usage: GpuUsage, accelerators: Scripted
) -> None:
    for at, (ecc, events) in enumerate([(5, 0), (5, 1), (7, 1)], start=1):
        accelerators.say(gpu(0, ecc_errors=ecc, xid=79, xid_events=events))
        columns = usage.sample(float(at), 1.0, 1.0, [])
    assert columns["gpu.0.ecc_errors"] == 2
    details = usage.record()[0].details
    assert (details["ecc_errors"], details["xids"]) == (2, [{"at": 2.0, "code": 79}])


def test_a_table_of_the_devices(usage: GpuUsage) -> None:
    assert usage.table()[1] == {
        "uuid": "GPU-1",
        "vendor": "nvidia",
        "index": 1,
        "model": "H100",
        "memory": 80,
        "driver": "570.86",
    }


@pytest.mark.parametrize(
    ("busy", "idle"),
    [([0, 4.9], True), ([0, 5], False), ([None, 90], False), ([None, 0], None), ([None], None), ([], None)],
)
def test_idle_is_only_what_is_known_to_be(busy: list[float | None], idle: bool | None) -> None:
    assert all_idle(busy) is idle


@pytest.mark.parametrize(
    ("processes", "own"),
    [
        ({}, None),
        ({STRANGER: 10}, 0),
        ({1: 4, 2: 6}, 10),
        ({1: 4, 2: None}, 4),
        ({1: None}, None),
        ({1: 4, OUTSIDE: 6}, 4),
        pytest.param({OUTSIDE: 6}, None, id="ids of another namespace"),
        pytest.param({STRANGER: 4, OUTSIDE: 6}, None, id="some of another namespace"),
    ],
)
def test_own_memory(processes: Mapping[int, int | None], own: int | None) -> None:
    assert own_memory(gpu(0, processes=processes), [1, 2]) == own


def test_idleness_is_of_one_stretch_and_what_is_unknown_does_not_count() -> None:
    idleness = Idleness()
    for idle in (True, True, None, True, False, True, None):
        idleness.add(10.0, 1.0, idle)
    assert idleness.seconds == 10.0


@pytest.mark.parametrize(
    ("cpus", "advice"),
    [(0.0, "waits for something else"), (1.0, "more workers"), (6.0, "The CPUs prepare the data")],
)
def test_an_idle_step_is_told_what_its_cpus_did_and_what_to_do(cpus: float, advice: str) -> None:
    idleness = Idleness()
    idleness.add(600.0, cpus, True)
    failure = idleness.failure(2, 600)
    assert failure.reason == "hang"
    assert failure.message == (
        f"all of its 2 GPUs were idle for 600 s, while its processes used {cpus:.2g} CPUs "
        "(gpu_idle_timeout is 600 s)"
    )
    assert advice in str(failure.fix) and "gpu_idle_timeout" in str(failure.fix)
