"""What is said of several processes that have done the same work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from upshift.model.spec import Code, EntryPoint, Rank, TaskId, TaskSpec
from upshift.runtime.step.context import current
from upshift.runtime.step.ranks import Misplaced, confirm_world, group_size, remarks

FIRST = Rank(world_size=2)
TASK = TaskSpec(
    task=TaskId(run="run", step="train"),
    attempt=1,
    pipeline="training",
    entry=EntryPoint(module="steps", qualname="train"),
    code=Code(project="/project", paths=(".",)),
    store="/store",
)


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the main one of two, and none of the packages by which they could meet is imported."""
    for name in ("torch.distributed", "accelerate.state", "jax", "tensorflow", "mpi4py", "dask", "ray"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    current.enter(TASK, FIRST)
    yield
    current.leave()


def test_processes_that_never_met_are_remarked_on_once() -> None:
    (said,) = remarks(FIRST)
    assert said.startswith("the 2 processes never formed a group")
    assert "Accelerator()" in said and "upshift.current.rank" in said
    assert not list(remarks(Rank(rank=1, world_size=2)))


@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_a_step_that_asks_which_process_it_is_shares_its_work_out(name: str) -> None:
    assert getattr(current, name) in (0, 2)
    assert not list(remarks(FIRST))
    current.enter(TASK, FIRST)  # the next task of this process has not asked
    assert list(remarks(FIRST))


def grouped(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: size
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)  # type: ignore[arg-type]


def test_a_group_of_all_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped(monkeypatch, 2)
    assert not list(remarks(FIRST))
    assert group_size() == 2


def test_a_group_of_some_is_remarked_on_whatever_the_step_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped(monkeypatch, 1)
    assert current.rank == 0
    (said,) = remarks(FIRST)
    assert said.startswith("of the 2 processes rank 0 is in a group of 1")
    assert group_size() == 1


def test_a_group_of_one_for_each_is_refused_unless_the_step_shares_its_work_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grouped(monkeypatch, 1)
    with pytest.raises(Misplaced, match="each of the 2 processes has worked in a group of its own"):
        confirm_world(FIRST)
    assert current.rank == 0
    confirm_world(FIRST)


@pytest.mark.parametrize("size", [1, 3])
def test_a_world_that_accelerate_counts_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    grouped(monkeypatch, 2)
    state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state={"num_processes": size}))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)  # type: ignore[arg-type]
    with pytest.raises(Misplaced, match=f"Accelerate counts {size} process"):
        confirm_world(FIRST)


def test_one_process_has_nobody_to_meet() -> None:
    assert not list(remarks(Rank()))
