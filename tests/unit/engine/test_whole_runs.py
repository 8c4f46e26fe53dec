"""Graphs run to their end on a fake backend: values, statuses, order, failures."""

from __future__ import annotations

import pytest
from engine_kit import Bench

from upshift.backends.fake import Complete, Fail, FakeBackend, FakeCluster, Lose, Refuse, Wait
from upshift.config import ResourceSettings, Retry
from upshift.errors import GraphError, RunFailed, StoreUnavailable
from upshift.model.graph import Collection, FromStep, Graph, Node
from upshift.model.spec import Code, Hardware, decode, from_json
from upshift.runs.catalog.rebuild import Ending, read_ending, rebuild
from upshift.runs.catalog.rows import RunRow
from upshift.runtime.storage.store import Store


def one() -> int:
    return 1


def numbers(n: int) -> list[int]:
    return list(range(n))


def double(x: int) -> int:
    return 2 * x


def add(x: int, y: int) -> int:
    return x + y


def total(xs: list[int]) -> int:
    return sum(xs)


def test_a_chain_hands_values_on(bench: Bench) -> None:
    graph = bench.graph(
        {
            "one": (bench.step(one), {}),
            "double": (bench.step(double), {"x": FromStep(node="one")}),
            "add": (bench.step(add), {"x": FromStep(node="double"), "y": bench.const(40)}),
        }
    )
    run = bench.run(graph)
    assert run.status == "completed"
    assert run.output == 42
    assert bench.watcher.started == ["one", "double", "add"]
    assert bench.watcher.ended == ["completed"]
    assert bench.watcher.of("double") == ["running", "completed"]
    again = bench.look(run.id)
    assert again["double"].output == 2
    assert again["add"].tasks[0].attempts[0].granted is not None


def test_a_list_made_at_run_time_is_mapped_and_gathered_in_order(bench: Bench) -> None:
    steps = {"numbers": bench.step(numbers), "double": bench.step(double), "total": bench.step(total)}
    nodes = [
        Node(name="numbers", step="numbers", inputs={"n": bench.const(5)}, by_item=("output",)),
        Node(name="double", step="double", inputs={"x": FromStep(node="numbers")}, over=("x",)),
        Node(name="double_2", step="double", inputs={"x": FromStep(node="double")}, over=("x",)),
        Node(name="total", step="total", inputs={"xs": FromStep(node="double_2")}),
    ]
    run = bench.run(bench.graph(nodes, steps, FromStep(node="total")))
    assert run.output == 40
    assert run["double_2"].output == [0, 4, 8, 12, 16]
    assert bench.watcher.sizes == {"numbers": 1, "double": 5, "double_2": 5, "total": 1}


def test_a_mapped_step_is_followed_item_by_item_without_a_barrier(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, instant=False, capacity=Hardware(cpu_count=1))
    nodes = [
        Node(name="first", step="double", inputs={"x": bench.listed(1, 2)}, over=("x",)),
        Node(name="second", step="double", inputs={"x": FromStep(node="first")}, over=("x",)),
    ]
    bench.run(bench.graph(nodes, {"double": bench.step(double)}))
    assert bench.ran() == ["first[0]", "first[1]", "second[0]", "second[1]"]

    bench.cluster = FakeCluster(bench.script, instant=False, capacity=Hardware(cpu_count=2))
    bench.run(bench.graph(nodes, {"double": bench.step(double)}), reuse=False)
    assert bench.ran() == ["first[0]", "first[1]", "second[0]", "second[1]"]
    assert bench.cluster.most_at_once == 2


def test_mapping_over_an_empty_list_gives_an_empty_list(bench: Bench) -> None:
    steps = {"numbers": bench.step(numbers), "double": bench.step(double), "total": bench.step(total)}
    nodes = [
        Node(name="numbers", step="numbers", inputs={"n": bench.const(0)}, by_item=("output",)),
        Node(name="double", step="double", inputs={"x": FromStep(node="numbers")}, over=("x",)),
        Node(name="again", step="double", inputs={"x": FromStep(node="double")}, over=("x",)),
        Node(name="total", step="total", inputs={"xs": FromStep(node="again")}),
    ]
    run = bench.run(bench.graph(nodes, steps, FromStep(node="total")))
    assert run.output == 0
    assert run["again"].output == []
    assert run["again"].status == "completed"


