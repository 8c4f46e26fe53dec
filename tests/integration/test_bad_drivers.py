"""A driver's library that crashes, hangs or fails harms no run; what it did not tell is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import nvml
from nvml import FakeNvml
from project import Project

Make = Callable[..., FakeNvml]

STEP = """
    import os

    @step(settings={"resources": ResourceSettings(gpu_count=1)})
    def train() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    @pipeline
    def example():
        return train()
"""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"crash": "nvmlDeviceGetName"}, "it was killed by SIGSEGV"),
        ({"errors": {"nvmlInitWithFlags": nvml.VERSION_MISMATCH}}, "it was updated while it was loaded"),
        ({"count": 4_000_000_000}, "NVML counts 4000000000 GPUs, which is not believed"),
    ],
)
def test_a_run_goes_on_without_the_gpus_that_could_not_be_found(
    project: Project, fake_nvml: Make, options: dict[str, Any], why: str
) -> None:
    outcome = project.run(STEP, env=fake_nvml(1, **options).environment())
    assert why in outcome.text
    assert project.attempt("train")["granted"]["gpus"] == []


def test_a_run_goes_on_when_the_gpu_that_it_has_cannot_be_read(project: Project, fake_nvml: Make) -> None:
    machine = fake_nvml(1, hang="nvmlDeviceGetTemperature")
    project.run(STEP, env=machine.environment())
    attempt = project.attempt("train")
    assert [gpu["uuid"] for gpu in attempt["granted"]["gpus"]] == machine.uuids
    assert [gpu.get("busy_mean") for gpu in attempt["used"]["gpus"] or ()] in ([], [None])
