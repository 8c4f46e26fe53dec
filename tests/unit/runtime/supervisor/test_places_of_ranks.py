"""What one of several processes makes sure of before any code of the user's runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from upshift.model.spec import Code, Device, EntryPoint, Hardware, Launch, Rank, TaskId, TaskSpec
from upshift.runtime.launch.ranks import GROUP, own_device, variables
from upshift.runtime.step.ranks import Misplaced, enter, strayed, world_size

GPUS = tuple(Device(vendor="nvidia", uuid=f"GPU-{number}") for number in range(2))
SECOND = Rank(rank=1, world_size=2, local_rank=1, local_world_size=2, port=29411)
LAUNCH = Launch(launcher="torchrun", processes=2, per_node=2)
SPEC = TaskSpec(
    task=TaskId(run="run", step="train"),
    attempt=1,
    pipeline="training",
    entry=EntryPoint(module="steps", qualname="train"),
    code=Code(project="/project", paths=(".",)),
    store="/store",
    launch=LAUNCH,
)


def with_gpus(*gpus: Device, **launch: Any) -> TaskSpec:
    return attrs.evolve(
        SPEC, granted=Hardware(gpus=gpus), launch=attrs.evolve(LAUNCH, devices=True, **launch)
    )


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """That of the second rank, in which anything may change."""
    before = dict(os.environ)
    for name in GROUP:
        os.environ.pop(name, None)
    os.environ.update(variables(LAUNCH, SECOND, task="train"))
    yield
    os.environ.clear()
    os.environ.update(before)


def test_each_rank_has_the_device_that_its_local_rank_names() -> None:
    assert own_device(with_gpus(*GPUS), SECOND) == GPUS[1]
    assert own_device(with_gpus(*GPUS), attrs.evolve(SECOND, rank=0, local_rank=0)) == GPUS[0]


def test_devices_of_another_node_are_not_a_ranks_own() -> None:
    far = tuple(attrs.evolve(gpu, uuid=f"far-{gpu.uuid}", node=1) for gpu in GPUS)
    third = attrs.evolve(SECOND, rank=3, world_size=4, node=1, nodes=2)
    found = own_device(with_gpus(*GPUS, *far), third)
    assert found is not None
    assert found.uuid == "far-GPU-1"


def test_ranks_on_cpus_have_no_device() -> None:
    assert own_device(attrs.evolve(SPEC, granted=Hardware(gpus=GPUS)), SECOND) is None
    assert own_device(with_gpus(), SECOND) is None


def test_a_rank_that_finds_its_world_goes_on() -> None:
    enter(SPEC, LAUNCH, SECOND)
    assert world_size(LAUNCH, SECOND) == 2


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "8"), ("RANK", "0")])
def test_another_world_is_refused(name: str, value: str) -> None:
    os.environ[name] = value
    with pytest.raises(Misplaced, match=f"and finds '{value}'") as refused:
        enter(SPEC, LAUNCH, SECOND)
    assert f"Do not set {name}" in str(refused.value.fix)


def test_more_ranks_than_devices_are_refused() -> None:
    spec = with_gpus(GPUS[0])
    assert spec.launch is not None
    with pytest.raises(Misplaced, match=r"2 processes of .* are to have a device each, and its node has 1"):
        enter(spec, spec.launch, SECOND)


def test_devices_of_many_cores_take_many_ranks() -> None:
    spec = with_gpus(Device(vendor="neuron", uuid="neuron0"))
    assert spec.launch is not None
    enter(spec, spec.launch, SECOND)


def test_one_process_is_not_taken_for_one_of_a_group_that_started_all_of_this() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "3", "8"
    launch, only = Launch(launcher="accelerate", processes=1, arguments={"cpu": True}), Rank()
    enter(attrs.evolve(SPEC, launch=launch), launch, only)
    assert not set(GROUP) & set(os.environ)
    assert world_size(launch, only) == 1
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "no"


class Cuda:
    """``torch.cuda`` of a process that has allocated so many bytes on each device."""

    def __init__(self, *allocated: int, initialized: bool = True) -> None:
        self._allocated = allocated
        self._initialized = initialized

    def is_initialized(self) -> bool:
        return self._initialized

    def device_count(self) -> int:
        return len(self._allocated)

    def max_memory_allocated(self, device: int) -> int:
        return self._allocated[device]


def torch_with(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_a_rank_that_worked_on_the_device_of_another_is_remarked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch_with(Cuda(1 << 20, 0), monkeypatch)
    (said,) = strayed(with_gpus(*GPUS), SECOND)
    assert said.startswith("rank 1 has worked on GPU 0 and never on its own, GPU 1")
    assert "torch.cuda.set_device" in said


@pytest.mark.parametrize(
    "cuda", [Cuda(0, 1 << 20), Cuda(512, 1 << 20), Cuda(0, 0), Cuda(1, 0, initialized=False)]
)
def test_a_rank_that_worked_on_its_own_device_or_on_none_is_not(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_with(cuda, monkeypatch)
    assert not list(strayed(with_gpus(*GPUS), SECOND))


def test_where_no_devices_were_asked_for_none_is_anybody_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_with(Cuda(1 << 20, 0), monkeypatch)
    assert not list(strayed(SPEC, SECOND))