def test_lists_of_unequal_length_fail_the_step_and_both_lengths_are_named(bench: Bench) -> None:
    steps = {"numbers": bench.step(numbers), "add": bench.step(add)}
    nodes = [
        Node(name="numbers", step="numbers", inputs={"n": bench.const(3)}, by_item=("output",)),
        Node(
            name="add",
            step="add",
            inputs={"x": FromStep(node="numbers"), "y": bench.listed(1, 2)},
            over=("x", "y"),
            location="flow.py:7",
        ),
    ]
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph(nodes, steps))
    assert "step add failed" in str(caught.value)
    assert "x (3 items)" in str(caught.value)
    assert "y (2 items)" in str(caught.value)
    assert "flow.py:7" in str(caught.value)
    assert caught.value.run["add"].status == "failed"
    assert "unequal" in caught.value.run["add"].tasks[0].attempts[0].error.message


def test_what_is_no_list_cannot_be_mapped_over(bench: Bench) -> None:
    steps = {"one": bench.step(one), "double": bench.step(double)}
    nodes = [
        Node(name="one", step="one"),
        Node(name="double", step="double", inputs={"x": FromStep(node="one")}, over=("x",)),
    ]
    with pytest.raises(RunFailed, match="the result of one of type int, which is not a list"):
        bench.run(bench.graph(nodes, steps))


def truth(value: object) -> object:
    return value


@pytest.mark.parametrize("allowed", [True, False])
def test_when_runs_a_step_only_if_the_boolean_is_true(bench: Bench, allowed: bool) -> None:
    steps = {"truth": bench.step(truth), "one": bench.step(one), "double": bench.step(double)}
    nodes = [
        Node(name="truth", step="truth", inputs={"value": bench.const(allowed)}),
        Node(name="one", step="one", when=FromStep(node="truth")),
        Node(name="double", step="double", inputs={"x": FromStep(node="one")}),
        Node(name="later", step="one", after=("double",)),
        Node(
            name="many", step="double", inputs={"x": Collection(items=(FromStep(node="one"),))}, over=("x",)
        ),
        Node(name="free", step="one"),
    ]
    run = bench.run(bench.graph(nodes, steps))
    assert run.status == "completed"
    expected = "completed" if allowed else "skipped"
    assert {step.name: step.status for step in run.steps} == {
        "truth": "completed",
        "one": expected,
        "double": expected,
        "later": expected,
        "many": expected,
        "free": "completed",
    }


def test_a_step_that_is_skipped_before_its_length_is_known_is_shown_as_skipped(bench: Bench) -> None:
    steps = {"truth": bench.step(truth), "numbers": bench.step(numbers), "double": bench.step(double)}
    nodes = [
        Node(name="truth", step="truth", inputs={"value": bench.const(False)}),
        Node(
            name="numbers",
            step="numbers",
            inputs={"n": bench.const(2)},
            by_item=("output",),
            when=FromStep(node="truth"),
        ),
        Node(name="double", step="double", inputs={"x": FromStep(node="numbers")}, over=("x",)),
    ]
    run = bench.run(bench.graph(nodes, steps))
    assert run.status == "completed"
    assert run["double"].status == "skipped"


def test_when_needs_a_real_boolean(bench: Bench) -> None:
    steps = {"truth": bench.step(truth), "one": bench.step(one)}
    nodes = [
        Node(name="truth", step="truth", inputs={"value": bench.const("yes")}),
        Node(name="one", step="one", when=FromStep(node="truth")),
    ]
    with pytest.raises(RunFailed, match=r"\.when\(truth\) of one is of type str, and not a bool"):
        bench.run(bench.graph(nodes, steps))


def test_containers_of_results_arrive_as_they_were_written(bench: Bench) -> None:
    seen = []

    def keep(value: object) -> None:
        seen.append(value)

    value = Collection(
        form="dict",
        keys=("pair", "all"),
        items=(
            Collection(form="tuple", items=(FromStep(node="one"), bench.const("x"))),
            FromStep(node="double"),
        ),
    )
    nodes = [
        Node(name="one", step="one"),
        Node(name="double", step="double", inputs={"x": bench.listed(1, 2)}, over=("x",)),
        Node(name="keep", step="keep", inputs={"value": value}),
    ]
    steps = {"one": bench.step(one), "double": bench.step(double), "keep": bench.step(keep)}
    bench.run(bench.graph(nodes, steps))
    assert seen == [{"pair": (1, "x"), "all": [2, 4]}]


def test_a_graph_without_steps_completes(bench: Bench) -> None:
    run = bench.run(bench.graph([]))
    assert run.status == "completed"
    assert run.steps == []


