"""What a step asks for is honoured, or refused before anything runs, or said in a line."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from engine_kit import Bench
from test_making_plans import plan_of

from upshift.backends.base import Ask, Capabilities, Offer
from upshift.backends.fake import FakeCluster
from upshift.config import DockerSettings, ResourceSettings
from upshift.engine.offers import needed_by
from upshift.errors import ImageError, MissingExtra, NotFound, RequestRefused, together
from upshift.model.graph import FromStep
from upshift.model.spec import Device, Hardware, Launch
from upshift.model.spec.hardware import Shortfall

H100 = Device(vendor="nvidia", model="H100")


def one() -> int:
    return 1


def double(x: int) -> int:
    return 2 * x


def no_gpus(ask: Ask) -> Offer:
    request = ask.request
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
    assert bench.watcher.notices == ["one: reused, made with less than it asks for: asked 8 GPUs, got none"]


def test_processes_that_the_hardware_does_not_allow_are_a_shortfall_too(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    launch = Launch(launcher="accelerate", processes=8, devices=True)
    asking = bench.step(
        one, request=ResourceSettings(gpu_count=8), launch=launch, origins={"launch": "flow.py:4"}
    )
    graph = bench.graph({"one": (asking, {})})
    bench.run(graph)
    assert bench.watcher.notices == [
        "one: asked 8 GPUs, gets none: this machine has no GPU; "
        "asked 8 processes, gets 1 on CPUs: each was to have a GPU, and it gets none"
    ]
    (job,) = bench.cluster.submitted
    assert job.spec.launch == attrs.evolve(launch, per_node=1)
    assert job.spec.granted is not None and job.spec.granted.processes == 1
    assert job.spec.degraded
    with pytest.raises(RequestRefused, match=r"one \(flow.py:4\): asked 8 processes, gets 1 on CPUs"):
        bench.run(graph, strict=True, reuse=False)


@pytest.mark.parametrize(
    ("launch", "request_", "granted", "said"),
    [
        (
            Launch(launcher="torchrun", processes=3),
            ResourceSettings(num_nodes=3),
            Hardware(nodes=2),
            "asked 3 processes, gets 2: 1 on each node, and it gets 2 nodes",
        ),
        (
            Launch(launcher="torchrun", processes=4, devices=True),
            ResourceSettings(num_nodes=2, gpu_count=2),
            Hardware(nodes=1, gpus=(H100, H100, H100)),
            "asked 4 processes, gets 2: 2 on each node, and it gets 1 node",
        ),
        (
            Launch(launcher="torchrun", processes=8, devices=True),
            ResourceSettings(num_nodes=2, gpu_count=4),
            Hardware(nodes=2, gpus=(H100, H100)),
            "asked 8 processes, gets 4: one for each GPU that it gets",
        ),
    ],
)
def test_why_there_are_fewer_processes_is_what_is_short(
    bench: Bench, launch: Launch, request_: ResourceSettings, granted: Hardware, said: str
) -> None:
    bench.cluster = FakeCluster(bench.script, offer=lambda ask: Offer(granted=granted))
    bench.run(bench.graph({"one": (bench.step(one, request=request_, launch=launch), {})}))
    assert [line for line in bench.watcher.notices if "asked" in line] == [f"one: {said}"]


def test_a_launcher_that_is_not_here_is_missed_before_anything_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upshift.engine.offers.is_installed", lambda module: False)
    launched = bench.step(one, launch=Launch(launcher="accelerate"), origins={"launch": "flow.py:4"})
    graph = bench.graph({"one": (launched, {})})
    bench.run(graph)  # in an image, or elsewhere, it may be there
    here = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    bench.cluster = FakeCluster(bench.script, capabilities=here)
    with pytest.raises(MissingExtra, match="step one runs with Accelerate, which is not installed") as caught:
        bench.run(graph, reuse=False)
    assert caught.value.where == "flow.py:4"
    assert 'DockerSettings(requirements=["accelerate"])' in str(caught.value)
    assert len(bench.cluster.submitted) == 0
    run = bench.run(graph)
    assert run["one"].tasks[0].cached, "what is reused needs no launcher"


def test_strict_refuses_before_anything_runs_and_names_every_step(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    asking = bench.step(one, request=ResourceSettings(gpu_count=8), origins={"gpu_count": "flow.py:5"})
    other = bench.step(double, request=ResourceSettings(gpu_count=1))
    graph = bench.graph({"one": (asking, {}), "double": (other, {"x": FromStep(node="one")})})
    with pytest.raises(RequestRefused) as caught:
        bench.run(graph, strict=True)
    text = str(caught.value)
    assert "flow.py:5" in text
    assert text.count("flow.py:5") == 1, "where it is need not be said again"
    assert "target 'fake' cannot give what one and double ask for" in text
    assert "one: asked 8 GPUs, gets none: this machine has no GPU" in text
    assert "double (steps.py:1): asked 1 GPUs" in text
    assert "--strict" in text
    assert bench.cluster.submitted == []
    assert bench.catalog.runs() == []
    assert bench.watcher.started == []


def test_a_backend_that_is_strict_by_itself_refuses_unless_told_otherwise(bench: Bench) -> None:
    strict = Capabilities(fields=frozenset({"cpu_count"}), images=True, remote=False, strict=True)
    bench.cluster = FakeCluster(bench.script, capabilities=strict)
    graph = bench.graph({"one": (bench.step(one, request=ResourceSettings(disk="1GB")), {})})
    with pytest.raises(RequestRefused, match="disk=") as caught:
        bench.run(graph)
    assert str(caught.value).endswith("With --best-effort, the run continues with what is available.")
    assert bench.run(graph, strict=False).status == "completed"


def test_a_step_that_says_itself_where_it_runs_is_not_moved_by_the_command_line(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    asking = bench.step(
        one, request=ResourceSettings(gpu_count=8), on="fake", origins={"on": "flow.py:7 (@step)"}
    )
    with pytest.raises(RequestRefused) as caught:
        bench.run(bench.graph({"one": (asking, {})}), strict=True)
    assert caught.value.fix is not None
    assert "one has on='fake' at flow.py:7 (@step), which --on does not change" in caught.value.fix
    assert "choose another target" not in caught.value.fix


def test_all_that_refuses_a_run_is_one_error() -> None:
    lack = RequestRefused("no GPU", where="flow.py:5", why="there is none", fix="Ask for less.")
    image = ImageError("the image will not do", where="flow.py:9", why="it has no CUDA", fix="Take another.")
    assert together([]) is None and together([image]) is image
    assert str(together([lack, image])).splitlines() == [
        "no GPU",
        "  where: flow.py:5",
        "  why:   there is none",
        "         the image will not do (flow.py:9): it has no CUDA",
        "  fix:   Ask for less.",
        "         Take another.",
    ]


def test_what_cannot_be_granted_at_all_is_refused_even_in_best_effort(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=lambda ask: Offer(granted=None))
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


def test_what_this_environment_lacks_of_an_image_is_in_the_line(bench: Bench) -> None:
    plain = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    bench.cluster = FakeCluster(bench.script, capabilities=plain)
    lacking = DockerSettings(requirements=["attrs", "no-such-package>=2"])
    graph = bench.graph(
        {
            "one": (bench.step(one, docker=lacking), {}),
            "double": (
                bench.step(
                    double, docker=DockerSettings(requirements=["attrs"], runtime_environment={"A": "1"})
                ),
                {"x": FromStep(node="one")},
            ),
        }
    )
    bench.run(graph)
    assert len(bench.watcher.notices) == 1, "the other step lacks nothing"
    assert bench.watcher.notices[0].startswith("one: its own image is not used")
    assert bench.watcher.notices[0].endswith("environment of the run, which lacks no-such-package>=2")


def test_a_degraded_result_is_not_reused_where_the_request_is_strict(bench: Bench) -> None:
    bench.cluster = FakeCluster(bench.script, offer=no_gpus)
    graph = bench.graph({"one": (bench.step(one, request=ResourceSettings(gpu_count=1)), {})})
    first = bench.run(graph)
    assert bench.run(graph)["one"].tasks[0].cached, "best effort takes it"
    bench.cluster = FakeCluster(bench.script)
    task = bench.run(graph, strict=True)["one"].tasks[0]
    assert not task.cached
    assert task.cache_reason == f"the result of run {first.id} was made with less than the step asks for"


TWO = Launch(launcher="accelerate", processes=2, devices=True, arguments={"use_deepspeed": True})


def test_a_degraded_result_is_reused_only_where_no_more_is_granted_now_and_a_line_says_so(
    bench: Bench,
) -> None:
    bench.cluster = FakeCluster(bench.script, offer=lambda ask: Offer(granted=Hardware(gpus=())))
    request = ResourceSettings(gpu_count=2)
    graph = bench.graph({"one": (bench.step(one, request=request, launch=TWO), {})})
    first = bench.run(graph)
    bench.watcher.notices.clear()

    task = bench.run(graph)["one"].tasks[0]
    assert task.cached
    assert str(task.cache_reason).endswith(f"as run {first.id}, made with less than the step asks for")
    assert bench.watcher.notices == [
        "one: reused, made with less than it asks for: asked 2 processes, got 1 on CPUs"
    ]

    bench.cluster = FakeCluster(bench.script, offer=lambda ask: Offer(granted=Hardware(gpus=(H100,))))
    forecast = plan_of(bench, graph).steps[0].tasks[0]
    task = bench.run(graph)["one"].tasks[0]
    assert not task.cached
    assert task.cache_reason == forecast.reason
    assert task.cache_reason == f"the result of run {first.id} was made with less than the step gets now"
    again = bench.run(graph)["one"].tasks[0]
    assert again.cached, "by one process on one GPU, as it would be now"


@pytest.mark.parametrize(
    ("arguments", "there", "missed"),
    [
        ({"use_deepspeed": True}, ["accelerate"], "trains with DeepSpeed"),
        ({"use_megatron_lm": True}, ["accelerate"], "trains with Megatron-LM"),
        (
            {"mixed_precision": "fp8"},
            ["accelerate"],
            "trains in FP8 by torchao, transformer-engine or ms-amp, none of which is",
        ),
        (
            {"mixed_precision": "fp8", "fp8_backend": "te"},
            ["accelerate", "torchao"],
            "by transformer-engine,",
        ),
        ({"mixed_precision": "fp8"}, ["accelerate", "transformer_engine"], None),
        ({"mixed_precision": "bf16"}, ["accelerate"], None),
    ],
)
def test_what_accelerate_needs_for_its_arguments_is_missed_before_anything_runs(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    there: list[str],
    missed: str | None,
) -> None:
    monkeypatch.setattr("upshift.engine.offers.is_installed", there.__contains__)
    here = Capabilities(fields=frozenset(), images=False, remote=False, strict=False)
    bench.cluster = FakeCluster(
        bench.script, capabilities=here, offer=lambda ask: Offer(granted=Hardware(gpus=(H100,)))
    )
    launch = Launch(launcher="accelerate", processes=1, devices=True, arguments=arguments)
    graph = bench.graph({"one": (bench.step(one, launch=launch), {})})
    refusals = plan_of(bench, graph).refusals
    if missed is None:
        assert refusals == ()
        bench.run(graph)
    else:
        (refusal,) = refusals
        assert missed in str(refusal) and "installed here" in str(refusal)
        with pytest.raises(MissingExtra):
            bench.run(graph)


def test_a_configuration_file_may_ask_for_deepspeed_too() -> None:
    config = {"config_file": json.dumps({"distributed_type": "DEEPSPEED", "mixed_precision": "no"})}
    launch = Launch(launcher="accelerate", processes=2, devices=True, files=config)
    assert [packages for _, _, packages in needed_by(launch, on_devices=True)] == [
        ("accelerate",),
        ("deepspeed",),
    ]
    assert [packages for _, _, packages in needed_by(launch, on_devices=False)] == [("accelerate",)]
    assert list(needed_by(Launch(launcher="torchrun"), on_devices=True)) == []


def test_an_unknown_target_of_a_step_names_the_step_and_the_line(bench: Bench) -> None:
    with pytest.raises(NotFound, match="step one: no target is named 'clutser'") as caught:
        bench.run(bench.graph({"one": (bench.step(one, on="clutser"), {})}))
    assert "steps.py:1" in str(caught.value)


def test_a_backend_is_asked_with_all_that_a_step_says(bench: Bench) -> None:
    asked = []

    def offer(ask: Ask) -> Offer:
        asked.append(ask)
        return Offer(granted=Hardware())

    bench.cluster = FakeCluster(bench.script, offer=offer)
    step = bench.step(
        one,
        request=ResourceSettings(cpu_count=2),
        timeout=60,
        secrets={"TOKEN": "file:/dev/null"},
        backends={"fake": {"queue": "long"}, "other": {"queue": "short"}},
    )
    with pytest.raises(RequestRefused, match="TOKEN"):  # the fake backend brings none
        bench.run(bench.graph({"one": (step, {})}))
    assert asked == [
        Ask(
            request=ResourceSettings(cpu_count=2),
            timeout=60,
            secrets={"TOKEN": "file:/dev/null"},
            settings={"queue": "long"},
        )
    ]
