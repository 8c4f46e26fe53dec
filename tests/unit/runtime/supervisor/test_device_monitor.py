"""A supervisor's agents: started when somebody wants to know, and again when they fail."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nvml
import trees
from nvml import FakeNvml, Gpu
from upshift.runtime import proc
from upshift.runtime.accelerators import agent
from upshift.runtime.accelerators.agent import Agent, AgentFailed
from upshift.runtime.loop import Loop
from upshift.runtime.supervisor import device_monitor
from upshift.runtime.supervisor.device_monitor import DeviceMonitor

Make = Callable[..., FakeNvml]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def watching(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceMonitor]:
    """A watcher without patience, so that no test waits for long."""
    monkeypatch.setattr(device_monitor, "PAUSES", (0.01, 0.02))
    one = DeviceMonitor(loop)
    yield one
    one.close()
    while one.pids():
        loop.turn()


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNvml], FakeNvml]:
    """This process is on that machine."""

    def be_on(machine: FakeNvml) -> FakeNvml:
        for name, value in machine.environment().items():
            monkeypatch.setenv(name, value)
        return machine

    return be_on


def turn_until(loop: Loop, done: Callable[[], object]) -> None:
    while not done():
        loop.turn()


def test_a_machine_without_devices_costs_no_process(
    watching: DeviceMonitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSHIFT_DEVICE_ROOT", str(tmp_path))
    known: list[bool] = []
    watching.want(lambda: known.append(watching.known))
    assert known == [True]
    assert (watching.inventories, watching.pids()) == ((), set())


def test_nothing_is_started_before_somebody_wants_to_know(
    watching: DeviceMonitor, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    on(fake_nvml(1))
    assert (watching.known, watching.pids(), watching.latest) == (False, set(), ())


def test_what_there_is_is_told_once_and_then_readings_come(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    machine = on(fake_nvml([Gpu(busy=5)]))
    told: list[int] = []
    watching.want(lambda: told.append(len(watching.inventories[0].devices)), interval=0.01)
    turn_until(loop, lambda: told)
    turn_until(loop, lambda: watching.readings)
    machine.gpus[0].busy = 55
    machine.write()
    turn_until(loop, lambda: watching.readings[machine.uuids[0]].busy == 55)
    assert told == [1]


def test_each_vendor_has_an_agent_of_its_own(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    machine = on(fake_nvml(1, crash="nvmlInitWithFlags"))
    trees.amd(machine.root, 2)
    watching.want()
    turn_until(loop, lambda: watching.known)
    nvidia, amd = watching.inventories
    assert (nvidia.vendor, nvidia.devices) == ("nvidia", ())
    assert "killed by SIGSEGV" in nvidia.problems[0]
    assert (amd.vendor, len(amd.devices)) == ("amd", 2)


def test_an_agent_that_crashes_is_started_again(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    machine = on(fake_nvml(1))
    watching.want(interval=0.01)
    turn_until(loop, lambda: watching.readings)
    before = watching.pids()
    machine.crash = "nvmlDeviceGetTemperature"
    machine.write()
    turn_until(loop, lambda: watching.inventories[0].problems)
    assert (len(watching.inventories[0].devices), watching.readings) == (1, {})
    machine.crash = None
    machine.write()
    turn_until(loop, lambda: watching.readings)
    assert watching.inventories[0].problems == ()
    assert watching.pids().isdisjoint(before)


def test_an_agent_that_hangs_is_killed_and_started_again(
    watching: DeviceMonitor,
    loop: Loop,
    fake_nvml: Make,
    on: Callable[[FakeNvml], FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_monitor, "LEAST", 0.3)
    machine = on(fake_nvml(1))
    watching.want(interval=0.01)
    turn_until(loop, lambda: watching.readings)
    machine.hang = "nvmlDeviceGetClockInfo"
    machine.write()
    turn_until(loop, lambda: watching.inventories[0].problems)
    assert watching.inventories[0].problems == (
        "nvidia: its library could not be asked: it has said nothing for 0.3 s",
    )
    machine.hang = None
    machine.write()
    turn_until(loop, lambda: watching.readings)


def test_a_driver_that_never_answers_is_unknown_after_the_deadline(
    watching: DeviceMonitor,
    loop: Loop,
    fake_nvml: Make,
    on: Callable[[FakeNvml], FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_monitor, "DEADLINE", 0.3)
    on(fake_nvml(1, hang="nvmlInitWithFlags"))
    known: list[bool] = []
    watching.want(lambda: known.append(True))
    turn_until(loop, lambda: known)
    assert "has said nothing for 0.3 s" in watching.inventories[0].problems[0]


@pytest.mark.parametrize(
    "said",
    [
        "nonsense",
        "[1, 2]",
        '{"inventory": 7}',
        '{"inventory": {"devices": [3]}}',
        '{"at": 1, "readings": []}',
        '{"inventory": {"vendor": "nvidia"}}\n{"at": "soon", "readings": []}',
        '{"inventory": {"vendor": "nvidia"}}\n{"at": 1, "readings": [{"uuid": "x", "processes": {"a": 1}}]}',
    ],
)
def test_an_agent_that_talks_nonsense_is_not_believed(
    watching: DeviceMonitor,
    loop: Loop,
    fake_nvml: Make,
    on: Callable[[FakeNvml], FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    on(fake_nvml(1))
    program = "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode() + b'\\n'); sys.stdin.read()"
    monkeypatch.setattr(agent, "command", lambda *words: [sys.executable, "-c", program, words[3], said])
    watching.want()
    turn_until(loop, lambda: any(i.problems for i in watching.inventories))
    assert "what it says is invalid" in watching.inventories[0].problems[0]


SILENT = [sys.executable, "-c", "import os, sys; os.close(int(sys.argv[1])); sys.stdin.read()"]


def test_nobody_waits_for_an_agent_that_has_closed_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "command", lambda *words: [*SILENT, words[3]])
    one = Agent("nvidia", interval=1)
    assert select.select([one.descriptor], [], [], 60)[0]
    waits: list[float] = []
    with monkeypatch.context() as patch:
        wait = select.select
        patch.setattr(select, "select", lambda r, w, x, seconds: waits.append(seconds) or wait(r, w, x, 0))
        with pytest.raises(AgentFailed, match="it stopped talking"):
            one.receive()
    assert not any(waits)
    one.close()
    assert "SIGKILL" in one.end(60)


def test_an_agent_that_stops_talking_and_does_not_end_is_given_up(
    watching: DeviceMonitor,
    loop: Loop,
    fake_nvml: Make,
    on: Callable[[FakeNvml], FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(fake_nvml(1))
    monkeypatch.setattr(device_monitor, "ENDING", 0.01)
    monkeypatch.setattr(agent, "command", lambda *words: [*SILENT, words[3]])
    watching.want()
    turn_until(loop, lambda: watching.inventories)
    assert "it stopped talking" in watching.inventories[0].problems[0]


def test_an_agent_that_cannot_be_started_is_unknown(
    watching: DeviceMonitor,
    loop: Loop,
    fake_nvml: Make,
    on: Callable[[FakeNvml], FakeNvml],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(fake_nvml(1))
    monkeypatch.setattr(agent, "command", lambda *words: ["/nowhere/python"])
    before = set(os.listdir("/proc/self/fd"))
    watching.want()
    assert "no process could be started: No such file or directory" in watching.inventories[0].problems[0]
    assert set(os.listdir("/proc/self/fd")) <= before


def test_who_wants_it_more_often_gets_it(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    on(fake_nvml(1))
    watching.want(interval=1000)
    turn_until(loop, lambda: watching.readings)
    at = watching.latest[0].at
    watching.want(interval=0.01)
    turn_until(loop, lambda: watching.latest[0].at > at)


def test_those_who_listen_hear_of_each_snapshot_until_they_have_enough(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    on(fake_nvml(1))
    heard: list[float] = []
    stop = watching.listen(lambda: heard.append(time.monotonic()))
    watching.want(interval=0.01)
    turn_until(loop, lambda: len(heard) > 2)
    stop()
    at, count = watching.latest[0].at, len(heard)
    turn_until(loop, lambda: watching.latest[0].at > at)
    assert len(heard) == count


def test_a_lost_gpu_is_none_of_the_inventory_and_still_read(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    machine = on(fake_nvml(2))
    watching.want(interval=0.01)
    turn_until(loop, lambda: watching.readings)
    machine.gpus[1].error = nvml.GPU_IS_LOST
    machine.write()
    turn_until(loop, lambda: len(watching.inventories[0].devices) == 1)
    assert "has fallen off the bus" in str(watching.readings[machine.uuids[1]].problem)


def test_a_gpu_that_comes_back_is_in_the_inventory_again(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    machine = on(fake_nvml(2))
    watching.want(interval=0.01)
    turn_until(loop, lambda: watching.readings)
    machine.gpus[1].error = nvml.GPU_IS_LOST
    machine.write()
    turn_until(loop, lambda: len(watching.inventories[0].devices) == 1)
    machine.gpus[1].error = None
    machine.write()
    turn_until(loop, lambda: len(watching.inventories[0].devices) == 2)


def test_whoever_was_not_there_at_first_is_found_by_asking_anew(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    machine = on(fake_nvml([Gpu(), Gpu(error=nvml.GPU_IS_LOST)]))
    watching.want()
    turn_until(loop, lambda: watching.readings)
    assert len(watching.inventories[0].devices) == 1
    machine.gpus[1].error = None
    machine.write()
    before = watching.pids()
    watching.renew()
    assert [snapshot.read for snapshot in watching.latest] == [False]
    assert set(watching.readings) == {machine.uuids[0]}  # of before
    turn_until(loop, lambda: watching.latest[0].read)
    assert len(watching.inventories[0].devices) == 2
    turn_until(loop, lambda: watching.pids().isdisjoint(before))


def test_the_agent_dies_with_who_started_it(fake_nvml: Make) -> None:
    program = """
import sys
from upshift.runtime.accelerators.agent import Agent
one = Agent("nvidia", interval=0.01)
print(one.pid, flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, **fake_nvml(1).environment()}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as supervisor:
        assert supervisor.stdout is not None
        descriptor = os.pidfd_open(int(supervisor.stdout.readline()))
        supervisor.send_signal(signal.SIGKILL)
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)


def test_the_agent_ends_when_nobody_asks_it_any_more(
    fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    on(fake_nvml(1))
    one = Agent("nvidia", interval=1000)
    os.set_blocking(one.descriptor, True)
    while one.latest is None or not one.latest.readings:
        one.receive()
    os.close(one._asking)
    assert os.waitstatus_to_exitcode(one.reap(30) or 0) == 0
    os.close(one.descriptor)


def test_the_agent_is_no_child_that_has_the_users_modules(
    watching: DeviceMonitor, loop: Loop, fake_nvml: Make, on: Callable[[FakeNvml], FakeNvml]
) -> None:
    on(fake_nvml(1))
    watching.want()
    turn_until(loop, lambda: watching.known)
    (pid,) = watching.pids()
    assert "--accelerator" in (proc.read(f"/proc/{pid}/cmdline") or "").split("\0")
