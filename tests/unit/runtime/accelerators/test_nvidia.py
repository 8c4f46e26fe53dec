"""NVIDIA's devices, through the true nvidia-ml-py and a stand-in for the driver's library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nvml
from nvml import GIB, FakeNvml, Gpu, Instance
from upshift.runtime.accelerators import agent
from upshift.runtime.accelerators.agent import Agent, Snapshot, discover
from upshift.runtime.accelerators.nvidia import Nvidia
from upshift.runtime.accelerators.vendor import Inventory, Reading
from upshift.runtime.accelerators.vendors import present

Make = Callable[..., FakeNvml]
Find = Callable[..., Inventory]

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.fixture(autouse=True)
def nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Find:
    """What this process discovers on a machine like that."""

    def find(machine: FakeNvml, *, timeout: float = 60, **variables: str) -> Inventory:
        for name, value in {**machine.environment(), **variables}.items():
            monkeypatch.setenv(name, value)
        (inventory,) = discover(timeout, fresh=True)
        return inventory

    return find


class Watch:
    """An agent, and what it says next."""

    def __init__(self, machine: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in machine.environment().items():
            monkeypatch.setenv(name, value)
        self.agent = Agent("nvidia", interval=0.01)
        os.set_blocking(self.agent.descriptor, True)

    def until(self, wanted: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot, from now on, that is like this."""
        while True:
            snapshot = self.agent.receive()
            if snapshot is not None and snapshot.readings and wanted(snapshot):
                return snapshot

    def next(self) -> Snapshot:
        """A snapshot that was taken from now on."""
        import time

        now = time.monotonic()
        return self.until(lambda snapshot: snapshot.at > now)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FakeNvml], Watch]]:
    started: list[Watch] = []

    def start(machine: FakeNvml) -> Watch:
        started.append(Watch(machine, monkeypatch))
        return started[-1]

    yield start
    for one in started:
        one.agent.close()
        one.agent.reap(10)


# -- finding --------------------------------------------------------------------------------------


def test_gpus_are_found_with_all_that_nvml_knows(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(), Gpu(model="NVIDIA L4", memory=24 * GIB, capability="8.9")])
    inventory = found(machine)
    assert (inventory.driver, inventory.runtime, inventory.problems) == ("570.86.15", "12.8", ())
    first, second = inventory.devices
    assert (first.vendor, first.model, first.kind) == ("nvidia", "NVIDIA H100 80GB HBM3", "H100-SXM")
    assert (first.memory, first.compute_capability, first.partition) == (80 * GIB, "9.0", None)
    assert (first.uuid, first.index) == (machine.uuids[0], 0)
    assert (second.uuid, second.index, second.kind) == (machine.uuids[1], 1, "L4")


def test_the_numa_node_of_a_gpu_is_that_of_its_address(fake_nvml: Make, found: Find) -> None:
    gpus = [
        Gpu(pci="00000000:3B:00.0", numa_node=0),
        Gpu(pci="00000000:AF:00.0", numa_node=1, instances=[Instance()]),
        Gpu(pci="00000000:D8:00.0", numa_node=-1),
        Gpu(pci=None),
    ]
    assert [device.numa_node for device in found(fake_nvml(gpus)).devices] == [0, 1, None, None]


def test_pairs_that_nvlink_joins_are_known(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(links=[1]), Gpu(links=[0]), Gpu(links=[3]), Gpu(links=[2])])
    a, b, c, d = machine.uuids
    assert found(machine).links == ((a, b), (c, d))


def test_all_of_eight_gpus_behind_a_switch_are_joined(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(links=range(8)) for _ in range(8)])
    inventory = found(machine)
    assert len(inventory.devices) == 8
    assert len(inventory.links) == 28


def test_what_the_driver_does_not_tell_is_unknown(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(model=None, memory=None, capability=None)], driver=None, cuda=None)
    inventory = found(machine)
    (device,) = inventory.devices
    assert (device.model, device.memory, device.compute_capability) == (None, None, None)
    assert (inventory.driver, inventory.runtime) == (None, None)


def test_a_known_gpu_without_memory_of_its_own_has_that_of_its_kind(fake_nvml: Make, found: Find) -> None:
    (device,) = found(fake_nvml([Gpu(model="NVIDIA GB10", memory=None, capability="12.1")])).devices
    assert (device.kind, device.memory) == ("GB10", 128 * 10**9)


