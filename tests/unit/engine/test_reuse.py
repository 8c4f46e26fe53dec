"""When a result is reused, and what is said about it."""

from __future__ import annotations

import pytest
from engine_kit import Bench, changed

from upshift.backends.base import Job
from upshift.backends.fake import Fail, Outcome
from upshift.errors import RunFailed
from upshift.model.graph import FromStep, Graph, Node
from upshift.model.spec import Artifact
from upshift.runs.catalog.catalog import FOUND_AT_MOST
from upshift.runs.history.runs import Run


def numbers(n: int) -> list[int]:
    return list(range(n))


def double(x: int) -> int:
    return 2 * x


def big(n: int) -> bytes:
    return bytes(n)


def size(data: bytes) -> int:
    return len(data)


def chain(bench: Bench, *, n: int = 3, **fields: object) -> Graph:
    steps = {"numbers": bench.step(numbers), "double": bench.step(double, **fields)}
    nodes = [
        Node(name="numbers", step="numbers", inputs={"n": bench.const(n)}, by_item=("output",)),
        Node(name="double", step="double", inputs={"x": FromStep(node="numbers")}, over=("x",)),
    ]
    return bench.graph(nodes, steps, FromStep(node="double"))


def big_and_size(bench: Bench) -> Graph:
    return bench.graph(
        {
            "big": (bench.step(big), {"n": bench.const(10_000)}),
            "size": (bench.step(size), {"data": FromStep(node="big")}),
        }
    )


def digest_of(job: Job) -> str:
    data = job.spec.inputs["data"]
    assert isinstance(data, Artifact)
    return data.digest


def reasons(run: Run) -> list[str | None]:
    return [task.cache_reason for step in run.steps for task in step.tasks]


def test_equal_work_is_not_done_again(bench: Bench) -> None:
    first = bench.run(chain(bench))
    assert reasons(first) == ["first run"] * 4
    ran = len(bench.cluster.submitted)
    second = bench.run(chain(bench))
    assert len(bench.cluster.submitted) == ran
    assert second.output == [0, 2, 4]
    assert reasons(second) == [f"same code, inputs and environment as run {first.id}"] * 4
    assert second["double"].tasks[1].row.origin == (first.id, "double", 1, 1)
    third = bench.run(chain(bench))
    assert third["double"].tasks[1].row.origin == (first.id, "double", 1, 1), "origin is who made it"


def test_changed_code_runs_again_and_is_named(bench: Bench) -> None:
    bench.run(chain(bench))
    run = bench.run(
        chain(
            bench,
            code={"steps.double (steps.py)": "code:1", "pkg.features.normalize (pkg/features.py)": "code:2"},
        )
    )
    assert run["numbers"].tasks[0].cached
    assert [t.cached for t in run["double"].tasks] == [False] * 3
    assert run["double"].tasks[0].cache_reason == "code changed: normalize in pkg/features.py (new)"
    run = bench.run(chain(bench, code={"steps.double (steps.py)": "code:1", "package numpy": "2.0"}))
    reason = run["double"].tasks[0].cache_reason
    assert reason == "code changed: numpy unused → 2.0, normalize in pkg/features.py (no longer used)"


def test_changed_inputs_run_again_and_only_those(bench: Bench) -> None:
    bench.run(chain(bench, n=2))
    run = bench.run(chain(bench, n=4))
    assert run["numbers"].tasks[0].cache_reason == "input changed: n: 2 → 4"
    assert [t.cached for t in run["double"].tasks] == [True, True, False, False]
    assert run["double"].tasks[2].cache_reason == "first run of this task"


def test_an_input_that_is_too_large_to_be_shown_is_named_with_its_origin(bench: Bench) -> None:
    def graph(n: int) -> Graph:
        return bench.graph(
            {
                "big": (bench.step(big), {"n": bench.const(n)}),
                "size": (bench.step(size), {"data": FromStep(node="big")}),
            }
        )

    bench.run(graph(10_000))
    again = bench.run(graph(10_000))
    assert again["size"].tasks[0].cached
    run = bench.run(graph(10_001))
    assert run["size"].tasks[0].cache_reason == "input changed: data from big", "found behind a reused task"


def test_each_task_of_a_mapped_step_names_its_own_item(bench: Bench) -> None:
    def graph(*items: int) -> Graph:
        steps = {"double": bench.step(double)}
        nodes = [Node(name="double", step="double", inputs={"x": bench.listed(*items)}, over=("x",))]
        return bench.graph(nodes, steps)

    bench.run(graph(1, 2, 3))
    run = bench.run(graph(1, 5, 6))
    assert reasons(run)[1:] == ["input changed: x: 2 → 5", "input changed: x: 3 → 6"]


def test_a_step_that_ran_again_and_gave_the_same_does_not_invalidate_what_follows(bench: Bench) -> None:
    bench.run(chain(bench))
    graph = chain(bench)
    new = changed(graph.steps["numbers"], code={"steps.numbers (steps.py)": "code:2"})
    run = bench.run(changed(graph, steps={**graph.steps, "numbers": new}))
    assert not run["numbers"].tasks[0].cached
    assert [t.cached for t in run["double"].tasks] == [True] * 3


def test_environment_and_other_outputs_are_part_of_the_key(bench: Bench) -> None:
    bench.run(chain(bench))
    run = bench.run(chain(bench, environment={"MODE": "fast"}))
    assert run["double"].tasks[0].cache_reason == "environment changed: MODE"


