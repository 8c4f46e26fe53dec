"""Steps of several processes, from outside: how many start, what is said of it, and what is refused."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

import trees
from nvml import FakeNvml, Gpu
from project import Project
from upshift.runtime.launch.ranks import listed_cpus

LAUNCH = "from upshift import current, resources, run_with_accelerate, run_with_torchrun\n"
WORLD = (
    LAUNCH
    + """
{above}
@step{options}
def train(x: int = 1) -> list:
    print("here")
    return [current.rank, current.world_size, x]

@pipeline{of_pipeline}
def training(x: int = 1):
    return train({call})
"""
)


def _code(above: str, *, options: str = "", of_pipeline: str = "", call: str = "x") -> str:
    return WORLD.format(above=above, options=options, of_pipeline=of_pipeline, call=call)


def _gpus(count: int) -> str:
    return f'(settings={{"resources": ResourceSettings(gpu_count={count})}})'


def _plan(project: Project, code: str, *args: str, **options: Any) -> dict[str, Any]:
    project.write(code)
    (step,) = json.loads(project.upshift("plan", "pipeline.py", "--json", *args, **options).out)["steps"]
    return dict(step)


def _attempt(project: Project, **options: Any) -> dict[str, Any]:
    shown = json.loads(project.upshift("show", "latest", "--json", **options).out)
    return dict(shown["steps"][0]["tasks"][0]["attempts"][-1])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _output(project: Project) -> Any:
    return project.python("-c", "import upshift; print(upshift.get_run('latest').output)").out.strip()


@pytest.mark.parametrize("call", ["x", "x=x", "3"])
def test_arguments_may_be_given_by_position_or_by_name(project: Project, call: str) -> None:
    project.run(_code("@run_with_torchrun(nproc_per_node=2)", call=call), "--param", "x=3")
    assert _output(project) == "[0, 2, 3]"


def test_it_may_stand_below_the_step_and_beside_others(project: Project) -> None:
    code = LAUNCH + (
        "@resources(memory='1GB')\n@step\n@run_with_torchrun(nproc_per_node=3)\ndef train():\n"
        "    return [current.rank, current.world_size]\n@pipeline\ndef training():\n"
        "    return train.with_options(name='again')()\n"
    )
    project.run(code)
    assert _output(project) == "[0, 3]"
    attempt = _attempt(project)
    assert (attempt["asked"]["processes"], attempt["granted"]["processes"]) == (3, 3)
    assert attempt["asked"]["memory"] == 10**9


def test_each_task_of_a_mapped_step_has_its_processes(project: Project) -> None:
    project.run(
        LAUNCH
        + """
@run_with_torchrun(nproc_per_node=2)
@step
def train(x: int) -> list:
    return [current.rank, current.world_size, x]

@pipeline
def training():
    return train.map([1, 2])