def test_a_cycle_is_refused_before_anything_runs(bench: Bench) -> None:
    nodes = [Node(name="a", step="one", after=("b",)), Node(name="b", step="one", after=("a",))]
    with pytest.raises(GraphError, match="wait for each other: a needs b needs a"):
        bench.run(bench.graph(nodes, {"one": bench.step(one)}))
    assert bench.catalog.runs() == []


def test_the_longest_remaining_path_goes_first(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, instant=False, capacity=Hardware(cpu_count=1))
    nodes = [
        Node(name="short", step="one"),
        Node(name="long", step="one"),
        Node(name="long_2", step="double", inputs={"x": FromStep(node="long")}),
        Node(name="long_3", step="double", inputs={"x": FromStep(node="long_2")}),
    ]
    bench.run(bench.graph(nodes, {"one": bench.step(one), "double": bench.step(double)}))
    assert bench.ran() == ["long", "long_2", "short", "long_3"]


def test_as_many_tasks_run_at_once_as_there_is_room_for(bench: Bench) -> None:
    bench.cluster = FakeCluster(
        bench.script, instant=False, capacity=Hardware(cpu_count=4, memory=100_000_000)
    )
    step = bench.step(double, request=ResourceSettings(cpu_count=1, memory="40MB"))
    nodes = [Node(name="double", step="double", inputs={"x": bench.listed(*range(6))}, over=("x",))]
    bench.run(bench.graph(nodes, {"double": step}))
    assert bench.cluster.most_at_once == 2


@pytest.mark.parametrize(
    ("word", "reason", "message"),
    [
        (
            Lose("timeout", "TIMEOUT, says the cluster"),
            "timeout",
            "TIMEOUT, says the cluster; stopped (SIGTERM)",
        ),
        (Lose(), "stopped-from-outside", "stopped (SIGTERM)"),
    ],
)
def test_why_a_signal_came_the_backend_knows_better_than_the_supervisor(
    bench: Bench, word: Lose, reason: str, message: str
) -> None:
    bench.outcomes = {("one", 0): Fail("stopped-from-outside", "stopped (SIGTERM)", word=word)}
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph({"one": (bench.step(one), {})}))
    for _ in range(2):
        attempt = bench.look(caught.value.run.id)["one"].tasks[0].attempts[0]
        assert attempt.error is not None
        assert (attempt.reason, attempt.error.reason, attempt.error.message) == (reason, reason, message)
        rebuild(bench.catalog, [bench.store])


def test_a_cause_that_a_supervisor_is_certain_of_stays(bench: Bench) -> None:
    bench.outcomes = {("one", 0): Fail("timeout", "it took too long", word=Lose("preempted", "PREEMPTED"))}
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph({"one": (bench.step(one), {})}))
    assert caught.value.run["one"].tasks[0].attempts[0].reason == "timeout"


def test_a_failed_step_is_tried_again_after_its_pause(bench: Bench) -> None:
    bench.outcomes = {("one", 1): Fail("preempted", "gone"), ("one", 2): Lose("infrastructure", "node lost")}
    step = bench.step(one, retry=Retry(times=2, delay=3, backoff=2))
    run = bench.run(bench.graph({"one": (step, {})}))
    attempts = run["one"].tasks[0].attempts
    assert [(a.number, a.status, a.reason) for a in attempts] == [
        (1, "failed", "preempted"),
        (2, "failed", "infrastructure"),
        (3, "completed", None),
    ]
    assert [round(jump) for jump in bench.clock.jumps] == [3, 6]
    repeated = [c for c in bench.watcher.changes if c.status == "pending"]
    assert [(c.attempt, c.retry_in, c.retry, c.retries) for c in repeated] == [(1, 3, 1, 2), (2, 6, 2, 2)]
    assert run.output == 1


def test_only_the_causes_that_the_user_names_are_tried_again(bench: Bench) -> None:
    bench.outcomes = {("one", 0): Fail("user-error", "ValueError: no")}
    step = bench.step(one, retry=Retry(times=3, on=("preempted",)))
    with pytest.raises(RunFailed, match="ValueError: no") as caught:
        bench.run(bench.graph({"one": (step, {})}))
    assert len(caught.value.run["one"].tasks[0].attempts) == 1


def test_a_job_that_the_backend_refuses_counts_as_a_failed_attempt(bench: Bench) -> None:
    bench.outcomes = {("one", 1): Refuse("the queue is closed")}
    step = bench.step(one, retry=Retry(times=1, on=("infrastructure",)))
    run = bench.run(bench.graph({"one": (step, {})}))
    first = run["one"].tasks[0].attempts[0]
    assert (first.status, first.reason) == ("failed", "infrastructure")
    assert "the queue is closed" in first.error.message


