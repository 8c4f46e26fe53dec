"""What the engine relies on, whatever backend it talks to. A backend that passes this is a backend."""

from __future__ import annotations

import attrs
import pytest
from contract_kit import BACKENDS, BUCKETS, FENCED, KEEP_SECRETS, REAL, Ground, Watched

from upshift.backends.base import Capabilities, Ended, LogGrew, Started, Waiting
from upshift.engine.targets import judge
from upshift.errors import ConfigError
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.runtime.storage import artifacts

REQUESTS = {
    "cpu_count": 10_000,
    "gpu_count": 64,
    "memory": "900TB",
    "accelerator": "H100:8",
    "gpu_memory": "900GB",
    "gpu_vendor": "amd",
    "num_nodes": 500,
    "disk": "900TB",
    "shared_memory": "900TB",
}
"""More than any machine has, for each field."""


def test_it_says_what_it_is_and_can_do(watched: Watched) -> None:
    backend = watched.backend
    assert backend.name == watched.ground.name
    assert isinstance(backend.capabilities, Capabilities)
    assert backend.capabilities.fields <= {field.name for field in attrs.fields(ResourceSettings)}


def test_how_it_is_is_told_and_nothing_is_wrong(watched: Watched) -> None:
    found = list(watched.backend.findings())
    assert found
    assert [one for one in found if one.status == "problem" or not one.name or not one.text] == []


def test_its_capacity_is_known_or_it_queues_by_itself(watched: Watched) -> None:
    capacity = watched.backend.capacity()
    assert capacity is None or capacity.jobs is None or capacity.jobs > 0
    if capacity is not None and capacity.hardware is not None:
        assert (capacity.hardware.cpu_count or 1) > 0


def test_a_modest_request_gets_what_it_asks_for(watched: Watched) -> None:
    offer = watched.asked()
    assert offer.granted is not None
    assert offer.shortfalls == ()
    offer = watched.asked(cpu_count=1, memory="64MB")
    assert offer.granted is not None
    assert offer.granted.cpu_count == 1
    assert offer.granted.memory == 64_000_000
    assert offer.shortfalls == ()


def test_asking_for_no_gpu_is_always_granted(watched: Watched) -> None:
    offer = watched.asked(gpu_count=0)
    assert offer.granted is not None
    assert offer.granted.gpus == ()
    assert offer.shortfalls == ()


def test_every_field_of_a_request_is_there_for_the_test() -> None:
    assert set(REQUESTS) == {field.name for field in attrs.fields(ResourceSettings) if field.init}


def _queues(watched: Watched) -> bool:
    """Whether it takes any request, and lets it wait."""
    capacity = watched.backend.capacity()
    return capacity is None or capacity.hardware is None


@pytest.mark.parametrize("field", REQUESTS)
def test_nothing_that_is_asked_for_is_ignored_in_silence(watched: Watched, field: str) -> None:
    request = {field: REQUESTS[field]}
    if field in ("gpu_memory", "gpu_vendor"):
        request["gpu_count"] = 1
    offer = watched.asked(**request)
    if field in watched.backend.capabilities.fields and _queues(watched):
        assert offer.granted is not None  # it honours the field, and has no limit to go beyond
        return
    assert offer.granted is None or offer.shortfalls, f"{field} is not honoured, and nobody is told"
    for shortfall in offer.shortfalls:
        assert shortfall.asked
        assert shortfall.got
        assert shortfall.why


def test_an_option_that_means_nothing_is_refused(ground: Ground) -> None:
    ground.target = Target(name="mine", backend=ground.name, options={"partitoin": "gpu"})
    with pytest.raises(ConfigError, match="partitoin"):
        ground.open()


@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_a_job_starts_ends_and_leaves_its_result(watched: Watched) -> None:
    job = watched.ground.job("add", inputs={"a": 1, "b": 2})
    result = watched.run(job)
    assert result is not None
    assert result.status == "completed"
    assert (result.task, result.attempt, result.key) == (job.spec.task, 1, "test:1")
    assert artifacts.load(result.outputs["output"], watched.ground.store) == 3
    assert result.started <= result.ended
    assert result.node
    assert result.used is not None


def test_what_it_tells_comes_in_order_and_the_end_comes_once(watched: Watched) -> None:
    handle = watched.submit(watched.ground.job("add", inputs={"a": 1, "b": 2}))
    watched.until(Ended, handle)
    kinds = [type(event) for event in watched.of(handle)]
    while kinds[0] is Waiting:  # as a busy cluster has it
        del kinds[0]
    assert kinds[0] is Started and Waiting not in kinds
    assert kinds[-1] is Ended and kinds.count(Ended) == 1


