"""Requests on this machine: granted for real, or said not to be; and recorded either way."""

from __future__ import annotations

import os

import pytest

import upshift
from project import Project

PINNED = """
import os

@step(settings={"resources": ResourceSettings(cpu_count=1)}, cache=False)
def pinned(i: int) -> tuple[list[int], list[int]]:
    import numpy as np
    from threadpoolctl import threadpool_info
    np.ones((300, 300)) @ np.ones((300, 300))
    return sorted(os.sched_getaffinity(0)), [pool["num_threads"] for pool in threadpool_info()]

@pipeline
def example():
    cpus, threads = pinned.map(i=[1, 2])
    return cpus, threads
"""

HUNGRY = """
@step({options}settings={{"resources": ResourceSettings(memory="200MB")}})
def hungry() -> int:
    {body}
    return 1

@pipeline
def example():
    return hungry()
"""

limits = pytest.mark.parametrize("env", [{}, {"UPSHIFT_NO_CGROUPS": "1"}], ids=["cgroup if any", "watchdog"])


def test_a_step_runs_on_the_cpus_it_was_granted_and_numpy_knows(project: Project) -> None:
    project.run(PINNED)
    cpus, threads = upshift.get_run("latest").output
    assert [len(c) for c in cpus] == [1, 1]
    assert all(n == 1 for pools in threads for n in pools)
    attempts = [task["attempts"][0] for task in project.tasks("pinned")]
    assert [a["granted"]["cpu_count"] for a in attempts] == [1, 1]
    assert [a["seen"]["cpu_count"] for a in attempts] == [1, 1]


def test_thread_pools_are_set_when_numpy_was_imported_before_the_fork(project: Project) -> None:
    project.run("import numpy\nfrom sklearn.utils import _openmp_helpers\n" + PINNED)
    _, threads = upshift.get_run("latest").output
    assert threads[0]
    assert all(n == 1 for pools in threads for n in pools)


def test_a_step_that_asks_for_nothing_is_not_pinned(project: Project) -> None:
    code = """
import os

@step
def free() -> int:
    return len(os.sched_getaffinity(0))

@pipeline
def example():
    return free()
"""
    project.run(code)
    assert upshift.get_run("latest").output == len(os.sched_getaffinity(0))
    asked = project.attempt("free")["asked"]
    assert asked["cpu_count"] is None
    assert asked["memory"] is None


@limits
def test_memory_taken_in_one_jump_is_out_of_memory(project: Project, env: dict[str, str]) -> None:
    outcome = project.run(HUNGRY.format(options="", body='x = b"x" * 600_000_000'), expect=1, env=env)
    attempt = project.attempt("hungry")
    assert attempt["reason"] == "out-of-memory", attempt["error"]
    assert "200 MB" in outcome.err
    assert "hungry" in outcome.err
    assert attempt["used"]["memory"] >= 200_000_000  # though it was killed before it could say so


@limits
def test_memory_taken_bit_by_bit_is_out_of_memory(project: Project, env: dict[str, str]) -> None:
    body = "kept = [bytearray(1_000_000) for _ in range(600)]"
    project.run(HUNGRY.format(options="", body=body), expect=1, env=env)
    assert project.attempt("hungry")["reason"] == "out-of-memory"


@limits
def test_the_memory_of_children_counts(project: Project, env: dict[str, str]) -> None:
    child = 'x = bytearray(400_000_000); __import__("signal").pause()'
    body = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    project.run(HUNGRY.format(options="", body=body), expect=1, env=env)
    assert project.attempt("hungry")["reason"] == "out-of-memory"


@limits
def test_a_step_within_its_memory_is_left_alone(project: Project, env: dict[str, str]) -> None:
    project.run(HUNGRY.format(options="", body='x = b"x" * 100_000_000'), env=env)
    used = project.attempt("hungry")["used"]
    # Memory that the fork brought along and that the step took over is not counted again.
    assert 90_000_000 <= used["memory"] < 200_000_000


@limits
def test_a_mapped_input_does_not_count(project: Project, env: dict[str, str]) -> None:
    code = """
import numpy as np

@step
def make() -> np.ndarray:
    return np.ones(50_000_000)          # 400 MB

@step(settings={"resources": ResourceSettings(memory="200MB")})
def total(data: np.ndarray) -> float:
    return float(data.sum())

@pipeline
def example():
    return total(make())
"""
    project.run(code, env=env)
    assert upshift.get_run("latest").output == 50_000_000.0


def test_out_of_memory_can_be_tried_again(project: Project) -> None:
    code = HUNGRY.format(
        options='retries=Retry(times=1, on=["out-of-memory"]), ', body='x = b"x" * 600_000_000'
    )
    project.run(code, expect=1)
    reasons = [a["reason"] for a in project.tasks("hungry")[0]["attempts"]]
    assert reasons == ["out-of-memory", "out-of-memory"]


def test_what_this_machine_lacks_is_said_in_a_line_and_recorded(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(gpu_count=8, cpu_count=4000)})
def train() -> int:
    return 1

@pipeline
def example():
    return train()
"""
    outcome = project.run(code)
    (line,) = [line for line in outcome.err.splitlines() if "8 × GPU" in line]
    assert "train" in line
    attempt = project.attempt("train")
    assert len(attempt["asked"]["gpus"]) == 8
    assert attempt["asked"]["cpu_count"] == 4000
    assert len(attempt["granted"]["gpus"] or []) < 8
    assert attempt["granted"]["cpu_count"] <= len(os.sched_getaffinity(0))


def test_a_result_of_a_degraded_grant_is_not_reused_by_a_strict_run(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(cpu_count=4000)})
def train() -> int:
    return 1

@pipeline
def example():
    return train()
"""
    project.run(code)
    project.upshift("run", "pipeline.py", "--strict", expect=2)


def test_tasks_that_fit_run_side_by_side_and_others_wait(project: Project) -> None:
    code = """
import fcntl

@step(settings={"resources": ResourceSettings(cpu_count=CPUS)}, cache=False)
def alone(i: int) -> bool:
    with open("lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)   # BlockingIOError if another one runs
        return True

@pipeline
def example():
    return alone.map(i=[1, 2, 3, 4])
"""
    project.run(code.replace("CPUS", str(len(os.sched_getaffinity(0)))))
    assert upshift.get_run("latest").output == [True] * 4


def test_used_is_never_empty_however_short_the_step(project: Project) -> None:
    project.run("@step\ndef f() -> None: ...\n\n@pipeline\ndef example():\n    f()\n")
    used = project.attempt("f")["used"]
    assert used["memory"] is not None
    assert used["cpu_count"] > 0


def test_a_step_knows_what_it_is(project: Project) -> None:
    code = """
import upshift

@step
def who(i: int) -> tuple[str, str, int, int, int, int]:
    c = upshift.current
    return c.run, c.step, c.index, c.attempt, c.rank, c.world_size

@pipeline
def example():
    return who.map(i=[0, 1])[0]
"""
    project.run(code)
    run = upshift.get_run("latest")
    assert run["who"].outputs
    first = run["who"].tasks[1].output
    assert first == (run.id, "who", 1, 1, 0, 1)
