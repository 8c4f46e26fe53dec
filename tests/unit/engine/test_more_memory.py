"""A task that ran out of memory may have more of it the next time."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import attrs
import pytest
from engine_kit import Bench

from upshift.backends.base import Capabilities, Offer
from upshift.backends.fake import Fail, FakeCluster
from upshift.config import DockerSettings
from upshift.engine.offers import GrantPlan
from upshift.engine.replanning import with_more_memory
from upshift.engine.schedule import Demand
from upshift.engine.targets import OpenTarget
from upshift.errors import RunFailed
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry
from upshift.model.spec import Device, Hardware, Launch
from upshift.model.spec.hardware import Shortfall

GB = 1_000_000_000


def one() -> int:
    return 1


def graph(bench: Bench, *, memory: int | None = None, times: int = 3, factor: float = 2):  # type: ignore[no-untyped-def]
    step = bench.step(
        one,
        request=ResourceSettings(memory=memory, cpu_count=1),
        retry=Retry(times=times, memory_factor=factor),
    )
    return bench.graph({"one": (step, {})})


def out_of_memory(bench: Bench, attempts: int, *, reached: int | None) -> None:
    for number in range(1, attempts + 1):
        bench.outcomes["one", number] = Fail("out-of-memory", "too much", memory=reached)


def asked(run) -> list[int | None]:  # type: ignore[no-untyped-def]
    return [attempt.asked.memory for attempt in run["one"].tasks[0].attempts]


def said(bench: Bench) -> list[str | None]:
    return [change.retry_with for change in bench.watcher.changes if change.retry_in is not None]


def test_each_attempt_asks_for_more_and_is_granted_it(bench: Bench) -> None:
    out_of_memory(bench, 2, reached=2 * GB)
    run = bench.run(graph(bench, memory=2 * GB, factor=1.5))
    assert asked(run) == [2 * GB, 3 * GB, int(4.5 * GB)]
    last = run["one"].tasks[0].attempts[-1]
    assert last.granted is not None and last.granted.memory == int(4.5 * GB)
    assert last.asked is not None and last.asked.cpu_count == 1
    assert said(bench) == ["3 GB of memory", "4.5 GB of memory"]


def test_it_is_at_least_what_the_attempt_had_reached(bench: Bench) -> None:
    out_of_memory(bench, 1, reached=7 * GB)
    assert asked(bench.run(graph(bench, memory=2 * GB))) == [2 * GB, 7 * GB]


def test_a_step_that_asked_for_nothing_asks_for_more_than_it_had(bench: Bench) -> None:
    out_of_memory(bench, 1, reached=3 * GB)
    assert asked(bench.run(graph(bench))) == [None, 6 * GB]


def test_where_there_is_less_it_gets_all_there_is_and_that_is_no_shortfall(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, capacity=Hardware(cpu_count=4, memory=5 * GB))
    out_of_memory(bench, 2, reached=3 * GB)
    run = bench.run(graph(bench, memory=3 * GB), strict=True)
    assert asked(run) == [3 * GB, 5 * GB, 5 * GB]
    assert said(bench) == [
        "5 GB of memory, not 6 GB: the cluster has 5000000000",
        "no more memory than it had: the cluster has 5000000000",
    ]
    assert not any(job.spec.degraded for job in bench.cluster.submitted)


def test_it_takes_up_the_room_that_it_asks_for(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, instant=False, capacity=Hardware(cpu_count=4, memory=5 * GB))
    out_of_memory(bench, 1, reached=2 * GB)
    run = bench.run(graph(bench, memory=2 * GB))
    assert asked(run) == [2 * GB, 4 * GB]


DISK = Shortfall(field="disk", asked="9 GB of disk", got="4 GB", why="4 GB are free in /scratch")
L4 = Device(vendor="nvidia", model="NVIDIA L4")
A10 = Device(vendor="nvidia", model="NVIDIA A10")


def plan(bench: Bench, second: Offer, *, strict: bool = False, **before: Any) -> GrantPlan:
    """Of an attempt that was granted 2 GB and is short of disk; it is offered something else now."""
    plain = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    bench.cluster = FakeCluster(bench.script, offer=lambda ask: second, capabilities=plain)
    place = OpenTarget(
        bench.configuration.target(None),
        store=bench.store.address,
        inbox=SimpleQueue(),
        open_backend=bench.cluster.open,
    )
    granted = Hardware(memory=2 * GB)
    return attrs.evolve(
        GrantPlan(place=place, granted=granted, demand=Demand.of(granted), strict=strict, shortfalls=(DISK,)),
        **before,
    )


def test_what_would_do_instead_of_the_devices_granted_is_known_as_before(bench: Bench) -> None:
    offer = Offer(granted=Hardware(memory=4 * GB, gpus=(L4,)), alternatives=((A10,),))
    raised, _ = with_more_memory(plan(bench, offer), bench.step(one), reached=2 * GB, factor=2, project="")
    assert raised.demand == Demand.of(Hardware(memory=4 * GB, gpus=(L4,)), [[A10]])
    assert len(raised.demand.devices) == 2


def test_what_it_lacks_is_what_it_is_offered_now(bench: Bench) -> None:
    definition = bench.step(one, docker=DockerSettings(parent_image="python:3.11"))
    offer = Offer(granted=Hardware(memory=4 * GB))
    raised, said = with_more_memory(plan(bench, offer), definition, reached=2 * GB, factor=2, project="")
    assert [shortfall.field for shortfall in raised.shortfalls] == ["image"]  # there is room on the disk now
    memory = Shortfall(field="memory", asked="8 GB", got="4 GB", why="there is no more")
    offer = attrs.evolve(offer, shortfalls=(memory, DISK))
    raised, said = with_more_memory(plan(bench, offer), definition, reached=2 * GB, factor=4, project="")
    assert [shortfall.field for shortfall in raised.shortfalls] == ["disk", "image"]
    assert raised.degraded
    assert "disk" not in said


def test_what_it_lacked_nothing_of_before_is_said(bench: Bench) -> None:
    before = plan(bench, Offer(granted=Hardware(memory=4 * GB), shortfalls=(DISK,)), shortfalls=())
    _, said = with_more_memory(before, bench.step(one), reached=2 * GB, factor=2, project="")
    assert said == "4 GB of memory; asked 9 GB of disk, gets 4 GB: 4 GB are free in /scratch"


def test_strictly_nothing_is_given_up_for_more_memory(bench: Bench) -> None:
    before = plan(bench, Offer(granted=Hardware(memory=4 * GB), shortfalls=(DISK,)), strict=True)
    after, said = with_more_memory(before, bench.step(one), reached=2 * GB, factor=2, project="")
    assert after is before
    assert said == ("no more memory than it had: asked 9 GB of disk, gets 4 GB: 4 GB are free in /scratch")


@pytest.mark.parametrize(
    "failure",
    [
        Fail("out-of-memory", "the GPU's memory ran out"),
        Fail("timeout", "too slow"),
        Fail("infrastructure", "gone"),
    ],
)
def test_after_any_other_failure_it_asks_for_the_same(bench: Bench, failure: Fail) -> None:
    bench.outcomes["one", 1] = failure
    assert asked(bench.run(graph(bench, memory=2 * GB))) == [2 * GB, 2 * GB]
    assert said(bench) == [None]


def test_without_a_factor_it_asks_for_the_same(bench: Bench) -> None:
    out_of_memory(bench, 3, reached=2 * GB)
    with pytest.raises(RunFailed):
        bench.run(graph(bench, memory=2 * GB, times=2, factor=1))
    assert [job.spec.request.memory for job in bench.cluster.submitted] == [2 * GB] * 3


def test_a_step_of_one_process_has_one_node_the_next_time_too(bench: Bench) -> None:
    before = plan(bench, Offer(granted=Hardware(memory=4 * GB, nodes=2)))
    raised, _ = with_more_memory(before, bench.step(one), reached=2 * GB, factor=2, project="")
    assert raised.granted.nodes == 1
    assert [shortfall.field for shortfall in raised.shortfalls] == ["num_nodes"]


def test_it_has_as_many_processes_as_what_it_is_offered_now_allows(bench: Bench) -> None:
    launch = Launch(launcher="torchrun", processes=4, devices=True)
    definition = bench.step(one, launch=launch, request=ResourceSettings(gpu_count=4))
    before = plan(
        bench,
        Offer(granted=Hardware(memory=4 * GB, gpus=(L4, L4))),
        launch=attrs.evolve(launch, per_node=4),
        granted=Hardware(memory=2 * GB, gpus=(L4,) * 4, processes=4),
        shortfalls=(),
    )
    raised, said = with_more_memory(before, definition, reached=2 * GB, factor=2, project="")
    assert (raised.granted.memory, raised.granted.processes) == (4 * GB, 2)
    assert raised.launch == attrs.evolve(launch, per_node=2)
    assert "asked 4 processes, gets 2: one for each GPU that it gets" in said