def test_when_the_end_is_told_the_result_is_there(watched: Watched) -> None:
    for number in range(5):
        result = watched.run(watched.ground.job("add", inputs={"a": number, "b": 0}))
        assert result is not None
        assert artifacts.load(result.outputs["output"], watched.ground.store) == number


def test_several_outputs_are_saved_by_name(watched: Watched) -> None:
    result = watched.run(watched.ground.job("pair", outputs=("number", "letter")))
    assert result is not None
    assert {n: artifacts.load(a, watched.ground.store) for n, a in result.outputs.items()} == {
        "number": 1,
        "letter": "x",
    }


def test_a_step_that_raises_is_recorded_as_failed_with_its_own_words(watched: Watched) -> None:
    result = watched.run(watched.ground.job("fail"))
    assert result is not None
    assert result.status == "failed"
    assert result.failure is not None
    assert result.failure.reason == "user-error"
    assert result.failure.message == "ValueError: as it was told to"
    assert "as it was told to" in (result.failure.traceback or "")


def test_the_log_has_at_least_what_was_announced(watched: Watched) -> None:
    job = watched.ground.job("add", inputs={"a": 1, "b": 2})
    handle = watched.submit(job)
    watched.until(Ended, handle)
    log = watched.ground.store.log_path(job.spec.task, 1).read_bytes()
    assert b"adding\n" in log
    sizes = [event.size for event in watched.of(handle) if isinstance(event, LogGrew)]
    assert all(size <= len(log) for size in sizes)


@pytest.mark.parametrize("ground", [*REAL, *BUCKETS], indirect=True)
def test_what_a_step_prints_can_be_read_while_it_runs(watched: Watched) -> None:
    job = watched.ground.job("say_and_wait")
    handle = watched.submit(job)
    log = watched.ground.store.log_path(job.spec.task, 1)
    watched.until(LogGrew, handle, lambda: b"waiting\n" in log.read_bytes())
    assert not any(isinstance(event, Ended) for event in watched.of(handle))
    watched.cancel(handle, grace=5)
    watched.until(Ended, handle)


@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_values_of_100_mb_go_in_and_come_out(watched: Watched) -> None:
    data = bytes(range(250)) * 400_000
    result = watched.run(watched.ground.job("backwards", inputs={"data": data}))
    assert result is not None
    assert result.status == "completed"
    assert artifacts.load(result.outputs["output"], watched.ground.store) == data[::-1]


@pytest.mark.parametrize("ground", KEEP_SECRETS, indirect=True)
def test_a_secret_reaches_the_step_and_no_file_of_the_attempt(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "s3cr3t-of-the-contract")
    job = watched.ground.job("say_secret", secrets={"TOKEN": "env:TOKEN_OF_TEST"})
    result = watched.run(job)
    assert result is not None
    assert artifacts.load(result.outputs["output"], watched.ground.store) == "s3cr3t-of-the-contract"
    log = watched.ground.store.log_path(job.spec.task, 1)
    assert b"it is ***" in log.read_bytes()
    files = [path for path in log.parent.rglob("*") if path.is_file()]
    assert [path for path in files if b"s3cr3t-of-the-contract" in path.read_bytes()] == []


def test_two_engines_at_once_hear_of_their_own_jobs(ground: Ground) -> None:
    first, second = ground.open(), ground.open()
    jobs = [ground.job("add", inputs={"a": n, "b": 1}) for n in range(2)]
    handles = [one.submit(job) for one, job in zip((first, second), jobs, strict=True)]
    first.until(Ended, handles[0])
    second.until(Ended, handles[1])
    assert first.of(handles[1]) == second.of(handles[0]) == []


def test_jobs_run_beside_each_other(watched: Watched) -> None:
    jobs = [watched.ground.job("add", inputs={"a": n, "b": n}) for n in range(4)]
    handles = [str(handle) for handle in watched.backend.submit(jobs)]
    assert len(set(handles)) == 4
    for handle in handles:
        watched.until(Ended, handle)
    results = [watched.ground.store.read_result(job.spec.task, 1) for job in jobs]
    values = [artifacts.load(r.outputs["output"], watched.ground.store) for r in results if r]
    assert values == [0, 2, 4, 6]


@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_a_cancelled_job_ends_and_does_not_complete(watched: Watched) -> None:
    job = watched.ground.job("wait")
    handle = watched.started(job)
    watched.cancel(handle, grace=5)
    watched.until(Ended, handle)
    result = watched.ground.store.read_result(job.spec.task, 1)
    assert result is not None
    assert result.status == "cancelled"
    assert watched.attach(handle, job) is not None


