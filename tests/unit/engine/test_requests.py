"""What a step asks for is honoured, or refused before anything runs, or said in a line."""

from __future__ import annotations

import pytest
from engine_kit import Bench

from upshift.backends.base import Capabilities, Offer, Shortfall
from upshift.backends.fake import FakeCluster
from upshift.config import DockerSettings, ResourceSettings
from upshift.errors import NotFound, RequestRefused
from upshift.graph import FromStep
from upshift.spec import Hardware


def one() -> int:
    return 1


def double(x: int) -> int:
    return 2 * x


def no_gpus(request: ResourceSettings) -> Offer:
    short = ()
    if request.gpu_count:
        short = (
            Shortfall(
                field="gpu_count",
                asked=f"{request.gpu_count} GPUs",
                got="none",
                why="this machine has no GPU",
            ),
        )
    return Offer(granted=Hardware(cpu_count=request.cpu_count, gpus=()), shortfalls=short)


def test_best_effort_says_in_one_line_what_a_step_does_not_get(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    graph = bench.graph(
        {
            "one": (bench.step(one, request=ResourceSettings(gpu_count=8)), {}),
            "double": (bench.step(double), {"x": FromStep(node="one")}),
        }
    )
    run = bench.run(graph)
    assert run.status == "completed"
    assert bench.watcher.notices == ["one: asked 8 GPUs, gets none: this machine has no GPU"]
    results = [bench.store.read_result(job.spec.task, 1) for job in bench.cluster.submitted]
    assert [r.degraded for r in results if r] == [True, True], "what is made from it is degraded as well"
    bench.watcher.notices.clear()
    assert all(task.cached for step in bench.run(graph).steps for task in step.tasks)
    assert bench.watcher.notices == [], "what is reused asks for nothing"


def test_strict_refuses_before_anything_runs_and_names_every_step(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    asking = bench.step(one, request=ResourceSettings(gpu_count=8), origins={"gpu_count": "flow.py:5"})
    other = bench.step(double, request=ResourceSettings(gpu_count=1))
    graph = bench.graph({"one": (asking, {}), "double": (other, {"x": FromStep(node="one")})})
    with pytest.raises(RequestRefused) as caught:
        bench.run(graph, strict=True)
    text = str(caught.value)
    assert "flow.py:5" in text
    assert "one (flow.py:5): asked 8 GPUs, gets none: this machine has no GPU" in text
    assert "double (steps.py:1): asked 1 GPUs" in text
    assert "--strict" in text
    assert bench.cluster.submitted == []
    assert bench.catalog.runs() == []
    assert bench.watcher.started == []


def test_a_backend_that_is_strict_by_itself_refuses_unless_told_otherwise(bench: Bench) -> None:
    strict = Capabilities(fields=frozenset({"cpu_count"}), images=True, remote=False, strict=True)
    bench.cluster = FakeCluster(bench.script, capabilities=strict)
    graph = bench.graph({"one": (bench.step(one, request=ResourceSettings(disk="1GB")), {})})
    with pytest.raises(RequestRefused, match="disk="):
        bench.run(graph)
    assert bench.run(graph, strict=False).status == "completed"


def test_what_cannot_be_granted_at_all_is_refused_even_in_best_effort(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=lambda request: Offer(granted=None))
    with pytest.raises(RequestRefused, match="one"):
        bench.run(bench.graph({"one": (bench.step(one), {})}), strict=False)


def test_an_image_that_is_not_used_is_said_once(bench: Bench) -> None:
    plain = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    bench.cluster = FakeCluster(bench.script, capabilities=plain)
    docker = DockerSettings(parent_image="python:3.11")
    graph = bench.graph(
        {
            "one": (bench.step(one, docker=docker), {}),
            "double": (bench.step(double, docker=docker), {"x": FromStep(node="one")}),
        }
    )
    bench.run(graph)
    assert len(bench.watcher.notices) == 1
    assert bench.watcher.notices[0].startswith("one, double: image python:3.11 is not used")
    with pytest.raises(RequestRefused, match=r"image python:3\.11"):
        bench.run(graph, strict=True)


def test_a_degraded_result_is_not_reused_where_the_request_is_strict(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    graph = bench.graph({"one": (bench.step(one, request=ResourceSettings(gpu_count=1)), {})})
    first = bench.run(graph)
    assert bench.run(graph)["one"].tasks[0].cached, "best effort takes it"
    bench.cluster = FakeCluster(bench.script)
    task = bench.run(graph, strict=True)["one"].tasks[0]
    assert not task.cached
    assert task.cache_reason == f"the result of run {first.id} was made with less than the step asks for"


def test_an_unknown_target_of_a_step_names_the_step_and_the_line(bench: Bench) -> None:
    with pytest.raises(NotFound, match="step one: no target is named 'clutser'") as caught:
        bench.run(bench.graph({"one": (bench.step(one, on="clutser"), {})}))
    assert "steps.py:1" in str(caught.value)