def test_a_supervisor_that_dies_without_a_word_is_an_infrastructure_failure(bench: Bench) -> None:
    bench.outcomes = {("one", 0): Lose()}
    with pytest.raises(RunFailed, match=r"\(infrastructure\): the supervisor died without a result"):
        bench.run(bench.graph({"one": (bench.step(one), {})}))


def test_after_a_failure_nothing_new_starts_and_what_runs_is_stopped(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, instant=False)
    bench.outcomes = {("bad", 0): Fail()}
    nodes = [
        Node(name="bad", step="one"),
        Node(name="other", step="one"),
        Node(name="next", step="double", inputs={"x": FromStep(node="other")}),
        Node(name="needs", step="double", inputs={"x": FromStep(node="bad")}),
    ]
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph(nodes, {"one": bench.step(one), "double": bench.step(double)}))
    run = caught.value.run
    assert run.status == "failed"
    assert {s.name: s.status for s in run.steps} == {
        "bad": "failed",
        "other": "cancelled",
        "next": "cancelled",
        "needs": "cancelled",
    }
    assert [grace for _, grace in bench.cluster.cancelled] == [10.0]
    assert run["other"].tasks[0].attempts[0].reason == "cancelled"


def test_keep_going_does_all_that_does_not_depend_on_the_failure(bench: Bench) -> None:
    bench.outcomes = {("double[1]", 0): Fail()}
    nodes = [
        Node(name="double", step="double", inputs={"x": bench.listed(1, 2, 3)}, over=("x",)),
        Node(name="again", step="double", inputs={"x": FromStep(node="double")}, over=("x",)),
        Node(name="total", step="total", inputs={"xs": FromStep(node="again")}),
        Node(name="one", step="one"),
    ]
    steps = {"double": bench.step(double), "total": bench.step(total), "one": bench.step(one)}
    with pytest.raises(RunFailed, match=r"step double\[1\] failed") as caught:
        bench.run(bench.graph(nodes, steps), keep_going=True)
    run = caught.value.run
    assert [t.status for t in run["again"].tasks] == ["completed", "cancelled", "completed"]
    assert run["total"].status == "cancelled"
    assert run["one"].status == "completed"


def test_the_error_says_which_step_why_where_and_what_to_do(bench: Bench) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    bench.outcomes = {("broken", 0): Complete(lambda inputs: broken(), prints=b"half way\n")}
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph({"broken": (bench.step(broken), {})}))
    text, run = str(caught.value), caught.value.run
    assert text.startswith("step broken failed (user-error): ZeroDivisionError: by zero")
    assert 'raise ZeroDivisionError("by zero")' in text
    assert f"upshift logs {run.id} broken" in text
    assert f"upshift resume {run.id}" in text
    assert "0.1.log" in text


def test_a_traceback_that_was_shown_is_not_repeated_by_the_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(type(bench.watcher), "shows", True)
    bench.functions["broken"] = broken
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph({"broken": (bench.step(broken), {})}))
    text = str(caught.value)
    assert text.startswith("step broken failed (user-error): ZeroDivisionError: by zero\n  fix:")
    assert "Traceback" not in text
    (failed,) = [change for change in bench.watcher.changes if change.status == "failed"]
    assert failed.failure is not None
    assert "Traceback" in str(failed.failure.traceback)


def test_what_a_step_prints_is_shown_by_line_and_bytes_that_are_no_text_are_replaced(bench: Bench) -> None:
    bench.outcomes = {("one", 0): Complete(lambda inputs: 1, prints=b"a\nb\xff\nrest")}
    bench.run(bench.graph({"one": (bench.step(one), {})}))
    assert bench.watcher.printed == [("one", "a\nb\ufffd\n"), ("one", "rest\n")]
    statuses = bench.watcher.of("one")
    assert statuses == ["running", "completed"]


def test_the_store_keeps_all_that_a_lost_catalog_needs(bench: Bench) -> None:
    graph = bench.graph({"one": (bench.step(one), {})})
    run = bench.run(graph, tags=("nightly",))
    row = from_json(RunRow, bench.store.read_record(run.id, "run.json") or b"")
    assert row == bench.catalog.run(run.id)
    assert (row.status, row.tags, row.ended is not None) == ("completed", ("nightly",), True)
    assert decode(Code, row.source["code"]).package, "the code package is kept for --same-code"
    assert from_json(Graph, bench.store.read_record(run.id, "graph.json") or b"") == graph
    assert read_ending(run.id, bench.store) == Ending(tasks=tuple(bench.catalog.tasks(run.id)))


