"""Random numbers: seeded at module level, every run draws the same; unseeded, each draws others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from project import Project

THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
"""In a module, it makes each step a fresh interpreter."""

CODE = """
import random
import numpy as np
from upshift import run_with_torchrun
{prologue}

def drawn() -> list[float]:
    return [random.random(), float(np.random.random())]

@step(cache=False)
def alone() -> list[float]:
    return drawn()

@step(cache=False)
def each(item: str) -> list[float]:
    return drawn()

@step(cache=False, settings={{"resources": ResourceSettings(cpu_count=0.1)}})
@run_with_torchrun(nproc_per_node=2)
def ranks() -> list[float]:
    return drawn()

@step(cache=False)
def write(alone: list[float], each: list, ranks: list[float]) -> None:
    import json
    print("DRAWN", json.dumps([alone, *each, ranks]))

@pipeline
def example():
    write(alone(), each.map(["same", "same", "other"]), ranks())

@pipeline
def one():
    return alone()

if __name__ == "__main__":
    example()
    example()
"""


def numbers(project: Project, run: str = "latest") -> list[list[float]]:
    """What the tasks of a run drew: alone, each[0..2], ranks; of each ``random`` first, numpy second."""
    log = project.upshift("logs", run, "write").out
    found: list[list[float]] = json.loads(log.partition("DRAWN ")[2])
    return found


def run(project: Project, prologue: str) -> None:
    project.write(CODE.format(prologue=prologue))
    project.upshift("run", "pipeline.py:example")


def of_two_runs(project: Project, prologue: str) -> tuple[Any, Any]:
    """By generator, what all tasks of two runs drew."""
    rounds = []
    for _ in range(2):
        run(project, prologue)
        rounds.append(numbers(project))
    first, second = ([[task[at] for task in drawn] for at in (0, 1)] for drawn in rounds)
    return first, second


@pytest.mark.parametrize(
    ("seeded", "process"),
    [
        *((seeded, "") for seeded in ("random", "numpy", "both", "none")),
        *((seeded, THREAD) for seeded in ("both", "none")),
    ],
    ids=["random", "numpy", "both", "none", "both-fresh", "none-fresh"],
)
def test_every_run_draws_the_same_from_what_is_seeded_and_other_numbers_from_the_rest(
    project: Project, seeded: str, process: str
) -> None:
    seeds = {"random": "random.seed(7)", "numpy": "np.random.seed(7)", "none": ""}
    seeds["both"] = f"{seeds['random']}; {seeds['numpy']}"
    first, second = of_two_runs(project, f"{process}\n{seeds[seeded]}")
    for generator, before, after in zip(("random", "numpy"), first, second, strict=True):
        if seeded in (generator, "both"):
            assert before == after
        else:
            assert not set(before) & set(after)
        assert len(set(before)) == len(before), "each task draws numbers of its own"


def test_however_a_process_starts_it_draws_the_same(project: Project) -> None:
    seeds = "random.seed(7); np.random.seed(7)"
    run(project, seeds)
    forked = numbers(project)
    run(project, f"{THREAD}\n{seeds}")
    assert numbers(project) == forked
    project.upshift("run", "pipeline.py:example", "--debug", "alone")
    assert numbers(project) == forked
    project.upshift("run", "pipeline.py:one")
    told = project.upshift("replay", "latest", "alone")
    assert "with the output that was recorded" in told.err


def test_a_script_that_seeds_draws_the_same_each_time_and_other_numbers_in_its_second_run(
    project: Project,
) -> None:
    project.write(CODE.format(prologue="random.seed(7); np.random.seed(7)"))
    rounds = []
    for _ in range(2):
        project.python("pipeline.py")
        runs = [run["id"] for run in json.loads(project.upshift("runs", "--json").out)][:2]
        rounds.append([numbers(project, run) for run in runs])
    assert rounds[0] == rounds[1]
    assert rounds[0][0] != rounds[0][1]


def test_the_number_of_a_run_that_is_replayed_is_the_recorded_one_without_a_seed_too(
    project: Project,
) -> None:
    project.write(CODE.format(prologue="np.random.get_state()"))  # numpy imports that when it is asked for
    project.upshift("run", "pipeline.py:one")
    assert "with the output that was recorded" in project.upshift("replay", "latest", "alone").err
