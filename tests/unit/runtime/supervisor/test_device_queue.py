"""A task that waits for devices: what it is told, again and again, and what becomes of lost ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

import nvml
from nvml import FakeNvml, Gpu
from upshift.model.settings.resources import ResourceSettings
from upshift.model.spec import Code, Device, EntryPoint, Failure, Hardware, TaskId, TaskSpec
from upshift.model.spec.hardware import SCHEDULER, SUPERVISOR, enforced
from upshift.runtime.accelerators import locks
from upshift.runtime.accelerators.files import LOCKS
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor import device_queue as devices
from upshift.runtime.supervisor.device_monitor import DeviceMonitor
from upshift.runtime.supervisor.device_pool import Grant
from upshift.runtime.supervisor.device_queue import DeviceQueue

GPU = Device(vendor="nvidia", model="NVIDIA H100 80GB HBM3")
BOTH = TaskSpec(
    task=TaskId(run="r", step="both"),
    attempt=1,
    pipeline="p",
    entry=EntryPoint(module="m", qualname="f"),
    code=Code(project="/"),
    store="/",
    request=ResourceSettings(gpu_count=2),
    granted=Hardware(gpus=(GPU, GPU), details=enforced(SUPERVISOR)),
)


class Asked:
    """Asks for the devices of a task on a machine with two GPUs, in a supervisor of its own."""

    def __init__(self, machine: FakeNvml) -> None:
        self.machine = machine
        self.said: list[str] = []
        self.grant: Grant | None = None
        self.failure: Failure | None = None
        self._loop = Loop()
        self.accelerators = DeviceMonitor(self._loop)
        self._devices = DeviceQueue(self._loop, lambda: self.accelerators)

    def ask(self, spec: TaskSpec = BOTH) -> None:
        self.grant = self.failure = None
        self._devices.ask(spec, ready=self._ready, tell=self.said.append, refuse=self._refuse)

    def cancel(self, spec: TaskSpec) -> None:
        self._devices.cancel(spec)

    def until(self, done: Callable[[], object]) -> None:
        while not done():
            self._loop.turn()

    def over(self) -> bool:
        return self.grant is not None or self.failure is not None

    def close(self) -> None:
        self._devices.forget()
        self.accelerators.close()
        self.until(lambda: not self.accelerators.pids())

    def _ready(self, grant: Grant | None) -> None:
        self.grant = grant

    def _refuse(self, failure: Failure) -> None:
        self.failure = failure


@pytest.fixture
def asked(
    fake_nvml: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Asked]:
    machine = fake_nvml([Gpu(error=nvml.GPU_IS_LOST), Gpu()])
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    monkeypatch.setattr(devices, "QUIET", 0.0)
    monkeypatch.setattr(devices, "REPEAT", 0.01)
    monkeypatch.setattr(devices, "ASK_AGAIN", (0.01,))
    one = Asked(machine)
    yield one
    one.close()


def test_a_lost_device_that_comes_back_is_granted_by_a_driver_asked_anew(asked: Asked) -> None:
    asked.ask()
    asked.until(lambda: any("GPU 0 is left out" in words for words in asked.said))
    asked.machine.gpus[0].error = None
    asked.machine.write()
    asked.until(asked.over)
    assert asked.grant is not None
    assert (len(asked.grant.devices or ()), asked.grant.less) == (2, False)
    asked.grant.give_back()


def test_what_is_left_is_gone_on_with_after_a_while_and_by_the_next_task_at_once(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "LOST", 0.5)
    asked.ask()
    asked.until(asked.over)
    assert asked.grant is not None and asked.grant.less
    assert asked.said[-1].startswith("asked 2 × GPU, gets 1 × NVIDIA H100 80GB HBM3: this machine has 1 ×")
    asked.grant.give_back()
    monkeypatch.setattr(devices, "ASK_AGAIN", (3600.0,))
    asked.ask()
    asked.until(asked.over)
    assert asked.grant is not None and asked.grant.less
    asked.grant.give_back()


def test_a_strict_task_fails_instead(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LOST", 0.1)
    asked.ask(attrs.evolve(BOTH, strict=True))
    asked.until(asked.over)
    assert asked.failure is not None
    assert asked.failure.reason == "hardware"
    assert "what is left is 1 × NVIDIA H100 80GB HBM3" in asked.failure.message


def test_the_reason_is_said_again_now_and_then(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    granted = Hardware(gpus=(GPU,), details=enforced(SUPERVISOR))
    held = locks.hold([Device(vendor="nvidia", uuid=asked.machine.uuids[1])])
    assert held is not None
    asked.ask(attrs.evolve(BOTH, request=ResourceSettings(gpu_count=1), granted=granted))
    asked.until(lambda: asked.said and "held by another run" in asked.said[-1])
    (reason,) = (words for words in asked.said if "held" in words)
    monkeypatch.setattr(devices, "SAID_AGAIN", (0.001, 1800.0))
    asked.until(lambda: asked.said[-1] == f"after 0.001 s it still {reason}")
    held.give_back()
    asked.until(asked.over)
    assert asked.grant is not None
    asked.grant.give_back()


@pytest.mark.parametrize(("number", "seconds"), [(0, 60), (4, 3600), (5, 7200), (6, 10_800)])
def test_after_an_hour_it_is_said_each_hour(number: int, seconds: float) -> None:
    assert devices._said_again(number) == seconds


def handed_out(gpus: tuple[Device, ...] | None, **request: int) -> TaskSpec:
    granted = Hardware(gpus=gpus, details=enforced(SCHEDULER))
    return attrs.evolve(BOTH, request=ResourceSettings(**request), granted=granted)


def test_what_a_scheduler_has_handed_out_is_looked_for_and_recorded_as_it_is(asked: Asked) -> None:
    asked.machine.gpus[0].error = None
    asked.machine.write()
    asked.ask(handed_out((Device(), Device()), gpu_count=2))
    asked.until(asked.over)
    assert asked.grant is not None and asked.grant.devices is not None
    assert [device.model for device in asked.grant.devices] == [GPU.model] * 2
    assert all(device.uuid for device in asked.grant.devices)
    assert not asked.grant.environment  # the scheduler has said already what is to be seen
    assert all(locks.free(device) for device in asked.grant.devices)


def test_a_step_does_not_run_with_less_than_its_scheduler_has_granted(asked: Asked) -> None:
    asked.ask(handed_out((Device(), Device()), gpu_count=2))
    asked.until(asked.over)
    assert asked.failure is not None and asked.failure.reason == "hardware"
    assert "the scheduler has granted 2 GPUs on " in asked.failure.message
    assert ", and 1 can be seen there" in asked.failure.message


def test_what_a_scheduler_gives_that_nobody_asked_for_is_recorded(asked: Asked) -> None:
    asked.ask(handed_out(None))
    asked.until(asked.over)
    assert asked.grant is not None and asked.grant.devices is not None
    assert [device.index for device in asked.grant.devices] == [1]  # the other one is lost


def test_who_is_cancelled_while_that_is_looked_for_hears_of_nothing_more(asked: Asked) -> None:
    spec = handed_out((Device(), Device()), gpu_count=2)
    asked.ask(spec)
    asked.cancel(spec)
    asked.until(lambda: asked.accelerators.known)
    assert asked.grant is None
    assert asked.failure is not None and asked.failure.reason == "cancelled"
