"""What a plan says is what the next run does; making one leaves no trace of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_kit import Bench, changed

from upshift.backends.base import Ask, Capabilities, Job, Offer
from upshift.backends.fake import FakeCluster
from upshift.config import DockerSettings, ResourceSettings
from upshift.engine import RunOptions
from upshift.engine.forecast import make_plan
from upshift.errors import MissingExtra, RequestRefused, RunFailed
from upshift.model.graph import FromStep, Graph, Node
from upshift.model.spec import Code, Hardware, Launch
from upshift.model.spec.hardware import Shortfall
from upshift.report.views.plan import Edge, Plan, PlannedStep, plan_as_json


def numbers(n: int) -> list[int]:
    return list(range(n))


def double(x: int) -> int:
    return 2 * x


def total(values: list[int]) -> int:
    return sum(values)


def is_large(value: int) -> bool:
    return value > 100


def plan_of(bench: Bench, graph: Graph, **options: object) -> Plan:
    return make_plan(
        graph,
        code=Code(project=str(bench.project)),
        configuration=bench.configuration,
        options=RunOptions(**options),  # type: ignore[arg-type]
        open_backend=bench.cluster.open,
        clock=bench.clock,
    )


def scripts_of(bench: Bench, graph: Graph, scripts: Callable[[Sequence[Job]], list[str]]) -> Plan:
    """A plan with the scripts of a place that writes these."""

    def opened(*arguments: Any, **options: Any) -> Any:
        backend: Any = bench.cluster.open(*arguments, **options)
        backend.scripts = scripts
        return backend

    return make_plan(
        graph,
        code=Code(project=str(bench.project)),
        configuration=bench.configuration,
        options=RunOptions(),
        open_backend=opened,
        clock=bench.clock,
        scripts=True,
    )


def step_of(plan: Plan, name: str) -> PlannedStep:
    return next(step for step in plan.steps if step.name == name)


def actions(plan: Plan) -> dict[str, list[str]]:
    return {step.name: [task.action for task in step.tasks] for step in plan.steps}


def fan(bench: Bench, *, n: int = 3, **fields: object) -> Graph:
    """numbers, double for each of them, their total."""
    steps = {
        "numbers": bench.step(numbers),
        "double": bench.step(double, **fields),
        "total": bench.step(total),
    }
    nodes = [
        Node(name="numbers", step="numbers", inputs={"n": bench.const(n)}, by_item=("output",)),
        Node(name="double", step="double", inputs={"x": FromStep(node="numbers")}, over=("x",)),
        Node(name="total", step="total", inputs={"values": FromStep(node="double")}),
    ]
    return bench.graph(nodes, steps, FromStep(node="total"))


def gated(bench: Bench, value: int, **fields: object) -> Graph:
    """A step that runs only when another one says so, and one that needs it."""
    steps = {"is_large": bench.step(is_large), "double": bench.step(double, **fields)}
    nodes = [
        Node(name="is_large", step="is_large", inputs={"value": bench.const(value)}),
        Node(name="double", step="double", inputs={"x": bench.const(1)}, when=FromStep(node="is_large")),
        Node(name="again", step="double", inputs={"x": FromStep(node="double")}),
    ]
    return bench.graph(nodes, steps)


def test_a_plan_runs_nothing_and_records_no_run(bench: Bench) -> None:
    plan_of(bench, fan(bench))
    assert bench.cluster.submitted == []
    assert bench.catalog.runs() == []
    assert not (bench.store.root / "runs").exists()


def test_before_the_first_run_only_what_needs_nothing_is_known_to_run(bench: Bench) -> None:
    plan = plan_of(bench, fan(bench))
    assert actions(plan) == {"numbers": ["runs"], "double": ["depends"], "total": ["depends"]}
    assert [step.length for step in plan.steps] == [1, None, 1]
    task = step_of(plan, "total").tasks[0]
    assert (task.reason, task.depends_on) == ("first run", ("double",))


def test_after_a_run_everything_is_reused_and_its_run_is_named(bench: Bench) -> None:
    run = bench.run(fan(bench))
    plan = plan_of(bench, fan(bench))
    assert actions(plan) == {"numbers": ["reused"], "double": ["reused"] * 3, "total": ["reused"]}
    assert {task.origin for step in plan.steps for task in step.tasks} == {run.id}


def test_what_was_made_from_a_degraded_result_is_not_promised_again(bench: Bench) -> None:
    def nothing(ask: Ask) -> Offer:
        request = ask.request
        less = Shortfall(field="gpu_count", asked="2 GPUs", got="none", why="none is here")
        return Offer(granted=Hardware(gpus=()), shortfalls=(less,) if request.gpu_count else ())

    def graph(**fields: object) -> Graph:
        asks = ResourceSettings(**fields)  # type: ignore[arg-type]
        return bench.graph(
            {
                "numbers": (bench.step(numbers, request=asks), {"n": bench.const(3)}),
                "total": (bench.step(total), {"values": FromStep(node="numbers")}),
                "double": (bench.step(double), {"x": FromStep(node="total")}),
            }
        )

    bench.cluster = FakeCluster(bench.script, offer=nothing)
    first = bench.run(graph(gpu_count=2))
    bench.run(graph(gpu_count=2))
    from_numbers = f"the result of run {first.id} was made from what numbers made with less than asked for"
    plan = plan_of(bench, graph(cpu_count=1), strict=True)
    assert {step.name: (step.tasks[0].action, step.tasks[0].reason) for step in plan.steps} == {
        "numbers": ("runs", f"the result of run {first.id} was made with less than the step asks for"),
        "total": ("depends", from_numbers),
        "double": ("depends", from_numbers),
    }
    run = bench.run(graph(cpu_count=1), strict=True)
    assert [run[name].tasks[0].cache_reason for name in ("total", "double")] == [from_numbers] * 2
    assert actions(plan_of(bench, graph(cpu_count=1), strict=True))["double"] == ["reused"]


def test_an_item_by_item_map_is_looked_up_item_by_item(bench: Bench) -> None:
    bench.run(fan(bench, n=2))
    graph = fan(bench, n=4)
    bench.run(changed(graph, nodes=graph.nodes[:1], output=None))  # only the numbers
    plan = plan_of(bench, graph)
    assert actions(plan) == {
        "numbers": ["reused"],
        "double": ["reused", "reused", "runs", "runs"],
        "total": ["depends"],
    }
    assert step_of(plan, "double").length == 4
    run = bench.run(graph)
    assert [task.cached for task in run["double"].tasks] == [True, True, False, False]
    reasons = [task.cache_reason for task in run["double"].tasks]
    assert [task.reason for task in step_of(plan, "double").tasks] == reasons


def test_what_follows_changed_code_depends_on_it(bench: Bench) -> None:
    bench.run(fan(bench))
    graph = fan(bench, code={"steps.double (steps.py)": "code:2"})
    plan = plan_of(bench, graph)
    assert actions(plan) == {"numbers": ["reused"], "double": ["runs"] * 3, "total": ["depends"]}
    assert step_of(plan, "double").tasks[0].reason == "code changed: double in steps.py"
    follower = step_of(plan, "total").tasks[0]
    assert (follower.depends_on, follower.reason) == (("double",), None)


def test_without_reuse_everything_is_known_to_run(bench: Bench) -> None:
    bench.run(fan(bench))
    plan = plan_of(bench, fan(bench), reuse=False)
    assert actions(plan) == {"numbers": ["runs"], "double": ["runs"], "total": ["runs"]}
    assert {task.reason for step in plan.steps for task in step.tasks} == {
        "reuse is switched off for this run"
    }
    assert step_of(plan, "total").tasks[0].depends_on == ("double",)


def test_a_step_that_is_never_reused_runs_whatever_comes_before_it(bench: Bench) -> None:
    plan = plan_of(bench, fan(bench, cache=False))
    assert actions(plan)["double"] == ["runs"]
    assert step_of(plan, "double").tasks[0].reason == "cache=False"


def test_a_condition_that_is_known_decides_and_one_that_is_not_leaves_it_open(bench: Bench) -> None:
    graph = gated(bench, 5, cache=False)
    plan = plan_of(bench, graph)
    assert actions(plan) == {"is_large": ["runs"], "double": ["depends"], "again": ["depends"]}
    bench.run(graph)
    plan = plan_of(bench, graph)
    assert actions(plan) == {"is_large": ["reused"], "double": ["skipped"], "again": ["skipped"]}
    assert step_of(plan, "double").tasks[0].reason == "is_large gave False"
    assert step_of(plan, "again").tasks[0].reason == "needs double, which was skipped"


def test_what_is_bound_to_fail_is_said(bench: Bench) -> None:
    graph = fan(bench)
    mapped = changed(
        graph.nodes[1], inputs={"x": FromStep(node="numbers"), "y": bench.listed(1, 2)}, over=("x", "y")
    )
    graph = changed(graph, nodes=(graph.nodes[0], mapped, graph.nodes[2]))
    bench.run(changed(graph, nodes=graph.nodes[:1], output=None))
    plan = plan_of(bench, graph)
    assert actions(plan) == {"numbers": ["reused"], "double": ["fails"], "total": ["fails"]}
    assert "lists of unequal length" in (step_of(plan, "double").tasks[0].reason or "")
    assert step_of(plan, "total").tasks[0].reason == "what it needs fails"
    assert "the run would fail at step double: double is mapped over" in str(plan.problem)
    assert plan.exit_code == plan_as_json(plan)["exit_code"] == 1
    with pytest.raises(RunFailed) as failed:
        bench.run(graph)
    assert failed.value.exit_code == plan.exit_code


def test_edges_say_what_kind_of_need_they_are(bench: Bench) -> None:
    plan = plan_of(bench, fan(bench))
    assert step_of(plan, "double").needs == (Edge(step="numbers", kind="item"),)
    assert step_of(plan, "total").needs == (Edge(step="double", kind="data"),)
    assert step_of(plan_of(bench, gated(bench, 5)), "double").needs == (Edge(step="is_large", kind="when"),)


def no_gpus(ask: Ask) -> Offer:
    request = ask.request
    short = Shortfall(field="gpu_count", asked="8 GPUs", got="none", why="this machine has no GPU")
    return Offer(
        granted=Hardware(cpu_count=request.cpu_count, gpus=()),
        shortfalls=(short,) if request.gpu_count else (),
    )


def greedy(bench: Bench) -> Graph:
    request = ResourceSettings(gpu_count=8, memory="4GB")
    origins = {"gpu_count": "flow.py:5 (@step)", "memory": "flow.py:20 (@pipeline)"}
    definition = bench.step(double, request=request, origins=origins)
    return bench.graph({"double": (definition, {"x": bench.const(1)})})


def test_a_request_has_the_origin_of_each_value_and_what_would_be_granted(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    plan = plan_of(bench, greedy(bench))
    step = plan.steps[0]
    assert {v.field: (v.value, v.origin) for v in step.request} == {
        "gpu_count": (8, "flow.py:5 (@step)"),
        "memory": (4_000_000_000, "flow.py:20 (@pipeline)"),
    }
    assert step.granted == Hardware(gpus=())
    assert [s.why for s in step.shortfalls] == ["this machine has no GPU"]
    assert not step.refused
    assert plan.refusals == ()


def test_a_strict_plan_holds_the_very_error_of_the_run(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    graph = greedy(bench)
    plan = plan_of(bench, graph, strict=True)
    assert plan.steps[0].refused
    with pytest.raises(RequestRefused) as caught:
        bench.run(graph, strict=True)
    assert [str(error) for error in plan.refusals] == [str(caught.value)]


def test_a_launcher_that_is_not_here_is_missed_by_what_would_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upshift.engine.offers.is_installed", lambda module: False)
    here = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    graph = fan(bench, launch=Launch(launcher="accelerate"))
    bench.run(graph)  # elsewhere it may be there
    bench.cluster = FakeCluster(bench.script, capabilities=here)
    reused = plan_of(bench, graph)
    assert (reused.exit_code, reused.refusals) == (0, ())
    plan = plan_of(bench, graph, reuse=False)
    assert [step.name for step in plan.steps if step.refused] == ["double"]
    assert plan.exit_code == 2
    with pytest.raises(MissingExtra) as caught:
        bench.run(graph, reuse=False)
    assert [str(error) for error in plan.refusals] == [str(caught.value)]


def test_an_image_that_is_not_used_is_a_shortfall(bench: Bench) -> None:
    plain = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    bench.cluster = FakeCluster(bench.script, capabilities=plain)
    docker = DockerSettings(parent_image="python:3.11")
    graph = bench.graph({"double": (bench.step(double, docker=docker), {"x": bench.const(1)})})
    step = plan_of(bench, graph).steps[0]
    assert step.docker == {"parent_image": "python:3.11"}
    assert [s.field for s in step.shortfalls] == ["image"]


def test_the_code_package_is_described_and_not_made(bench: Bench) -> None:
    (bench.project / "flow.py").write_text("x = 1\n")
    (bench.project / ".env").write_text("TOKEN=1\n")
    (bench.project / "pyproject.toml").write_text("")
    blobs = sorted(bench.store.root.rglob("*"))
    code = plan_of(bench, bench.graph({"numbers": (bench.step(numbers), {"n": bench.const(1)})})).code
    assert (code.files, code.bytes) == (2, 6)
    assert [(item.path, item.why) for item in code.left_out] == [(".env", "looks like a secret")]
    assert sorted(bench.store.root.rglob("*")) == blobs


def test_json_says_the_same(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    data = json.loads(json.dumps(plan_as_json(plan_of(bench, greedy(bench), strict=True))))
    assert data["refused"][0]["what"] == "target 'fake' cannot give what double asks for"
    assert data["exit_code"] == 2
    (step,) = data["steps"]
    assert step["request"]["gpu_count"] == {"value": 8, "origin": "flow.py:5 (@step)"}
    assert step["tasks"] == [
        {"index": None, "action": "runs", "reason": "first run", "depends_on": [], "origin": None}
    ]
    assert step["granted"]["gpus"] == []


def test_equal_tasks_are_planned_to_share_no_result(bench: Bench) -> None:
    def ones(count: int) -> Graph:
        nodes = [
            Node(name="double", step="double", inputs={"x": bench.listed(*[1] * count)}, over=("x",)),
            Node(name="double_2", step="double", inputs={"x": bench.const(1)}),
        ]
        return bench.graph(nodes, {"double": bench.step(double)})

    bench.run(ones(2))
    planned = actions(plan_of(bench, ones(3)))
    assert planned == {"double": ["reused", "reused", "runs"], "double_2": ["reused"]}


def test_a_plan_has_what_would_be_submitted_for_what_is_not_reused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "never-to-be-seen")
    brings = Capabilities(fields=frozenset({"cpu_count"}), secrets=frozenset({"env"}), remote=False)
    bench.cluster = FakeCluster(bench.script, capabilities=brings)

    def scripts(jobs: Sequence[Job]) -> list[str]:
        return [f"{job.spec.task}: {job.spec_path}, never-to-be-seen" for job in jobs]

    graph = fan(bench, secrets={"TOKEN": "env:TOKEN"})
    first = scripts_of(bench, graph, scripts)
    # How many tasks there are is not known before the first step has run: one stands for all of them.
    assert step_of(first, "double").scripts == ("double: runs/RUN/tasks/double/0.1.spec.json, ***",)
    assert plan_as_json(first)["steps"][1]["scripts"] == list(step_of(first, "double").scripts or ())
    assert list(bench.folder.rglob("RUN")) == []
    bench.run(graph)
    after = scripts_of(bench, fan(bench, cache=False), scripts)
    assert step_of(after, "numbers").scripts == ()
    assert len(step_of(after, "double").scripts or ()) == 3
    assert plan_of(bench, graph).steps[0].scripts is None
