"""The example with one process and with two: both read digits equally well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import upshift
from nvml import FakeNvml
from project import Project

pytest.importorskip("torch")
pytest.importorskip("accelerate")

EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_digits" / "pipeline.py"


def test_two_processes_learn_what_one_does(project: Project) -> None:
    outcome = project.upshift("run", str(EXAMPLE), "--param", "gpus=false", timeout=110)
    run = upshift.get_run("latest")
    alone, together = run.output
    assert alone > 0.95
    assert abs(alone - together) < 0.02

    assert "trained on 1 x cpu: loss " in outcome.out
    assert "trained on 2 x cpu: loss " in outcome.out
    attempt = project.attempt("train_together")
    assert attempt["asked"]["processes"] == 2
    assert attempt["granted"]["processes"] == 2
    assert [(rank["rank"], rank["world_size"]) for rank in attempt["seen"]["ranks"]] == [(0, 2), (1, 2)]
    assert len({rank["pid"] for rank in attempt["seen"]["ranks"]}) == 2

    import torch

    one, two = run["train"].output, run["train_together"].output
    assert one.keys() == two.keys()
    # The sum of two halves differs in its last digits, and with it all that follows, a little.
    first, second = (torch.cat([weights[name].flatten() for name in one]) for weights in (one, two))
    assert torch.norm(first - second) < 0.1 * torch.norm(first)


def test_it_runs_as_a_plain_python_program(project: Project) -> None:
    printed = project.python(str(EXAMPLE), timeout=110).out
    assert "one process 9" in printed
    assert "two processes 9" in printed


def test_where_there_are_two_gpus_each_process_gets_one(
    project: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    env = fake_nvml(2).environment()
    plan = project.upshift("plan", str(EXAMPLE), "--param", "gpus=true", "--strict", "--json", env=env)
    (step,) = (step for step in json.loads(plan.out)["steps"] if step["name"] == "train_together")
    assert (step["launch"]["per_node"], step["launch"]["devices"]) == (2, True)
    assert len(step["granted"]["gpus"]) == 2
    assert step["shortfalls"] == []