def test_a_disk_that_is_full_while_the_code_is_noted_ends_no_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write_record = [], Store.write_record

    def write(store: Store, run: str, name: str, content: bytes) -> None:
        if name == "run.json":
            written.append(content)
            if len(written) == 2:  # after the first, of its begin, and before that of its end
                raise StoreUnavailable("the store cannot be written", why="No space left on device")
        write_record(store, run, name, content)

    monkeypatch.setattr(Store, "write_record", write)
    run = bench.run(bench.graph({"one": (bench.step(one), {})}))
    assert (run.status, len(written)) == ("completed", 3)
    recorded = from_json(RunRow, bench.store.read_record(run.id, "run.json") or b"")
    noted = {"code", "code_lacks"} & recorded.source.keys()
    assert noted and noted <= bench.catalog.run(run.id).source.keys()


def test_why_a_job_waits_is_told(bench: Bench) -> None:
    bench.outcomes = {("one", 0): Wait("no node is free", Complete(lambda inputs: 1))}
    bench.run(bench.graph({"one": (bench.step(one), {})}))
    assert bench.watcher.notices == ["no node is free"]


@pytest.mark.parametrize(
    ("capacity", "lists"), [(None, [3]), (Hardware(cpu_count=2), [1, 1, 1])], ids=["queued", "at once"]
)
def test_what_a_backend_queues_itself_comes_as_one_list(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capacity: Hardware | None, lists: list[int]
) -> None:
    bench.cluster = FakeCluster(bench.script, capacity=capacity)
    submit, found = FakeBackend.submit, []

    def counted(self, jobs):  # type: ignore[no-untyped-def]
        found.append(len(jobs))
        return submit(self, jobs)

    monkeypatch.setattr(FakeBackend, "submit", counted)
    nodes = [Node(name="double", step="double", inputs={"x": bench.listed(1, 2, 3)}, over=("x",))]
    graph = bench.graph(nodes, {"double": bench.step(double)}, FromStep(node="double"))
    assert bench.run(graph).output == [2, 4, 6]
    assert found == lists


def test_of_a_list_that_is_submitted_one_job_may_be_refused(bench: Bench) -> None:
    bench.outcomes = {("double[1]", 0): Refuse("no such queue")}
    nodes = [Node(name="double", step="double", inputs={"x": bench.listed(1, 2, 3)}, over=("x",))]
    graph = bench.graph(nodes, {"double": bench.step(double)}, FromStep(node="double"))
    with pytest.raises(RunFailed, match=r"double\[1\].*no such queue"):
        bench.run(graph)


def waits_in_vain(bench: Bench, wait: Wait) -> str:
    bench.outcomes = {("one", 0): wait}
    bench.cluster = FakeCluster(bench.script, instant=False)
    with pytest.raises(RunFailed) as caught:
        bench.run(bench.graph({"one": (bench.step(one), {})}))
    attempt = caught.value.run["one"].tasks[0].attempts[0]
    assert attempt.error is not None and attempt.error.fix is not None
    assert attempt.reason == "infrastructure"
    assert "Target 'fake' lets a task wait for start_within = \"7d\"." in attempt.error.fix
    assert [grace for _, grace in bench.cluster.cancelled] == [0.0]
    assert not bench.cluster.running
    return attempt.error.message


def test_what_would_wait_for_ever_fails_at_once(bench: Bench) -> None:
    said = waits_in_vain(bench, Wait("PartitionNodeLimit", None, hopeless=True))
    assert said == "it would wait for ever: PartitionNodeLimit"
    assert bench.clock.jumps == []


def test_what_waits_too_long_fails_with_what_it_waited_for(bench: Bench) -> None:
    assert waits_in_vain(bench, Wait("no node is free", None)) == "after 7d it still waits: no node is free"
    assert [round(jump) for jump in bench.clock.jumps] == [7 * 86_400]


def test_what_has_begun_is_not_given_up_for_having_waited(bench: Bench) -> None:
    bench.outcomes = {("one", 0): Wait("no node is free", Complete(lambda inputs: 1))}
    bench.cluster = FakeCluster(bench.script, instant=False)
    looks: list[bool] = []

    def idle() -> bool:
        looks.append(True)
        return len(looks) > 1 and bench.cluster.finish()

    bench.clock.idle = idle
    assert bench.run(bench.graph({"one": (bench.step(one), {})})).output == 1
    assert [round(jump) for jump in bench.clock.jumps] == [7 * 86_400]
