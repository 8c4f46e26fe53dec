"""Which task starts next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift.backends.base import Capacity
from upshift.engine.schedule import PATIENCE, Demand, Devices, Queue, Room
from upshift.engine.tasks import NodeState, TaskState
from upshift.model.graph import Expansion, Node, StepDefinition
from upshift.model.spec import Device, EntryPoint, Hardware, Launch


def task(*, order: int = 0, remaining: int = 1, index: int | None = None) -> TaskState:
    nothing = Expansion(gates=frozenset(), lists={}, peers=(), static={})
    definition = StepDefinition(entry=EntryPoint(module="m", qualname="f"))
    state = NodeState(Node(name=f"n{order}", step="f"), definition, nothing, order=order, remaining=remaining)
    return TaskState(state, index)


def queue(cpus: float | None = None, memory: int | None = None, gpus: int | None = None) -> Queue:
    devices = None if gpus is None else (Device(),) * gpus
    return Queue(Room(Capacity(hardware=Hardware(cpu_count=cpus, memory=memory, gpus=devices))))


def gpus(count: int) -> tuple[Devices, ...]:
    return Demand.of(Hardware(gpus=(Device(),) * count)).devices


def gpu(model: str, count: int = 1) -> tuple[Device, ...]:
    return (Device(vendor="nvidia", model=model),) * count


def test_a_task_that_asks_for_nothing_counts_as_one_cpu() -> None:
    assert Demand.of(Hardware()) == Demand(1000, 0)
    assert Demand.of(Hardware(cpu_count=0.5, memory=7, gpus=(Device(),))) == Demand(
        500, 7, (((("", "", ""), 1),),)
    )


def test_each_process_of_a_task_that_asks_for_nothing_counts_as_one_cpu() -> None:
    assert Demand.of(Hardware(processes=4)) == Demand(4000, 0)
    assert Demand.of(Hardware(nodes=2, processes=8)) == Demand(8000, 0)
    assert Demand.of(Hardware(cpu_count=2, processes=4)) == Demand(2000, 0)


def test_what_is_granted_on_each_node_counts_for_all_of_them() -> None:
    granted = Hardware(cpu_count=2, memory=7, gpus=gpu("H100", 2), nodes=3, processes=6)
    assert Demand.of(granted) == Demand(6000, 21, (((("nvidia", "H100", ""), 6),),))


def test_tenths_of_a_cpu_add_up() -> None:
    waiting = queue(cpus=1)
    for index in range(10):
        waiting.add(task(index=index), Demand.of(Hardware(cpu_count=0.1)))
    assert sum(waiting.take() is not None for _ in range(11)) == 10


def test_the_longest_path_then_the_order_then_the_index_goes_first() -> None:
    waiting = queue()
    tasks = [
        task(order=3, remaining=9),
        task(order=0, remaining=2),
        task(order=1, remaining=2, index=0),
        task(order=1, remaining=2, index=1),
        task(order=2, remaining=1),
    ]
    for one in reversed(tasks):
        waiting.add(one, Demand())
    assert [taken[0] for taken in iter(waiting.take, None)] == tasks


@pytest.mark.parametrize(
    ("room", "demand"),
    [
        (queue(cpus=2), Demand(1500)),
        (queue(memory=10), Demand(0, 6)),
        (queue(cpus=64, gpus=2), Demand(1000, 0, gpus(2))),
        (queue(cpus=64), Demand(1000, port=29500)),
    ],
)
def test_each_kind_of_room_is_limited(room: Queue, demand: Demand) -> None:
    room.add(task(index=0), demand)
    room.add(task(index=1), demand)
    assert room.take() is not None
    assert room.take() is None
    room.room.give_back(demand)
    assert room.take() is not None


def test_a_port_is_one_tasks_on_one_machine_only() -> None:
    demand = Demand.of(Hardware(), launch=Launch(launcher="torchrun", port=29500))
    waiting = Queue(Room(None))
    for index in range(2):
        waiting.add(task(index=index), demand)
    assert None not in (waiting.take(), waiting.take())


def test_what_is_larger_than_the_machine_runs_alone() -> None:
    waiting = queue(cpus=2)
    waiting.add(task(order=0), Demand(64_000))
    waiting.add(task(order=1), Demand(1000))
    taken = waiting.take()
    assert taken is not None
    assert taken[1] == Demand(2000)
    assert waiting.take() is None


def test_tasks_that_want_different_kinds_are_not_in_each_others_way() -> None:
    waiting = Queue(Room(Capacity(hardware=Hardware(gpus=(*gpu("L4"), *gpu("H100"))))))
    for order in range(2):
        waiting.add(task(order=0, index=order), Demand.of(Hardware(gpus=gpu("L4"))))
    large = task(order=1)
    waiting.add(large, Demand.of(Hardware(gpus=gpu("H100"))))
    assert waiting.take() is not None
    second = waiting.take()
    assert second is not None
    assert second[0] is large
    assert waiting.take() is None


def test_what_is_content_with_either_kind_takes_the_one_that_is_free() -> None:
    waiting = Queue(Room(Capacity(hardware=Hardware(gpus=(*gpu("L4"), *gpu("H100"))))))
    either = Demand.of(Hardware(gpus=gpu("H100")), (gpu("L4"),))
    for order in range(3):
        waiting.add(task(order=order), either)
    takes = [waiting.take(), waiting.take()]
    assert waiting.take() is None
    assert [taken[1].devices for taken in takes if taken] == [either.devices[:1], either.devices[1:]]
    waiting.room.give_back(takes[1][1])  # type: ignore[index]
    again = waiting.take()
    assert again is not None
    assert again[1].devices == either.devices[1:]


def test_a_small_task_may_overtake_but_not_for_ever() -> None:
    waiting = queue(cpus=2)
    waiting.room.take(Demand(1000))
    large = task(order=0, remaining=5)
    waiting.add(large, Demand(2000))
    for index in range(100):
        waiting.add(task(order=1, index=index), Demand(1000))
    overtook = 0
    while (taken := waiting.take()) is not None:
        assert taken[0] is not large
        overtook += 1
        waiting.room.give_back(taken[1])
    assert overtook == PATIENCE
    waiting.room.give_back(Demand(1000))
    taken = waiting.take()
    assert taken is not None
    assert taken[0] is large


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 3), st.integers(1, 9)), max_size=60))
def test_everything_starts_some_day_and_never_more_than_there_is(demands: list[tuple[int, int, int]]) -> None:
    waiting = queue(cpus=3, gpus=2)
    for order, (cpu, count, remaining) in enumerate(demands):
        waiting.add(task(order=order, remaining=remaining), Demand(cpu, 0, gpus(count)))
    running: list[Demand] = []
    started = 0
    while len(waiting) or running:
        while (taken := waiting.take()) is not None:
            running.append(taken[1])
            started += 1
        assert sum(demand.cpu for demand in running) <= 3000
        assert sum(n for demand in running for sort in demand.devices for _, n in sort) <= 2
        waiting.room.give_back(running.pop(0))
    assert started == len(demands)


def test_jobs_are_counted_where_their_number_is_limited() -> None:
    room = Room(Capacity(jobs=2))
    room.take(Demand())
    waiting = room.take(Demand())
    assert not room.fits(Demand())
    room.give_back(waiting.host)  # it waits for devices, and is a job all the same
    assert not room.fits(Demand())
    room.take(waiting.host)
    room.give_back(waiting)
    assert room.fits(Demand())
