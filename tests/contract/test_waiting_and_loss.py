"""The contract where things go badly: no room, a job that can never start, a supervisor that dies."""

from __future__ import annotations

import pytest
from contract_kit import BACKENDS, BUCKETS, SAY_NEVER, Watched

from upshift.backends.base import Ended, Started, Waiting
from upshift.engine.schedule import Demand, Room
from upshift.engine.targets import fence, give_up, judge
from upshift.errors import RequestRefused
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry
from upshift.runtime.storage import artifacts


def test_without_room_a_job_waits_with_the_reason_and_begins_once_there_is_some(watched: Watched) -> None:
    ground, capacity = watched.ground, watched.backend.capacity()
    if capacity is not None and capacity.hardware is not None:
        _in_the_engines_queue(watched)
        return
    inputs, scarce = {"a": 1, "b": 2}, ground.means.scarce
    later, given_up = (ground.job("add", inputs=inputs, **scarce) for _ in range(2))
    with ground.means.full(watched):
        handle, withdrawn = watched.submit(later), watched.submit(given_up)
        for one in (handle, withdrawn):
            assert watched.until(Waiting, one).why.startswith(ground.means.waits)
        # As the engine does with what has waited for as long as its target allows.
        assert give_up(ground.store, given_up.spec.task, 1)
        watched.cancel(withdrawn, grace=0)
        watched.until(Ended, withdrawn)
        assert {type(event) for event in watched.of(handle)} == {Waiting}
    watched.until(Ended, handle)
    result = ground.store.read_result(later.spec.task, 1)
    assert result is not None and result.status == "completed"
    assert Started in [type(event) for event in watched.of(handle)]
    assert Started not in [type(event) for event in watched.of(withdrawn)]
    assert ground.store.read_result(given_up.spec.task, 1) is None


def _in_the_engines_queue(watched: Watched) -> None:
    """The engine has jobs wait by what the backend says of its room, and of what each gets."""
    ground, capacity = watched.ground, watched.backend.capacity()
    assert capacity is not None and capacity.hardware is not None
    room, request = Room(capacity), {"cpu_count": capacity.hardware.cpu_count}
    granted = watched.asked(**request).granted
    assert granted is not None
    whole = Demand.of(granted)
    fields = {"request": ResourceSettings(**request), "granted": granted}
    assert room.fits(whole)
    taken, running = room.take(whole), watched.started(ground.job("wait", **fields))
    assert not room.fits(Demand())
    watched.cancel(running, grace=0)
    watched.until(Ended, running)
    room.give_back(taken)
    assert room.fits(whole)
    result = watched.run(ground.job("add", inputs={"a": 1, "b": 2}, **fields))
    assert result is not None and result.status == "completed"


def test_a_request_that_no_machine_can_meet_does_not_wait_and_is_told_with_the_reason(
    watched: Watched,
) -> None:
    with watched.ground.means.too_much():
        if watched.ground.name == "skypilot":  # whose optimizer says yes or no
            with pytest.raises(RequestRefused, match="no cloud has a machine of 10000 CPUs"):
                watched.asked(cpu_count=10_000)
            return
        offer = watched.asked(cpu_count=10_000)
    (short,) = offer.shortfalls
    assert short.field == "cpu_count" and "10000" in short.asked
    assert short.got not in short.asked and short.got in short.why


@pytest.mark.parametrize("ground", SAY_NEVER, indirect=True)
def test_a_job_that_can_never_start_ends_with_the_schedulers_reason(watched: Watched) -> None:
    means = watched.ground.means
    with means.hopeless() as fields:
        job = watched.ground.job("add", inputs={"a": 1, "b": 2}, **fields)
        handle = watched.submit(job)
        ended = watched.until(Ended, handle)
    assert ended.reason == "infrastructure"
    assert means.never in ended.message
    assert not any(isinstance(event, Started) for event in watched.of(handle))
    assert watched.ground.store.read_result(job.spec.task, 1) is None


@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_a_supervisor_that_is_killed_is_infrastructure_and_the_task_can_be_tried_again(
    watched: Watched,
) -> None:
    ground, means = watched.ground, watched.ground.means
    job = ground.job("say_supervisor")
    task, handle = job.spec.task, watched.submit(job)
    means.lose(watched, handle, job)
    ended = watched.until(Ended, handle)
    verdict = judge(task, 1, ground.store.read_result(task, 1), ended)
    assert verdict.status == "failed" and verdict.failure is not None
    assert verdict.failure.reason == "infrastructure", verdict.failure
    assert means.dies in verdict.failure.message, verdict.failure
    assert Retry(times=1).again(verdict.failure.reason, 1)
    fence(ground.store, task, 1)
    result = watched.run(ground.again(job, "listed"))
    assert result is not None and (result.attempt, result.status) == (2, "completed")
    assert artifacts.load(result.outputs["output"], ground.store) == [1, 2, 3]
    assert [type(event) for event in watched.of(handle)].count(Ended) == 1
    first = ground.store.read_result(task, 1)
    assert first is None or first.status == "failed"
