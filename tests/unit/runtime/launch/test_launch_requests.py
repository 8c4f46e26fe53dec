"""What a launcher is asked for beside what the step asks for: merged, or refused as a contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from upshift import ResourceSettings, SettingsError
from upshift.model.spec.hardware import Device, Hardware, Launch
from upshift.runtime.launch.merging import LaunchRequest
from upshift.runtime.launch.ranks import placed, remarks, world_size

STEP = "train.py:9 (@step)"


def _merged(
    asked: LaunchRequest | None = None, /, *, request: dict[str, Any] | None = None, **said: Any
) -> tuple[Launch, ResourceSettings, dict[str, str]]:
    settings = ResourceSettings(**(request or {}))
    asked = asked or LaunchRequest(**{"launcher": "accelerate", "where": "train.py:8", **said})
    return asked.beside(settings, dict.fromkeys(settings.explicit(), STEP))


def _refused(**said: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        _merged(**said)
    return str(caught.value)


def test_multi_gpu_asks_for_as_many_gpus_as_there_are_processes() -> None:
    launch, request, origins = _merged(processes=4, devices=True)
    assert (launch.processes, launch.devices, launch.per_node) == (4, True, None)
    assert request == ResourceSettings(gpu_count=4)
    assert origins == dict.fromkeys(("gpu_count", "launch"), "train.py:8 (@run_with_accelerate)")


def test_processes_are_counted_over_all_nodes() -> None:
    launch, request, _ = _merged(processes=8, devices=True, nodes=2, request={"memory": "1GB"})
    assert request == ResourceSettings(gpu_count=4, num_nodes=2, memory="1GB")
    assert launch.processes == 8
    assert _merged(processes=8, devices=True, request={"num_nodes": 2})[1].gpu_count == 4


def test_torchrun_counts_them_on_each_node() -> None:
    launch, request, _ = _merged(launcher="torchrun", per_node=4, nodes=2)
    assert (launch.processes, launch.devices) == (8, False)
    assert request == ResourceSettings(num_nodes=2)


def test_of_a_range_of_nodes_each_has_as_many_processes_whatever_their_number() -> None:
    launch, request, _ = _merged(launcher="torchrun", per_node=2, nodes=(2, 4))
    assert (launch.processes, request) == (8, ResourceSettings(num_nodes=(2, 4)))
    assert world_size(placed(launch, request, Hardware(nodes=3)), Hardware(nodes=3)) == 6
    launch, request, _ = _merged(processes=8, request={"num_nodes": (2, 4)})
    assert world_size(placed(launch, request, Hardware(nodes=2)), Hardware(nodes=2)) == 4
    launch, request, _ = _merged(devices=True, request={"num_nodes": (1, 2), "gpu_count": 4})
    assert (launch.processes, Hardware.asked(request, launch).details) == (8, {"least_nodes": 1})
    said = _refused(processes=6, request={"num_nodes": (2, 4)})
    assert "num_processes=6 contradicts num_nodes=(2, 4)" in said
    assert "as many processes as the others, and there are so many on the most nodes" in said
    assert "multiple of 4" in said
    assert "nnodes=(2, 4) contradicts num_nodes=2" in _refused(
        launcher="torchrun", nodes=(2, 4), request={"num_nodes": 2}
    )


def test_a_request_says_how_many_where_the_launcher_does_not() -> None:
    launch, request, _ = _merged(devices=True, request={"gpu_count": 4, "num_nodes": 2})
    assert (launch.processes, launch.devices) == (8, True)
    assert request == ResourceSettings(gpu_count=4, num_nodes=2)
    assert _merged(request={"gpu_count": 2})[0].processes == 2
    assert _merged()[0].processes == 1
    assert _merged(request={"num_nodes": 2})[0].processes == 2


def test_a_kind_without_a_count_is_asked_for_as_often_as_there_are_processes() -> None:
    _, request, _ = _merged(processes=4, request={"accelerator": "H100"})
    assert (request.gpu_count, request.accelerator) == (4, "H100")
    _, request, _ = _merged(processes=4, request={"accelerator": ("H100", "A100")})
    assert [one.count for one in request.alternatives] == [4, 4]


def test_on_cpus_nothing_is_asked_for() -> None:
    launch, request, _ = _merged(processes=4, devices=False, request={"cpu_count": 2})
    assert (launch.processes, launch.devices) == (4, False)
    assert request == ResourceSettings(cpu_count=2)


def test_processes_without_a_word_of_gpus_have_none_of_their_own() -> None:
    assert not _merged(processes=4)[0].devices
    assert _merged(processes=4, request={"gpu_count": 4})[0].devices


def test_devices_of_several_cores_take_several_processes() -> None:
    launch, _, _ = _merged(launcher="torchrun", per_node=32, request={"accelerator": "Trainium:16"})
    assert (launch.processes, launch.devices) == (32, False)
    for devices in (True, None):
        asked = {"processes": 8, "devices": devices}
        launch, request, _ = _merged(**asked, request={"accelerator": "Trainium"})
        assert (launch.processes, launch.devices) == (8, False)
        assert request == ResourceSettings(accelerator="Trainium")


@pytest.mark.parametrize("devices", [True, None])
def test_more_processes_than_gpus_are_a_contradiction(devices: bool | None) -> None:
    text = _refused(processes=4, devices=devices, request={"gpu_count": 2})
    assert text == (
        "@run_with_accelerate: num_processes=4 contradicts gpu_count=2\n"
        "  where: train.py:8 (@run_with_accelerate) and train.py:9 (@step)\n"
        "  why:   Each process needs its own GPU.\n"
        "  fix:   Ask for 4 GPUs, or start 2 processes."
    )


def test_more_processes_on_a_node_than_it_has_gpus_are_one_too() -> None:
    text = _refused(launcher="torchrun", per_node=4, nodes=2, request={"gpu_count": 2})
    assert "nproc_per_node=4 contradicts gpu_count=2 on each of 2 nodes" in text
    assert "Ask for 4 GPUs, or start 2 processes on each." in text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"processes": 2, "devices": True, "request": {"gpu_count": 0}}, "contradicts gpu_count=0"),
        ({"processes": 3, "nodes": 2}, "num_processes=3 contradicts num_nodes=2"),
        ({"nodes": 2, "request": {"num_nodes": 4}}, "num_machines=2 contradicts num_nodes=4"),
        (
            {
                "launcher": "torchrun",
                "per_node": 2,
                "one_node": "standalone=True",
                "request": {"num_nodes": 2},
            },
            "standalone=True contradicts num_nodes=2",
        ),
        ({"devices": True}, "asks for one process per GPU, and the number of GPUs is not set"),
        (
            {"processes": 4, "request": {"accelerator": ("H100:4", "A100:8")}},
            "contradicts accelerator=['H100:4', 'A100:8']",
        ),
        (
            {"devices": True, "request": {"accelerator": ("H100:2", "Trainium:2")}},
            "@run_with_accelerate contradicts accelerator=['H100:2', 'Trainium:2']",
        ),
        (
            {
                "launcher": "torchrun",
                "devices": True,
                "devices_by": 'nproc_per_node="auto"',
                "request": {"accelerator": "Trainium:16"},
            },
            "nproc_per_node=\"auto\" contradicts accelerator=['Trainium:16']",
        ),
    ],
)
def test_contradictions_are_refused(said: dict[str, Any], text: str) -> None:
    assert text in _refused(**said)


def _granted(gpus: int | None, nodes: int = 1) -> Hardware:
    device = Device(vendor="nvidia", model="H100")
    return Hardware(gpus=None if gpus is None else (device,) * gpus, nodes=nodes)


@pytest.mark.parametrize(
    ("processes", "devices", "request_", "granted", "expected"),
    [
        (4, True, {"gpu_count": 4}, _granted(4), 4),
        (4, True, {"gpu_count": 4}, _granted(2), 2),
        (4, True, {"gpu_count": 4}, _granted(0), 1),
        (2, True, {"gpu_count": 4}, _granted(4), 2),
        (8, True, {"gpu_count": 4, "num_nodes": 2}, _granted(4, nodes=2), 8),
        (8, True, {"gpu_count": 4, "num_nodes": 2}, _granted(8), 4),
        (4, False, {}, _granted(None), 4),
        (4, False, {"gpu_count": 1}, _granted(0), 4),
        (4, False, {"num_nodes": 2}, _granted(None, nodes=2), 4),
        (4, False, {"num_nodes": 2}, _granted(None), 4),
    ],
)
def test_as_many_start_as_the_hardware_allows(
    processes: int, devices: bool, request_: dict[str, Any], granted: Hardware, expected: int
) -> None:
    launch = Launch(launcher="accelerate", processes=processes, devices=devices)
    found = placed(launch, ResourceSettings(**request_), granted)
    assert world_size(found, granted) == expected


def test_gpus_that_no_process_uses_are_worth_a_word() -> None:
    def said(launch: Launch, granted: Hardware) -> list[str]:
        return remarks(placed(launch, ResourceSettings(), granted), granted)

    two = Launch(launcher="accelerate", processes=2, devices=True)
    assert said(two, _granted(4)) == ["2 processes use 2 of the 4 GPUs: each has one of its own"]
    assert said(two, _granted(2)) == said(two, _granted(0)) == []
    on_cpus = Launch(launcher="accelerate", processes=2)
    assert said(on_cpus, _granted(1)) == ["its processes are to use CPUs: the GPU will be idle"]
    assert said(on_cpus, _granted(None)) == []


@pytest.mark.parametrize(
    ("processes", "granted", "machine", "expected"),
    [
        (4, 1, 8, ["4 processes share the 1 CPU that the step is granted"]),
        (4, 3.5, None, ["4 processes share the 3.5 CPUs that the step is granted"]),
        (1000, None, 2, ["1,000 processes share the 2 CPUs that there are"]),
        (4, 4, 2, []),
        (2, None, 2, []),
        (1, 0.5, 2, []),
        (1000, None, None, []),
    ],
)
def test_more_processes_than_cpus_are_worth_a_word(
    processes: int, granted: float | None, machine: float | None, expected: list[str]
) -> None:
    launch = Launch(launcher="torchrun", processes=processes, per_node=processes)
    there_is = None if machine is None else Hardware(cpu_count=machine)
    assert remarks(launch, Hardware(cpu_count=granted), there_is) == expected


def test_one_process_that_nobody_asked_for_is_worth_a_word() -> None:
    launch = Launch(launcher="torchrun", counted=False, per_node=1)
    said = "one process, because the number is not set: nproc_per_node=…"
    assert remarks(launch, Hardware()) == [said]
    assert remarks(launch, Hardware(nodes=2)) == []
    assert remarks(Launch(launcher="torchrun", per_node=1), Hardware()) == []