def test_instances_of_a_gpu_are_handed_out_in_its_place(fake_nvml: Make, found: Find) -> None:
    cut = Gpu(model=A100, instances=[Instance(profile="3g.40gb", memory=40 * GIB), Instance()])
    machine = fake_nvml([Gpu(model=A100), cut])
    whole, large, small = found(machine).devices
    assert (whole.partition, whole.parent) == (None, None)
    assert (large.partition, large.memory, large.index) == ("3g.40gb", 40 * GIB, 1)
    assert large.uuid is not None
    assert large.uuid.startswith("MIG-")
    assert (large.parent, small.parent) == (machine.uuids[1], machine.uuids[1])
    assert (small.partition, small.kind) == ("1g.10gb", "A100-SXM4-80GB")


def test_a_gpu_that_is_to_be_cut_and_is_not_is_a_problem(fake_nvml: Make, found: Find) -> None:
    inventory = found(fake_nvml([Gpu(instances=[])]))
    assert inventory.devices == ()
    assert "has MIG mode enabled and no instance" in inventory.problems[0]
    assert "nvidia-smi -i 0 -mig 0" in inventory.problems[0]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (nvml.DRIVER_NOT_LOADED, "modprobe nvidia"),
        (nvml.VERSION_MISMATCH, "Reboot the machine"),
        (nvml.NO_PERMISSION, "permissions of /dev/nvidia*"),
        (nvml.UNKNOWN, "start the container again"),
        (777, "NVML: Error 777"),
    ],
)
def test_a_driver_that_does_not_work_says_why_and_what_helps(
    fake_nvml: Make, found: Find, code: int, remedy: str
) -> None:
    inventory = found(fake_nvml(2, errors={"nvmlInitWithFlags": code}))
    assert inventory.devices == ()
    assert remedy in inventory.problems[0]


def test_without_the_drivers_library_the_problem_says_so(
    fake_nvml: Make, found: Find, tmp_path: Path
) -> None:
    inventory = found(fake_nvml(1), LD_LIBRARY_PATH=str(tmp_path))
    assert "libnvidia-ml.so.1 is not there" in inventory.problems[0]


def test_a_gpu_that_is_lost_is_left_out_and_named(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(), Gpu(error=nvml.GPU_IS_LOST), Gpu()])
    inventory = found(machine)
    assert [device.index for device in inventory.devices] == [0, 2]
    assert inventory.problems[0].startswith("GPU 1 is left out: NVML: GPU is lost")


def test_gpus_of_the_host_whose_files_are_not_in_the_container_do_not_count(
    fake_nvml: Make, found: Find
) -> None:
    machine = fake_nvml(3)
    (machine.root / "dev/nvidia1").unlink()
    inventory = found(machine)
    assert [device.index for device in inventory.devices] == [0, 2]
    assert inventory.problems == (
        f"GPU 1 ({machine.uuids[1]}) cannot be used: /dev/nvidia1 is not there: it was not passed into this "
        "container",
    )


@pytest.mark.parametrize("count", [4_000_000_000, 100_000])
def test_a_count_that_makes_no_sense_is_not_believed(fake_nvml: Make, found: Find, count: int) -> None:
    inventory = found(fake_nvml(1, count=count))
    assert inventory.devices == ()
    assert inventory.problems == (f"NVML counts {count} GPUs, which is not believed",)


def test_values_that_make_no_sense_are_unknown(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(memory=2**60, capability="0.77"), Gpu(uuid="nonsense"), Gpu()], cuda="99999.0")
    inventory = found(machine)
    assert [device.index for device in inventory.devices] == [0, 2]
    assert (inventory.devices[0].compute_capability, inventory.runtime) == ("9.0", None)
    assert "is invalid: UUID 'nonsense'" in inventory.problems[0]


