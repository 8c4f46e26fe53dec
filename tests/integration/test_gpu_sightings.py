"""Asked, granted, seen: a step whose framework misses the GPUs that it was granted ends, and says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frameworks import cuda_driver, fake_torch
from nvml import FakeNvml
from project import Project

TRAIN = """
import os
{top}
@step
def load() -> list:
    return [1, 2]

@step(settings={{"resources": ResourceSettings(gpu_count=2)}})
def train(data: list) -> str:
{body}
    return os.environ["CUDA_VISIBLE_DEVICES"]

@pipeline
def training():
    return train(load())
"""


@pytest.fixture
def gpus(project: Project, fake_nvml: Callable[..., FakeNvml], cuda_library: Path) -> dict[str, str]:
    """Two GPUs, and a driver that starts: what commands are run with."""
    machine = fake_nvml(2, driver="580.65.06", cuda="13.0")
    (machine.root / "dev/nvidia-uvm").touch()
    found = {**cuda_driver(cuda_library, "9.0", "9.0"), **machine.environment()}
    return {
        **found,
        "LD_LIBRARY_PATH": f"{machine.environment()['LD_LIBRARY_PATH']}:{cuda_library.parent}",
        "PYTHONPATH": str(project.folder / "site-packages"),
    }


def attempt(project: Project, env: dict[str, str]) -> Any:
    told = json.loads(project.upshift("show", "latest", "--json", env=env).out)
    (task,) = told["steps"][1]["tasks"]
    return task["attempts"][-1]


@pytest.mark.parametrize(("top", "body"), [("import torch", "    pass"), ("", "    import torch")])
def test_the_real_pytorch_for_cpus_does_not_get_to_train(
    project: Project, gpus: dict[str, str], top: str, body: str
) -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this PyTorch is built for CUDA")
    outcome = project.run(TRAIN.format(top=top, body=body), expect=1, env=gpus)
    assert (
        f"train failed (hardware): PyTorch {torch.__version__} is built for CPUs only: "
        "it cannot use the 2 GPUs granted" in outcome.text
    )
    line = (project.folder / "pipeline.py").read_text().splitlines().index(
        "import torch" if top else body
    ) + 1
    assert f"where: pipeline.py:{line}" in outcome.text
    assert "pip install --force-reinstall 'torch==" in outcome.text
    assert "Traceback" not in outcome.text
    found = attempt(project, gpus)
    assert found["reason"] == "hardware"
    assert [gpu["uuid"] for gpu in found["seen"]["gpus"]] == [g["uuid"] for g in found["granted"]["gpus"]]
    assert (found["seen"]["driver"], found["seen"]["runtime"]) == ("580.65.06", "13.0")
    assert found["seen"]["frameworks"][0]["devices"] == 0
    assert found["seen"]["diagnosis"]["cause"] == "cpu-only"


def test_a_build_that_sees_the_grant_trains(project: Project, gpus: dict[str, str]) -> None:
    fake_torch(project.folder / "site-packages")
    project.run(TRAIN.format(top="import torch", body="    pass"), env=gpus)
    found = attempt(project, gpus)
    assert found["seen"]["frameworks"][0]["devices"] == 2
    assert "diagnosis" not in found["seen"]


def test_what_the_step_hides_is_named(project: Project, gpus: dict[str, str]) -> None:
    fake_torch(project.folder / "site-packages", devices=1)
    body = "    os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n    import torch"
    outcome = project.run(TRAIN.format(top="", body=body), expect=1, env=gpus)
    assert (
        "CUDA_VISIBLE_DEVICES=0 hides devices (the step started with CUDA_VISIBLE_DEVICES=GPU-"
        in outcome.text
    )


def test_a_result_of_the_cpu_is_reused_only_where_the_gpu_may_be_missed(
    project: Project, gpus: dict[str, str]
) -> None:
    fake_torch(project.folder / "site-packages", cuda=None)
    project.write(TRAIN.format(top="", body="    import torch"))
    allowed = {**gpus, "UPSHIFT_MAY_MISS": "torch"}
    project.upshift("run", "pipeline.py", env=allowed)
    first = project.show()["id"]
    assert "it was made without its GPU" in project.upshift("show", "latest", env={"COLUMNS": "45"}).out
    again = project.upshift("run", "pipeline.py", env=allowed)
    assert "train: reused" in again.text
    assert project.tasks("train")[0]["cache_reason"].endswith(f"run {first}, made without its GPU")
    assert "train failed (hardware)" in project.upshift("run", "pipeline.py", env=gpus, expect=1).text
    strict = project.upshift("run", "pipeline.py", "--strict", env=allowed)
    assert "train: reused" not in strict.text
    assert (
        "was made without its GPU"
        in project.upshift("plan", "pipeline.py", env={**gpus, "COLUMNS": "200"}).text
    )
