"""A run whose engine was killed goes on, and repeats nothing that is done."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time

import attrs
import pytest
from engine_kit import Bench, Killed, changed, kill_when_idle, killed_run, never

from upshift.backends.base import Sink
from upshift.backends.fake import Fail, FakeBackend, FakeCluster, Hang, Lose
from upshift.config import Retry
from upshift.engine import ownerless
from upshift.engine.schedule import SystemClock
from upshift.errors import NotFound, RunCancelled, RunFailed, RunOwned
from upshift.model.configuration import Target
from upshift.model.graph import FromStep, Graph, Node
from upshift.runs.catalog.rebuild import Backlog, rebuild
from upshift.runs.lease import Lease


def one() -> int:
    return 1


def double(x: int) -> int:
    return 2 * x


def chain(bench: Bench, **fields: object) -> Graph:
    return bench.graph(
        {
            "one": (bench.step(one, **fields), {}),
            "double": (bench.step(double, **fields), {"x": FromStep(node="one")}),
        }
    )


def fan(bench: Bench, **fields: object) -> Graph:
    steps = {"double": bench.step(double, **fields)}
    nodes = [Node(name="double", step="double", inputs={"x": bench.listed(1, 2, 3)}, over=("x",))]
    return bench.graph(nodes, steps, FromStep(node="double"))


@pytest.fixture
def held(bench: Bench) -> Bench:
    bench.cluster = FakeCluster(bench.script, instant=False)
    return bench


@pytest.mark.parametrize("cache", [True, False])
def test_what_is_done_is_kept(held: Bench, monkeypatch: pytest.MonkeyPatch, cache: bool) -> None:
    graph = chain(held, cache=cache)
    kill_when_idle(held, finished=1)
    run_id = killed_run(held, graph, monkeypatch)
    held.clock.idle = never
    run = held.run(graph, resume=run_id, reuse=False)
    assert run.id == run_id
    assert run.status == "completed"
    assert run.output == 2
    assert held.ran() == ["one", "double"]
    assert [len(step.tasks[0].attempts) for step in run.steps] == [1, 1]
    assert not run["one"].tasks[0].cached


def test_an_engine_that_is_killed_at_the_very_end_has_completed_its_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: object, **more: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Backlog, "update_run", killed)
        with pytest.raises(Killed):
            bench.run(chain(bench))
    assert bench.catalog.runs()[0].status == "running"
    rebuild(bench.catalog, [bench.store])
    assert bench.catalog.runs()[0].status == "completed"


def test_a_run_does_not_end_before_it_started_when_the_clock_is_set_back(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    kill_when_idle(held, finished=1)
    run_id = killed_run(held, graph, monkeypatch)
    held.clock.idle = never
    held.clock.time -= 7200
    run = held.run(graph, resume=run_id)
    assert run.ended is not None and run.ended >= run.started


def test_the_clock_of_an_engine_goes_on_when_the_machine_s_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = time.time()
    monkeypatch.setattr(time, "time", lambda: machine)
    clock = SystemClock()
    before = clock.now()
    machine -= 7200
    assert before <= clock.now() < before + 3600
    machine += 4 * 7200
    assert clock.now() > before + 7200


def test_a_job_that_still_runs_is_waited_for(held: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fan(held)
    kill_when_idle(held, finished=1)
    run_id = killed_run(held, graph, monkeypatch)
    assert len(held.cluster.running) == 2
    held.clock.idle = never
    run = held.run(graph, resume=run_id)
    assert run.output == [2, 4, 6]
    assert held.ran() == ["double[0]", "double[1]", "double[2]"]
    assert [t.attempts[-1].status for t in run["double"].tasks] == ["completed"] * 3


class TwoTargets:
    """Two targets of one backend, whose jobs have the same names."""

    def __init__(self, bench: Bench) -> None:
        self.clusters = {name: FakeCluster(bench.script, instant=False) for name in "ab"}
        store = str(bench.folder / "store")
        bench.configuration = attrs.evolve(
            bench.configuration,
            default_target="a",
            targets={name: Target(name=name, backend="fake", store=store) for name in "ab"},
        )
        bench.cluster = self  # type: ignore[assignment]
        self.instant = False

    def open(self, target: Target, *, store: str, sink: Sink) -> FakeBackend:
        return self.clusters[target.name].open(target, store=store, sink=sink)

    def finish(self) -> bool:
        return any(cluster.finish() for cluster in self.clusters.values())

    def ran(self) -> dict[str, list[str]]:
        return {n: [str(job.spec.task) for job in c.submitted] for n, c in self.clusters.items()}


def on_both(bench: Bench) -> Graph:
    steps = {name: bench.step(one, on=name, cache=False) for name in "ab"}
    nodes = [Node(name=name, step=name) for name in "ab"]
    return bench.graph(nodes, steps, FromStep(node="b"))


def test_a_job_is_looked_for_on_the_target_that_it_was_given_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = TwoTargets(bench)
    kill_when_idle(bench)
    run_id = killed_run(bench, on_both(bench), monkeypatch)
    bench.clock.idle = never
    run = bench.run(on_both(bench), resume=run_id)
    assert (run.status, both.ran()) == ("completed", {"a": ["a"], "b": ["b"]})
    assert [run[name].tasks[0].attempts[-1].target for name in "ab"] == ["a", "b"]


def test_jobs_are_cancelled_on_the_target_that_they_were_given_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = TwoTargets(bench)
    kill_when_idle(bench)
    run_id = killed_run(bench, on_both(bench), monkeypatch)
    monkeypatch.setattr(ownerless, "open_backend", both.open)
    assert "2 of its tasks still ran and were stopped" in ownerless.cancel(run_id, bench.configuration)
    assert not any(cluster.running for cluster in both.clusters.values())


def test_a_run_is_not_called_cancelled_while_nobody_can_ask_one_of_its_targets(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = TwoTargets(bench)
    kill_when_idle(bench)
    run_id = killed_run(bench, on_both(bench), monkeypatch)
    monkeypatch.setattr(ownerless, "open_backend", both.open)
    known = {"a": bench.configuration.targets["a"]}
    with pytest.raises(NotFound, match="no target is named 'b'"):
        ownerless.cancel(run_id, attrs.evolve(bench.configuration, targets=known))
    assert bench.catalog.run(run_id).status == "running"


def test_a_job_that_ended_meanwhile_is_not_repeated(held: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = fan(held, cache=False)
    kill_when_idle(held)
    run_id = killed_run(held, graph, monkeypatch)
    while held.cluster.finish():
        pass
    run = held.run(graph, resume=run_id)
    assert run.output == [2, 4, 6]
    assert len(held.cluster.submitted) == 3


def test_why_a_job_died_that_nobody_watched_is_what_its_backend_says(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    held.outcomes = {("one", 1): Lose("timeout", "TIMEOUT, says the cluster")}
    kill_when_idle(held)
    run_id = killed_run(held, graph, monkeypatch)
    held.cluster.finish()
    held.clock.idle = never
    first = held.run(graph, resume=run_id)["one"].tasks[0].attempts[0]
    assert first.error is not None
    assert (first.reason, first.error.message) == ("timeout", "TIMEOUT, says the cluster")


def test_a_job_that_died_meanwhile_is_tried_again_without_counting_as_a_failure(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    kill_when_idle(held)
    run_id = killed_run(held, graph, monkeypatch)
    held.cluster.running.clear()
    held.clock.idle = never
    run = held.run(graph, resume=run_id)
    attempts = run["one"].tasks[0].attempts
    assert [(a.number, a.status, a.reason) for a in attempts] == [
        (1, "failed", "infrastructure"),
        (2, "completed", None),
    ]


def test_a_job_whose_handle_was_never_recorded_is_found_again(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    submit = held.cluster.submit

    def die_after(job, sink):  # type: ignore[no-untyped-def]
        submit(job, sink)
        raise Killed

    held.cluster.submit = die_after  # type: ignore[method-assign]
    run_id = killed_run(held, graph, monkeypatch)
    assert list(held.cluster.running)
    assert held.catalog.attempts(run_id) == []
    held.cluster.submit = submit  # type: ignore[method-assign]
    run = held.run(graph, resume=run_id)
    assert held.ran() == ["one", "double"]
    assert [a.number for a in run["one"].tasks[0].attempts] == [1]


@pytest.mark.parametrize("ends", [False, True])
def test_a_retry_that_was_never_recorded_is_found_again(
    held: Bench, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    graph = chain(held, retry=Retry(times=1, delay=0))
    held.outcomes = {("one", 1): Lose()}
    submit = held.cluster.submit

    def die_after_the_second(job, sink):  # type: ignore[no-untyped-def]
        handle = submit(job, sink)
        if job.spec.attempt == 2:
            raise Killed
        return handle

    held.cluster.submit = die_after_the_second  # type: ignore[method-assign]
    run_id = killed_run(held, graph, monkeypatch)
    assert [(a.number, a.status) for a in held.catalog.attempts(run_id)] == [(1, "running")]
    assert len(held.cluster.running) == 1
    held.cluster.submit = submit  # type: ignore[method-assign]
    if ends:
        held.cluster.finish()
    held.clock.idle = never
    run = held.run(graph, resume=run_id)
    assert held.ran() == ["one", "one", "double"]
    assert held.cluster.most_at_once == 1
    assert [(a.number, a.status) for a in run["one"].tasks[0].attempts] == [(1, "failed"), (2, "completed")]


def test_all_retries_that_were_never_recorded_are(held: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain(held, retry=Retry(times=3, delay=0))
    held.outcomes = {("one", 1): Lose(), ("one", 2): Fail()}
    submit = held.cluster.submit

    def die_after_the_third(job, sink):  # type: ignore[no-untyped-def]
        handle = submit(job, sink)
        if job.spec.attempt == 3:
            raise Killed
        return handle

    held.cluster.submit = die_after_the_third  # type: ignore[method-assign]
    run_id = killed_run(held, graph, monkeypatch)
    with contextlib.closing(sqlite3.connect(held.catalog.place)) as catalog, catalog:
        catalog.execute("DELETE FROM attempts WHERE number > 1")  # it was locked since the first one
        catalog.execute("UPDATE attempts SET status = 'running', ended = NULL, failure = NULL")
    held.cluster.submit = submit  # type: ignore[method-assign]
    run = held.run(graph, resume=run_id)
    assert held.ran() == ["one", "one", "one", "double"]
    tried = run["one"].tasks[0].attempts
    assert [(a.number, a.status) for a in tried] == [(1, "failed"), (2, "failed"), (3, "completed")]
    assert [a.reason for a in tried] == ["infrastructure", "user-error", None]


def test_a_spec_that_was_never_submitted_leads_to_the_next_attempt(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    late = []

    def die_before(job, sink):  # type: ignore[no-untyped-def]
        late.append((job, sink))
        raise Killed

    submit = held.cluster.submit
    held.cluster.submit = die_before  # type: ignore[method-assign]
    run_id = killed_run(held, graph, monkeypatch)
    held.cluster.submit = submit  # type: ignore[method-assign]
    run = held.run(graph, resume=run_id)
    assert run.status == "completed"
    assert [a.number for a in run["one"].tasks[0].attempts] == [1, 2]
    assert held.ran() == ["one", "double"]
    submit(*late[0])  # as by a cluster that has taken the job after all
    assert not held.cluster.running


def test_a_job_that_begins_while_it_is_looked_for_is_waited_for(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    submit, find = held.cluster.submit, held.cluster.find
    late = []

    def die_before(job, sink):  # type: ignore[no-untyped-def]
        late.append((job, sink))
        raise Killed

    def begins_after_the_look(job):  # type: ignore[no-untyped-def]
        found = find(job)
        if late:
            submit(*late.pop())
        return found

    held.cluster.submit = die_before  # type: ignore[method-assign]
    run_id = killed_run(held, graph, monkeypatch)
    held.cluster.submit = submit  # type: ignore[method-assign]
    held.cluster.find = begins_after_the_look  # type: ignore[method-assign]
    run = held.run(graph, resume=run_id)
    assert [a.number for a in run["one"].tasks[0].attempts] == [1]
    assert held.cluster.most_at_once == 1


def test_changed_code_runs_again_and_what_ran_of_the_old_code_is_stopped_first(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(held)
    kill_when_idle(held, finished=1)
    run_id = killed_run(held, graph, monkeypatch)
    held.clock.idle = never
    new = changed(graph.steps["double"], code={"steps.double (steps.py)": "code:2"})
    run = held.run(changed(graph, steps={**graph.steps, "double": new}), resume=run_id)
    assert held.ran() == ["one", "double", "double"]
    assert [a.status for a in run["double"].tasks[0].attempts] == ["cancelled", "completed"]
    assert held.cluster.most_at_once == 1


def test_a_step_that_is_gone_from_the_pipeline_is_stopped(
    held: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fan(held)
    held.outcomes = {("double", 0): Hang()}
    kill_when_idle(held)
    run_id = killed_run(held, graph, monkeypatch)
    held.clock.idle = never
    run = held.run(bench_of_one(held), resume=run_id)
    assert run.status == "completed"
    assert held.cluster.running == {}
    assert len(held.cluster.cancelled) == 3


def bench_of_one(bench: Bench) -> Graph:
    return bench.graph({"one": (bench.step(one), {})})


def test_a_failed_run_goes_on_from_its_failure_with_all_retries_again(bench: Bench) -> None:
    bench.outcomes = {("double", 1): Fail(), ("double", 2): Fail()}
    graph = chain(bench, retry=Retry(times=1))
    with pytest.raises(RunFailed) as caught:
        bench.run(graph)
    run = bench.run(graph, resume=caught.value.run.id)
    assert run.status == "completed"
    assert [a.number for a in run["double"].tasks[0].attempts] == [1, 2, 3]
    assert bench.ran() == ["one", "double", "double", "double"]


def test_done_content_that_is_damaged_is_made_again(bench: Bench) -> None:
    def big() -> bytes:
        return bytes(10_000)

    def size(data: bytes) -> int:
        return len(data)

    bench.outcomes = {("size", 1): Fail()}
    graph = bench.graph(
        {"big": (bench.step(big), {}), "size": (bench.step(size), {"data": FromStep(node="big")})}
    )
    with pytest.raises(RunFailed) as caught:
        bench.run(graph)
    run_id = caught.value.run.id
    bench.store.blob_path(caught.value.run["big"].tasks[0].artifacts["output"].digest).unlink()
    run = bench.run(graph, resume=run_id)
    assert run.output == 10_000
    assert bench.ran() == ["big", "size", "big", "size"]


def test_resuming_a_completed_run_does_nothing(bench: Bench) -> None:
    graph = chain(bench)
    run = bench.run(graph)
    again = bench.run(graph, resume=run.id)
    assert again.output == 2
    assert bench.ran() == ["one", "double"]


def test_an_owned_run_is_not_resumed(bench: Bench) -> None:
    graph = chain(bench)
    run = bench.run(graph)
    with (
        Lease(run.id, bench.store.address),
        pytest.raises(RunOwned, match="another engine owns run") as caught,
    ):
        bench.run(graph, resume=run.id)
    assert "process" in str(caught.value)
    assert f"upshift cancel {run.id}" in str(caught.value)


def test_cancelled_attempts_are_numbered_on(held: Bench) -> None:
    from upshift.engine.control import Command  # noqa: F401

    graph = chain(held)
    held.outcomes = {("one", 1): Hang()}

    def interrupt() -> bool:
        held.clock.idle = never
        os.kill(os.getpid(), signal.SIGINT)
        return True

    held.clock.idle = interrupt
    with pytest.raises(RunCancelled) as caught:
        held.run(graph)
    run = held.run(graph, resume=caught.value.run.id)
    assert [(a.number, a.status) for a in run["one"].tasks[0].attempts] == [
        (1, "cancelled"),
        (2, "completed"),
    ]


def test_a_list_that_is_shorter_now_leaves_no_old_tasks_behind(bench: Bench) -> None:
    def numbers(n: int) -> list[int]:
        return list(range(n))

    def graph(n: int) -> Graph:
        steps = {"numbers": bench.step(numbers), "double": bench.step(double), "one": bench.step(one)}
        nodes = [
            Node(name="numbers", step="numbers", inputs={"n": bench.const(n)}, by_item=("output",)),
            Node(name="double", step="double", inputs={"x": FromStep(node="numbers")}, over=("x",)),
            Node(name="one", step="one", after=("double",)),
        ]
        return bench.graph(nodes, steps, FromStep(node="double"))

    bench.outcomes = {("one", 1): Fail()}
    with pytest.raises(RunFailed) as caught:
        bench.run(graph(4))
    run = bench.run(graph(2), resume=caught.value.run.id)
    assert run.output == [0, 2]
    assert len(run["double"].tasks) == 2


def test_a_step_that_could_not_be_mapped_can_be_after_a_correction(bench: Bench) -> None:
    def add(x: int, y: int) -> int:
        return x + y

    def graph(*ys: int) -> Graph:
        inputs = {"x": bench.listed(1, 2), "y": bench.listed(*ys)}
        return bench.graph(
            [Node(name="add", step="add", inputs=inputs, over=("x", "y"))], {"add": bench.step(add)}
        )

    with pytest.raises(RunFailed, match="unequal") as caught:
        bench.run(graph(1, 2, 3))
    run = bench.run(graph(10, 20), resume=caught.value.run.id)
    assert run["add"].output == [11, 22]
    assert run["add"].status == "completed"