def test_two_gpus_with_one_uuid_are_not_two(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-1")])
    inventory = found(machine)
    assert len(inventory.devices) == 1
    assert "is another's too" in inventory.problems[0]


# -- a library that misbehaves --------------------------------------------------------------------


def test_a_library_that_hangs_is_unknown_after_the_deadline(fake_nvml: Make, found: Find) -> None:
    inventory = found(fake_nvml(1, hang="nvmlDeviceGetCount_v2"), timeout=0.5)
    assert inventory == Inventory(
        vendor="nvidia",
        problems=("nvidia: its library could not be asked: it did not answer within 0.5 s",),
        unknown=True,
    )


def test_who_waits_for_a_slow_driver_is_told(
    fake_nvml: Make, found: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(agent, "SLOW", 0.2)
    found(fake_nvml(1, hang="nvmlDeviceGetCount_v2"), timeout=0.5)
    discover(0.5, fresh=True, slow=said.append)
    assert said == ["asking the NVIDIA driver …"]


def test_a_library_that_crashes_is_unknown(fake_nvml: Make, found: Find) -> None:
    inventory = found(fake_nvml(1, crash="nvmlDeviceGetUUID"))
    assert inventory.problems == ("nvidia: its library could not be asked: it was killed by SIGSEGV",)


# -- what this process may see --------------------------------------------------------------------

MACHINE = [
    Gpu(uuid="GPU-aaaa1111-0000-4000-8000-000000000000", model=A100),
    Gpu(uuid="GPU-aaaa2222-0000-4000-8000-000000000000", model=A100),
    Gpu(
        uuid="GPU-bbbb0000-0000-4000-8000-000000000000",
        model=A100,
        instances=[Instance(uuid="MIG-one"), Instance(uuid="MIG-two")],
    ),
]


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        ("1", ["GPU-aaaa2222"]),
        ("1,0", ["GPU-aaaa1111", "GPU-aaaa2222"]),
        ("GPU-aaaa2", ["GPU-aaaa2222"]),
        ("GPU-aaaa", []),  # two have it
        ("MIG-two", ["MIG-two"]),
        ("2", ["MIG-one", "MIG-two"]),
        ("GPU-bbbb", ["MIG-one", "MIG-two"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["GPU-aaaa1111"]),
        ("0,7,1", ["GPU-aaaa1111"]),
        ("0,0", []),
        ("NoDevFiles", []),
    ],
)
def test_gpus_are_what_cuda_would_see_of_them(
    fake_nvml: Make, found: Find, selection: str, left: list[str]
) -> None:
    inventory = found(fake_nvml(MACHINE), CUDA_VISIBLE_DEVICES=selection)
    assert [str(device.uuid).split("-0000-")[0] for device in inventory.devices] == left
    assert len(inventory.hidden) == 4 - len(left)
    assert inventory.hidden_by == (f"CUDA_VISIBLE_DEVICES={selection!r}" if len(left) < 4 else None)


def test_a_selection_that_names_no_device_is_a_problem(fake_nvml: Make, found: Find) -> None:
    inventory = found(fake_nvml(2), CUDA_VISIBLE_DEVICES="0,7")
    assert inventory.problems == ("CUDA_VISIBLE_DEVICES='0,7' names '7', which is not a device here",)


def test_numbers_of_gpus_of_several_kinds_may_mean_others(fake_nvml: Make, found: Find) -> None:
    machine = fake_nvml([Gpu(model="NVIDIA L4"), Gpu()])
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found(machine, CUDA_VISIBLE_DEVICES="1").problems[0]
    inventory = found(machine, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert inventory.problems == ()


def test_a_process_sees_the_gpus_that_it_was_given(fake_nvml: Make, found: Find) -> None:
    devices = found(fake_nvml(MACHINE)).devices
    assert Nvidia().environment((devices[1], devices[3])) == {
        "CUDA_VISIBLE_DEVICES": "GPU-aaaa2222-0000-4000-8000-000000000000,MIG-two",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert Nvidia().environment(()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_machine_without_device_files_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_DEVICE_ROOT", str(tmp_path))
    assert present() == ()
    assert discover() == ()


# -- reading --------------------------------------------------------------------------------------


def test_gpus_are_read(fake_nvml: Make, watch: Callable[[FakeNvml], Watch]) -> None:
    busy = Gpu(busy=97, used=30 * GIB, power=512.5, temperature=71, processes={4242: 29 * GIB, 4343: None})
    machine = fake_nvml([busy, Gpu(busy=None, power=None, temperature=None, ecc=None, clock=None)])
    first, second = watch(machine).next().readings
    assert (first.uuid, first.busy, first.memory) == (machine.uuids[0], 97, 30 * GIB)
    assert (first.power, first.temperature, first.clock, first.memory_clock) == (512.5, 71, 1980, 2619)
    assert first.processes == {4242: 29 * GIB, 4343: None}
    assert (second.busy, second.power, second.temperature, second.ecc_errors) == (None,) * 4
    assert (second.problem, second.memory) == (None, 0)


def test_bytes_a_second_are_made_of_counters(fake_nvml: Make, watch: Callable[[FakeNvml], Watch]) -> None:
    rates = {"pcie_sent": 10**9, "pcie_received": 2 * 10**9, "nvlink_sent": 3 * 10**11}
    machine = fake_nvml([Gpu(**rates)])
    watching = watch(machine)
    watching.next()
    (reading,) = watching.next().readings
    assert reading.nvlink_received is None
    for name, rate in rates.items():  # the clocks of both sides differ by what a call takes
        assert rate / 4 < getattr(reading, name) < rate * 4


def test_an_instance_tells_what_is_its_own_and_what_its_gpu_has(
    fake_nvml: Make, watch: Callable[[FakeNvml], Watch]
) -> None:
    instances = [Instance(used=GIB, busy=88, processes={4242: GIB}), Instance(busy=0)]
    machine = fake_nvml([Gpu(instances=instances, busy=50, power=400, temperature=66)])
    first, second = watch(machine).next().readings
    assert (first.memory, first.processes, first.busy) == (GIB, {4242: GIB}, 88)
    assert (first.temperature, first.power) == (66, None)
    assert (second.memory, second.busy) == (0, 0)


def test_before_hopper_an_instance_does_not_tell_how_busy_it_is(
    fake_nvml: Make, watch: Callable[[FakeNvml], Watch]
) -> None:
    machine = fake_nvml([Gpu(model=A100, instances=[Instance()])])
    (reading,) = watch(machine).next().readings
    assert (reading.busy, reading.memory, reading.problem) == (None, 0, None)


def test_values_of_a_reading_that_make_no_sense_are_unknown(
    fake_nvml: Make, watch: Callable[[FakeNvml], Watch]
) -> None:
    machine = fake_nvml(
        [Gpu(busy=4294967295, used=2**63, temperature=70_000, power=10**6, processes={7: 2**62})]
    )
    (reading,) = watch(machine).next().readings
    assert (reading.busy, reading.memory, reading.temperature, reading.power) == (None,) * 4
    assert reading.processes == {7: None}


def test_a_gpu_that_is_lost_meanwhile_has_a_problem_and_the_other_goes_on(
    fake_nvml: Make, watch: Callable[[FakeNvml], Watch]
) -> None:
    machine = fake_nvml(2)
    watching = watch(machine)
    watching.next()
    machine.gpus[1].error = nvml.GPU_IS_LOST
    machine.gpus[0].busy = 12
    machine.write()
    snapshot = watching.until(lambda s: len(s.inventory.devices) == 1)
    assert "GPU 1 is left out" in snapshot.inventory.problems[0]
    assert snapshot.readings[0].busy == 12
    assert "has fallen off the bus" in str(snapshot.readings[1].problem)
    assert "has fallen off the bus" in str(watching.next().readings[1].problem)


def test_an_ecc_error_is_counted(fake_nvml: Make, watch: Callable[[FakeNvml], Watch]) -> None:
    machine = fake_nvml(1)
    watching = watch(machine)
    assert watching.next().readings[0].ecc_errors == 0
    machine.gpus[0].ecc = 2
    machine.write()
    assert watching.until(lambda s: s.readings[0].ecc_errors != 0).readings[0].ecc_errors == 2


def test_an_xid_event_is_told_and_counted(fake_nvml: Make, watch: Callable[[FakeNvml], Watch]) -> None:
    machine = fake_nvml([Gpu(xid=[13]), Gpu()])  # that one was before anybody watched
    watching = watch(machine)
    assert [reading.xid for reading in watching.next().readings] == [None, None]
    machine.gpus[1].xid.append(63)
    machine.write()
    told = watching.until(lambda s: any(reading.xid for reading in s.readings))
    assert [(reading.xid, reading.xid_events) for reading in told.readings] == [(None, 0), (63, 1)]
    machine.gpus[1].xid.append(94)
    machine.write()
    told = watching.until(lambda s: s.readings[1].xid_events == 2)
    assert told.readings[1].xid == 94


def test_the_event_of_a_gpu_that_is_lost_is_told(fake_nvml: Make, watch: Callable[[FakeNvml], Watch]) -> None:
    machine = fake_nvml(1)
    watching = watch(machine)
    watching.next()
    machine.gpus[0].xid.append(79)
    machine.gpus[0].error = nvml.GPU_IS_LOST
    machine.write()
    (reading,) = watching.until(lambda s: s.inventory.devices == ()).readings
    assert (reading.xid, reading.xid_events) == (79, 1)
    assert "fallen off the bus" in str(reading.problem)


def test_an_event_of_a_gpu_is_one_of_its_instances(
    fake_nvml: Make, watch: Callable[[FakeNvml], Watch]
) -> None:
    machine = fake_nvml([Gpu(instances=[Instance(), Instance()])])
    watching = watch(machine)
    watching.next()
    machine.gpus[0].xid.append(94)
    machine.write()
    told = watching.until(lambda s: any(reading.xid for reading in s.readings))
    assert [reading.xid for reading in told.readings] == [94, 94]


def test_a_call_that_fails_now_and_then_is_no_problem(
    fake_nvml: Make, watch: Callable[[FakeNvml], Watch]
) -> None:
    machine = fake_nvml([Gpu(errors={"nvmlDeviceGetPowerUsage": nvml.UNKNOWN})])
    (reading,) = watch(machine).next().readings
    assert (reading.power, reading.problem, reading.temperature) == (None, None, 40)


def test_a_device_that_was_never_listed_has_a_problem(
    fake_nvml: Make, found: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = found(fake_nvml(1)).devices
    assert Nvidia().read(Path("/"), [device]) == ()  # nothing was discovered here
    assert Reading(uuid="GPU-x", processes={"7": 1}).processes == {7: 1}  # type: ignore[dict-item]