def test_a_step_with_cache_false_always_runs(bench: Bench) -> None:
    graph = chain(bench, cache=False)
    bench.run(graph)
    run = bench.run(graph)
    assert run["numbers"].tasks[0].cached
    assert [(t.cached, t.cache_reason) for t in run["double"].tasks] == [(False, "cache=False")] * 3


def test_no_cache_runs_everything(bench: Bench) -> None:
    bench.run(chain(bench))
    run = bench.run(chain(bench), reuse=False)
    assert set(reasons(run)) == {"reuse is switched off for this run"}


def test_a_result_expires(bench: Bench) -> None:
    graph = chain(bench, cache_expires=60.0)
    first = bench.run(graph)
    assert bench.run(graph)["double"].tasks[0].cached
    bench.clock.time += 61
    run = bench.run(graph)
    assert run["double"].tasks[0].cache_reason == f"the result of run {first.id} has expired"


def test_a_result_whose_content_is_gone_is_made_again(bench: Bench) -> None:
    graph = big_and_size(bench)
    first = bench.run(graph)
    bench.store.blob_path(first["big"].tasks[0].artifacts["output"].digest).unlink()
    run = bench.run(graph)
    assert run["big"].tasks[0].cache_reason == f"the result of run {first.id} is missing or damaged"
    assert run["size"].tasks[0].cached
    assert run.output == 10_000


def test_equal_tasks_of_one_run_all_run(bench: Bench) -> None:
    # Whether one of them were done when the next begins would depend on chance.
    steps = {"double": bench.step(double)}
    nodes = [Node(name="double", step="double", inputs={"x": bench.listed(1, 1, 1)}, over=("x",))]
    bench.run(bench.graph(nodes, steps))
    assert len(bench.cluster.submitted) == 3


def ones(bench: Bench, count: int, name: str = "double") -> Graph:
    nodes = [
        Node(name=name, step="double", inputs={"x": bench.listed(*[1] * count)}, over=("x",)),
        Node(name=f"{name}_2", step="double", inputs={"x": bench.const(1)}),
    ]
    return bench.graph(nodes, {"double": bench.step(double)})


def origins(run: Run) -> list[tuple[str, str, int | None, int] | None]:
    return [task.row.origin for step in run.steps for task in step.tasks]


def test_equal_tasks_of_one_run_never_share_a_result(bench: Bench) -> None:
    """Each may have drawn other numbers."""
    first = bench.run(ones(bench, 3))
    made = [(first.id, "double", index, 1) for index in range(3)] + [(first.id, "double_2", None, 1)]
    assert origins(bench.run(ones(bench, 3))) == made, "each gets its own again"

    assert origins(bench.run(ones(bench, 3, name="twice"))) == made, "under another name, that at its place"

    more = bench.run(ones(bench, 5))
    assert origins(more) == [*made[:3], None, None, made[3]]
    fewer = origins(bench.run(ones(bench, 1)))
    assert fewer == [made[0], made[3]]


def test_many_equal_tasks_each_get_their_own_result_again(bench: Bench) -> None:
    count = FOUND_AT_MOST + 10
    first = bench.run(ones(bench, count))
    second = bench.run(ones(bench, count))
    assert origins(second)[:count] == [(first.id, "double", index, 1) for index in range(count)]


def test_a_lost_input_is_made_again_within_the_run(bench: Bench) -> None:
    lost: list[str] = []

    def lose(job: Job) -> Outcome:
        if job.spec.task.step == "size" and not lost:
            digest = digest_of(job)
            lost.append(digest)
            bench.store.blob_path(digest).unlink()
            return Fail("infrastructure", "BlobMissing", lost=(digest,))
        return bench.script(job)

    bench.cluster.script = lose
    graph = big_and_size(bench)
    run = bench.run(graph)
    assert run.output == 10_000
    assert bench.ran() == ["big", "size", "big", "size"]
    assert [a.status for a in run["size"].tasks[0].attempts] == ["failed", "completed"]
    assert any("an input is lost; big runs again" in notice for notice in bench.watcher.notices)


def test_an_input_that_is_lost_again_and_again_fails_the_step(bench: Bench) -> None:

    from upshift.backends.fake import Fail

    def lose(job: Job) -> Outcome:
        if job.spec.task.step == "size":
            return Fail("infrastructure", "BlobMissing", lost=(digest_of(job),))
        return bench.script(job)

    bench.cluster.script = lose
    graph = big_and_size(bench)
    with pytest.raises(RunFailed, match="step size failed"):
        bench.run(graph)
    assert bench.ran() == ["big", "size"] * 4


def test_a_reused_list_that_cannot_be_read_is_made_again(bench: Bench) -> None:
    def words(n: int) -> list[str]:
        return ["x" * 5000] * n

    steps = {"words": bench.step(words), "size": bench.step(size)}
    nodes = [
        Node(name="words", step="words", inputs={"n": bench.const(40)}, by_item=("output",)),
        Node(name="size", step="size", inputs={"data": FromStep(node="words")}, over=("data",)),
    ]
    graph = bench.graph(nodes, steps, FromStep(node="size"))
    first = bench.run(graph)
    artifact = first["words"].tasks[0].artifacts["output"]
    assert artifact.inline is None
    bench.store.blob_path(artifact.digest).unlink()
    run = bench.run(graph)
    assert run.output == [5000] * 40


def test_a_run_of_another_project_is_no_earlier_run_of_this_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "project", elsewhere)
        bench.run(chain(bench))
        assert set(reasons(bench.run(chain(bench, n=4)))) - {"first run", None}
    assert reasons(bench.run(chain(bench, n=5)))[0] == "first run"
    assert reasons(bench.run(chain(bench, n=6)))[0] != "first run"
