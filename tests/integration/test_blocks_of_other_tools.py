"""What pages of ZenML show of Accelerate runs here: only the package in the imports is another one.

Where a block leaves out parameters and bodies (``...``), these are filled in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from nvml import FakeNvml, Gpu
from project import Project

needs_accelerate = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("accelerate") is None, reason="needs torch and accelerate"
)

TUTORIAL = """
from upshift import step, pipeline
from upshift.integrations.huggingface.steps import run_with_accelerate

@run_with_accelerate(num_processes=4, multi_gpu=True)
@step
def training_step(size: int) -> int:
    print("trains with", size)
    return size + 1

@pipeline
def dist_pipeline(size: int = 3):
    training_step(size=size)
"""

GUIDE = """
from upshift import step, pipeline
from upshift.integrations.huggingface.steps import run_with_accelerate

@run_with_accelerate(num_processes=4, multi_gpu=True)
@step
def training_step(some_param: int, rate: float) -> int:
    # your training code is below
    return some_param

@pipeline
def training_pipeline(some_param: int = 5, rate: float = 0.5):
    return training_step(some_param, rate)
"""

IMAGE_OF_THE_GUIDE = """
from upshift import step, pipeline
from upshift.config import DockerSettings
from upshift.integrations.huggingface.steps import run_with_accelerate

docker_settings = DockerSettings(
    parent_image="pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime",
    requirements=["accelerate", "torchvision"]
)

@run_with_accelerate(num_processes=4, multi_gpu=True)
@step
def training_step(some_param: int) -> int:
    return some_param

@pipeline(settings={"docker": docker_settings})
def my_pipeline(some_param: int = 5):
    return training_step(some_param=some_param)
"""

IMAGE_OF_THE_TUTORIAL = """
from upshift import pipeline, step
from upshift.config import DockerSettings

docker = DockerSettings(
    parent_image="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
    python_package_installer_args={"system": None},
    requirements=["upshift", "accelerate", "torchvision"]
)

@step
def train() -> int:
    return 1

@pipeline(settings={"docker": docker})
def my_gpu_pipeline():
    return train()
"""


@needs_accelerate
def test_the_tutorials_step_for_four_gpus_runs_on_a_machine_without_one_and_says_so(project: Project) -> None:
    project.write(TUTORIAL, header="")
    ran = project.upshift("run", "pipeline.py", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ran.out.count("trains with 3") == 1
    assert "training_step: asked 4 × GPU" in ran.err
    attempt = project.attempt("training_step")
    assert attempt["asked"]["processes"] == 4
    assert attempt["granted"]["processes"] == 1


@needs_accelerate
def test_the_tutorials_step_has_a_process_for_each_of_four_gpus(
    project: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    machine = fake_nvml([Gpu() for _ in range(4)])
    project.write(TUTORIAL, header="")
    # No framework sees these GPUs, and this step would not use one.
    ran = project.upshift("run", "pipeline.py", env={**machine.environment(), "UPSHIFT_MAY_MISS": "torch"})
    assert sorted(line for line in ran.out.splitlines() if "trains" in line) == [
        f"[training_step] [rank {rank}] trains with 3" for rank in range(4)
    ]
    ranks = project.attempt("training_step")["seen"]["ranks"]
    assert {rank["world_size"] for rank in ranks} == {4}
    assert len({rank["device"] for rank in ranks}) == 4


def test_the_tutorials_step_is_refused_without_gpus_where_requests_are_strict(project: Project) -> None:
    project.write(TUTORIAL, header="")
    refused = project.upshift("run", "pipeline.py", "--strict", expect=2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert "training_step: asked 4 × GPU" in refused.err


@needs_accelerate
def test_the_guides_step_is_called_with_positional_arguments(project: Project) -> None:
    project.write(GUIDE, header="")
    project.upshift("run", "pipeline.py", "-p", "some_param=8")
    (task,) = project.tasks("training_step")
    assert task["status"] == "completed"


@needs_accelerate
@pytest.mark.parametrize("arguments", ["mixed_precision='bf16'", "mixed_precision='no'", ""])
def test_the_common_arguments_of_the_guide_start_what_they_say(project: Project, arguments: str) -> None:
    project.run(f"""
from upshift.integrations.huggingface.steps import run_with_accelerate

@run_with_accelerate(num_processes=2, cpu=True, {arguments})
@step
def training_step(some_param: int) -> tuple[int, str]:
    from accelerate import Accelerator
    accelerator = Accelerator()
    return accelerator.num_processes, accelerator.mixed_precision

@pipeline
def training_pipeline(some_param: int = 1):
    return training_step(some_param)
""")
    import upshift

    wanted = "bf16" if "bf16" in arguments else "no"
    assert upshift.get_run("latest").output == (2, wanted)


@pytest.mark.parametrize(
    "text", [pytest.param(IMAGE_OF_THE_GUIDE, marks=needs_accelerate), IMAGE_OF_THE_TUTORIAL]
)
def test_the_images_of_the_pages_are_taken_as_they_are_written(project: Project, text: str) -> None:
    project.write(text, header="")
    plan = json.loads(project.upshift("plan", "pipeline.py", "--json").out)
    assert plan["steps"], plan


MISUSE = """
from upshift import step, pipeline
from upshift.integrations.huggingface.steps import run_with_accelerate

@step
def training_step(some_param: int) -> int:
    return some_param

@pipeline
def training_pipeline(some_param: int = 1):
    run_with_accelerate(training_step, num_processes=4, multi_gpu=True)(some_param=some_param)
"""


@pytest.mark.parametrize(
    "call",
    [
        "run_with_accelerate(training_step, num_processes=4, multi_gpu=True)(some_param=some_param)",
        "run_with_accelerate(num_processes=4, multi_gpu=True)(training_step)(some_param=some_param)",
        "run_with_accelerate(training_step)(some_param=some_param)",
    ],
)
def test_the_decorator_used_as_a_function_in_a_pipeline_is_refused_with_the_right_way(
    project: Project, call: str
) -> None:
    lines = MISUSE.splitlines()
    lines[-1] = f"    {call}"
    project.write("\n".join(lines) + "\n", header="")
    refused = project.upshift("run", "pipeline.py", expect=2)
    assert f"pipeline.py:{len(lines)}" in refused.err
    assert "@run_with_accelerate(" in refused.err
    caught = project.python(
        "-c",
        "import pipeline\ntry: pipeline.training_pipeline()\nexcept RuntimeError as error: print('caught')",
    )
    assert "caught" in caught.out