def test_a_job_may_be_cancelled_before_it_has_started(watched: Watched) -> None:
    job = watched.ground.job("wait")
    handle = watched.submit(job)
    watched.cancel(handle, grace=600)
    watched.until(Ended, handle)
    result = watched.ground.store.read_result(job.spec.task, 1)
    assert result is None or result.status == "cancelled"


def test_without_grace_a_job_ends_at_once(watched: Watched) -> None:
    handle = watched.started(watched.ground.job("wait"))
    watched.cancel(handle, grace=600)
    watched.cancel(handle, grace=0)
    watched.until(Ended, handle)


def test_cancelling_what_has_ended_does_nothing(watched: Watched) -> None:
    job = watched.ground.job("add", inputs={"a": 1, "b": 2})
    handle = watched.submit(job)
    watched.until(Ended, handle)
    watched.cancel(handle, grace=1)
    result = watched.ground.store.read_result(job.spec.task, 1)
    assert result is not None
    assert result.status == "completed"


@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_another_engine_finds_a_job_that_runs_and_hears_of_its_end(ground: Ground) -> None:
    first = ground.open()
    job = ground.job("wait")
    handle = first.started(job)
    first.backend.close()
    second = ground.open()
    assert second.attach(handle, job) is None
    second.cancel(handle, grace=5)
    second.until(Ended, handle)


@pytest.mark.parametrize("ground", [*BACKENDS, *BUCKETS], indirect=True)
def test_a_job_is_found_without_its_handle(ground: Ground) -> None:
    first = ground.open()
    job, other = ground.job("wait"), ground.job("wait")
    handle = first.started(job)
    second = ground.open()
    assert second.find(job) == handle
    assert second.find(other) is None
    assert second.attach(handle, job) is None
    second.cancel(handle, grace=5)
    second.until(Ended, handle)


def test_what_has_ended_cannot_be_attached_to(ground: Ground) -> None:
    first = ground.open()
    job = ground.job("add", inputs={"a": 1, "b": 2})
    handle = first.submit(job)
    first.until(Ended, handle)
    first.backend.close()
    second = ground.open()
    ended = second.attach(handle, job)
    assert ended is not None and ended.handle == handle
    assert second.find(job) is None


@pytest.mark.parametrize("ground", [*REAL, *BUCKETS], indirect=True)
def test_memory_beyond_what_was_granted_is_out_of_memory(watched: Watched) -> None:
    request = {"memory": "200MB"}
    offer = watched.asked(**request)
    job = watched.ground.job("fill", request=ResourceSettings(**request), granted=offer.granted)
    handle = watched.submit(job)
    ended = watched.until(Ended, handle)
    result = watched.ground.store.read_result(job.spec.task, 1)
    failure = judge(job.spec.task, 1, result, ended).failure
    assert failure is not None and failure.reason == "out-of-memory", failure


@pytest.mark.parametrize("ground", [*FENCED, *BUCKETS], indirect=True)
def test_an_attempt_that_was_given_up_does_not_begin_however_late_it_is_accepted(watched: Watched) -> None:
    job = watched.ground.job("add", inputs={"a": 1, "b": 2})
    assert watched.ground.store.claim_attempt(job.spec.task, 1, by="the test")
    handle = watched.submit(job)
    watched.until(Ended, handle)
    assert watched.ground.store.read_result(job.spec.task, 1) is None
    assert not any(isinstance(event, Started) for event in watched.of(handle))


@pytest.mark.parametrize("ground", [*FENCED, *BUCKETS], indirect=True)
def test_an_attempt_that_has_begun_does_not_begin_once_more(watched: Watched) -> None:
    job = watched.ground.job("wait")
    handle = watched.started(job)
    assert not watched.ground.store.claim_attempt(job.spec.task, 1, by="the test")
    watched.cancel(handle, grace=5)
    watched.until(Ended, handle)


def test_jobs_are_looked_for_watched_and_stopped_by_the_list(ground: Ground) -> None:
    first = ground.open()
    jobs = [ground.job("wait") for _ in range(3)]
    handles = [str(handle) for handle in first.backend.submit(jobs)]
    for handle in handles:
        first.until(Started, handle)
    second = ground.open()
    assert list(second.backend.find([*jobs, ground.job("wait")])) == [*handles, None]
    assert dict(second.backend.attach(dict(zip(handles, jobs, strict=True)))) == dict.fromkeys(handles)
    second.backend.cancel(handles, grace=5)
    for handle in handles:
        second.until(Ended, handle)


def test_nothing_is_done_for_no_jobs(watched: Watched) -> None:
    backend = watched.backend
    assert list(backend.submit([])) == list(backend.find([])) == []
    assert dict(backend.attach({})) == {}
    backend.cancel([], grace=5)


def test_closing_twice_is_allowed(watched: Watched) -> None:
    watched.backend.close()
    watched.backend.close()