"""
    )
    assert _output(project) == "[[0, 2, 1], [0, 2, 2]]"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("run_with_accelerate(train)(1)", "@run_with_accelerate(num_processes=…)"),
        ("run_with_accelerate(num_processes=2)(train)(1)", "@run_with_accelerate(num_processes=2)"),
    ],
)
def test_applied_inside_a_pipeline_it_shows_the_right_way(project: Project, body: str, shown: str) -> None:
    code = LAUNCH + f"@step\ndef train(x): pass\n@pipeline\ndef training():\n    {body}\n"
    for command in ("run", "plan"):
        project.write(code)
        outcome = project.upshift(command, "pipeline.py", expect=2)
        assert "run_with_accelerate is applied inside a pipeline" in outcome.err
        assert f"{shown}\n             @step\n" in outcome.err
        assert "pipeline.py:7" in outcome.err
        assert "Traceback" not in outcome.text
    project.write(
        code + "try:\n    training()\nexcept RuntimeError as error:\n    print('caught', type(error))\n"
    )
    assert "caught <class 'upshift.errors.MisuseError'>" in project.python("pipeline.py").out


def test_applied_inside_a_running_step_it_shows_the_right_way(project: Project) -> None:
    (project.folder / "late.py").write_text(LAUNCH + "@run_with_torchrun(nproc_per_node=2)\ndef g(): ...\n")
    code = LAUNCH + (
        "def helper(x):\n    return x\n"
        "@step\ndef train():\n    import late\n    return run_with_torchrun(nproc_per_node=2)(helper)(1)\n"
        "@pipeline\ndef training():\n    return train()\n"
    )
    outcome = project.run(code, expect=1)
    assert "run_with_torchrun is applied inside a running step" in outcome.err
    assert "@run_with_torchrun(nproc_per_node=2)" in outcome.err
    assert "late.py" not in outcome.err


def test_what_has_a_launcher_and_is_no_step_does_not_run_in_the_pipeline(project: Project) -> None:
    code = (
        LAUNCH + "@run_with_torchrun(nproc_per_node=2)\ndef train():\n    print('trained')\n"
        "@pipeline\ndef training():\n    train()\n"
    )
    project.write(code)
    for command in ("plan", "run"):
        refused = project.upshift(command, "pipeline.py", expect=2)
        assert "train is called in a pipeline, and is not a step" in refused.err
        assert "Put @step above it: pipeline.py:" in refused.err
        assert "trained" not in refused.out + refused.err


def test_called_in_another_step_it_says_once_that_it_is_one_process(project: Project) -> None:
    code = LAUNCH + (
        "@run_with_torchrun(nproc_per_node=2)\n@step\ndef train():\n    return current.world_size\n"
        "@step\ndef both():\n    return train() + train()\n"
        "@pipeline\ndef training():\n    return both()\n"
    )
    project.run(code)
    said = "train is called in a step, and runs in its process: @run_with_torchrun starts none there"
    assert project.upshift("logs", "latest", "both").out.count(said) == 1
    assert _output(project) == "2"


def test_a_contradiction_is_refused_by_plan_and_before_a_run(project: Project) -> None:
    code = _code("@run_with_accelerate(num_processes=4, multi_gpu=True)", options=_gpus(2))
    for command in ("plan", "run"):
        project.write(code)
        outcome = project.upshift(command, "pipeline.py", expect=2)
        assert "num_processes=4 contradicts gpu_count=2" in outcome.err
        assert "pipeline.py:4 (@run_with_accelerate) and pipeline.py:5 (@step)" in outcome.err
    of_pipeline = _gpus(2)
    outcome = project.run(
        _code("@run_with_accelerate(num_processes=4, multi_gpu=True)", of_pipeline=of_pipeline), expect=2
    )
    assert "num_processes=4 contradicts gpu_count=2" in outcome.err
    assert json.loads(project.upshift("runs", "--json").out) == []


def test_a_plan_shows_the_launch_and_who_said_it(project: Project) -> None:
    pytest.importorskip("accelerate")
    above = '@run_with_accelerate(num_processes=4, multi_gpu=True, mixed_precision="bf16", hang=60)'
    step = _plan(project, _code(above))
    assert step["launch"] == {
        "launcher": "accelerate",
        "processes": 4,
        "counted": True,
        "per_node": 1,
        "devices": True,
        "arguments": {"multi_gpu": True, "mixed_precision": "bf16"},
        "files": {},
        "port": None,
        "hang": 60,
        "numa_binding": None,
        "origin": "pipeline.py:4 (@run_with_accelerate)",
    }
    assert step["request"]["gpu_count"] == {"value": 4, "origin": "pipeline.py:4 (@run_with_accelerate)"}
    assert (step["asked"]["processes"], step["granted"]["processes"]) == (4, 1)
    text = " ".join(project.upshift("plan", "pipeline.py").out.split())
    assert (
        "launch accelerate, 4 processes, multi_gpu=True, mixed_precision=bf16, stopped after 1 min 00 s "
        "without progress: pipeline.py:4 (@run_with_accelerate)"
    ) in text
    assert "asked 4 processes, gets 1 on CPUs: each was to have a GPU, and it gets none" in text


def test_without_gpus_one_process_starts_on_cpus_and_a_line_says_so(project: Project) -> None:
    outcome = project.run(_code('@run_with_torchrun(nproc_per_node="gpu")', options=_gpus(4)))
    assert "asked 4 processes, gets 1 on CPUs: each was to have a GPU, and it gets none" in outcome.err
    assert _output(project) == "[0, 1, 1]"
    attempt = _attempt(project)
    assert (attempt["asked"]["processes"], attempt["granted"]["processes"]) == (4, 1)


def test_a_strict_run_is_refused_instead(project: Project) -> None:
    code = _code('@run_with_torchrun(nproc_per_node="gpu")', options=_gpus(4))
    outcome = project.run(code, "--strict", expect=2)
    assert "asked 4 processes, gets 1 on CPUs" in outcome.err
    assert "pipeline.py:4 (@run_with_torchrun)" in outcome.err


@pytest.mark.parametrize(
    ("processes", "gpus", "there", "started", "said"),
    [
        (2, 2, 2, 2, None),
        (4, 4, 2, 2, "asked 4 processes, gets 2: one for each GPU that it gets"),
        (2, 4, 4, 2, "train: 2 processes use 2 of the 4 GPUs: each has one of its own"),
    ],
)
def test_each_process_has_a_gpu_of_its_own(
    project: Project,
    fake_nvml: Callable[..., FakeNvml],
    processes: int,
    gpus: int,
    there: int,
    started: int,
    said: str | None,
) -> None:
    env = fake_nvml(there).environment()
    outcome = project.run(
        _code(f"@run_with_torchrun(nproc_per_node={processes})", options=_gpus(gpus)), env=env
    )
    assert (said or "train: ") in outcome.err
    assert ("asked" in outcome.err) == (started < processes)
    attempt = _attempt(project, env=env)
    assert attempt["granted"]["processes"] == started
    ranks = attempt["seen"]["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(started))
    own = [rank["device"] for rank in ranks]
    assert len(set(own)) == started
    assert set(own) <= {gpu["uuid"] for gpu in attempt["granted"]["gpus"]}


def test_processes_on_cpus_all_start_and_leave_gpus_alone(
    project: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    pytest.importorskip("accelerate")
    env = {**fake_nvml(1).environment(), "UPSHIFT_MAY_MISS": "torch"}
    code = _code("@run_with_accelerate(num_processes=2, cpu=True)", options=_gpus(1))
    outcome = project.run(code, env=env)
    assert "train: its processes are to use CPUs: the GPU will be idle" in outcome.err
    assert (
        "[0, 2, 1]"
        in project.python("-c", "import upshift; print(upshift.get_run('latest').output)", env=env).out
    )


def test_how_it_is_launched_counts_for_reuse_but_not_where_or_how_patiently(project: Project) -> None:
    first = "@run_with_torchrun(nproc_per_node=2)"
    project.run(_code(first))

    def reused(above: str) -> str:
        project.run(_code(above))
        return str(project.tasks("train")[0]["cache_reason"])

    assert "same code" in reused("@run_with_torchrun(nproc_per_node=2, hang=600)")
    assert "same code" in reused(f"@run_with_torchrun(nproc_per_node=2, master_port={_free_port()})")
    assert "launch changed: processes 2 → 3" in reused("@run_with_torchrun(nproc_per_node=3)")
    assert "launch changed: torchrun with 3 processes → one process" in reused("")


def test_a_configuration_file_is_part_of_the_step(project: Project) -> None:
    pytest.importorskip("yaml")
    pytest.importorskip("accelerate")
    file = project.folder / "accelerate.yaml"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nmachine_rank: 0\nmixed_precision: 'no'\n")
    code = _code('@run_with_accelerate(config_file="accelerate.yaml")')
    project.run(code)
    assert _output(project) == "[0, 2, 1]"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: bf16\n")
    assert "launch changed: config_file" in project.upshift("plan", "pipeline.py").out
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nmachine_rank: 1\n")
    outcome = project.run(code, expect=2)
    assert "machine_rank: 1 in" in outcome.err and "pipeline.py:4" in outcome.err
    file.unlink()
    assert "No such file" in project.run(code, expect=2).err


def test_what_deepspeed_is_told_is_part_of_the_step(project: Project) -> None:
    pytest.importorskip("accelerate")
    file = project.folder / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}}')
    above = '@run_with_accelerate(num_processes=2, use_deepspeed=True, deepspeed_config_file="ds.json")'
    project.run(_code(above))
    project.run(_code(above))
    assert "same code" in str(project.tasks("train")[0]["cache_reason"])
    file.write_text('{"zero_optimization": {"stage": 3}}')
    assert "launch changed: deepspeed_config_file" in project.upshift("plan", "pipeline.py").out
    file.write_text("stage: 3")
    outcome = project.run(_code(above), expect=2)
    assert "is not a configuration of DeepSpeed" in outcome.err and "pipeline.py:4" in outcome.err


def test_a_debugged_or_replayed_step_is_one_process_and_that_is_said(project: Project) -> None:
    code = _code("@run_with_torchrun(nproc_per_node=2)")
    outcome = project.run(code, "--debug", "train")
    line = "train: runs in this process, neither limited nor pinned (--debug); asked 2 processes, gets 1"
    assert line in outcome.err
    assert _output(project) == "[0, 1, 1]"
    project.run(code, "--no-cache")
    assert _output(project) == "[0, 2, 1]"
    outcome = project.upshift("replay", "latest", "train")
    assert "asked 2 processes, gets 1: it runs in this very process" in outcome.err


def test_a_failure_of_another_rank_that_does_not_come_again_is_said_to_be_one(project: Project) -> None:
    code = _code("@run_with_torchrun(nproc_per_node=2)").replace('print("here")', "current.rank and {}")
    project.run(code.replace("{}", 'int("none")'), expect=1)
    outcome = project.upshift("replay", "latest", "train")
    assert "recorded was a failure on rank 1, and this is rank 0 of 1" in outcome.err
    outcome = project.run(code.replace("{}", "breakpoint()"), expect=1)
    assert "gives it yours, but as one process, which is rank 0" in outcome.err


def test_each_rank_is_on_the_cpus_of_the_numa_node_of_its_gpu(
    project: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("needs two CPUs")
    machine = fake_nvml([Gpu(pci="00000000:3B:00.0", numa_node=1), Gpu(pci="00000000:AF:00.0", numa_node=0)])
    trees.numa(machine.root, {0: str(first), 1: ",".join(map(str, others))}, {})
    locks = {"UPSHIFT_DEVICE_LOCKS": str(project.folder.parent / "locks")}
    code = _code('@run_with_torchrun(nproc_per_node="gpu")', options=_gpus(2))
    code = code.replace("gpu_count=2", f"gpu_count=2, cpu_count={1 + len(others)}")
    code = code.replace(
        'print("here")', 'import os\n    print(len(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"])'
    )
    outcome = project.run(code, env={**machine.environment(), **locks})
    attempt = _attempt(project)
    found = {rank["device"]: rank["cpus"] for rank in attempt["seen"]["ranks"]}
    assert found == {machine.uuids[0]: listed_cpus(others), machine.uuids[1]: str(first)}
    assert attempt["seen"]["cpu_count"] == attempt["granted"]["cpu_count"] == 1 + len(others)
    assert f"[rank 0] {len(others)} {len(others)}" in outcome.text
    assert "[rank 1] 1 1" in outcome.text
