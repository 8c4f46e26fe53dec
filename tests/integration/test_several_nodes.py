"""Several nodes, rehearsed on this machine: the way that cluster backends take, from outside."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import upshift
from nvml import FakeNvml, Gpu
from project import UPSHIFT, Project
from upshift.report.page import report_page
from upshift.runtime.storage.series import read_series

TARGET = '[targets.two]\nbackend = "local"\noptions = { nodes = 2 }\n'
HEAD = "import os, signal, time\nfrom upshift import current, log, run_with_accelerate, run_with_torchrun\n"
TRAIN = """
@run_with_torchrun(nproc_per_node=2, nnodes=2)
@step
def train(data: list) -> list:
    print("hello from", os.environ["GROUP_RANK"])
    log(step=1, loss=float(current.rank))
    return [current.rank, current.world_size, sum(data)]

@step
def load() -> list:
    return [1, 2, 3]

@pipeline
def example():
    return train(load())
"""


@pytest.fixture
def two(project: Project) -> Project:
    """A project whose target rehearses two nodes."""
    Path(project.folder, "upshift.toml").write_text(TARGET)
    return project


def run(project: Project, code: str, *args: str, expect: int = 0, **options: object) -> str:
    return project.run(HEAD + code, "--on", "two", *args, expect=expect, **options).text


def printed(project: Project) -> list[str]:
    """What the ranks have printed, in the order of the ranks; lines of Upshift's own are left out."""
    log = project.upshift("logs", "latest", "train").out.splitlines()
    return sorted(line for line in log if " upshift: " not in line)


def wait_for(pid: int) -> bool:
    """Whether a process ends."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 30)[0])
    finally:
        os.close(descriptor)


def test_a_step_runs_on_all_nodes_and_returns_what_rank_0_does(two: Project) -> None:
    said = run(two, TRAIN, "--strict")
    assert "train: started, 4 processes on 2 nodes" in said
    assert upshift.get_run("latest").output == [0, 4, 6]
    assert printed(two) == [f"[rank {rank}] hello from {rank // 2}" for rank in range(4)]
    seen = two.attempt("train")["seen"]
    assert seen["nodes"] == 2
    assert [(one["rank"], one["node"], one["host"]) for one in seen["ranks"]] == [
        (0, 0, "127.0.0.1"),
        (1, 0, "127.0.0.1"),
        (2, 1, "127.0.0.2"),
        (3, 1, "127.0.0.2"),
    ]
    assert two.attempt("train")["granted"]["nodes"] == 2
    assert [one["host"] for one in two.attempt("train")["used"]["by_node"]] == ["127.0.0.1", "127.0.0.2"]


def test_nodes_share_the_machine_in_equal_parts_and_none_has_what_another_has(two: Project) -> None:
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(settings={"resources": ResourceSettings(cpu_count=1, memory="300MB")})
def train() -> int:
    return len(os.sched_getaffinity(0))

@pipeline
def example():
    return train()
"""
    if len(os.sched_getaffinity(0)) < 2:
        code = code.replace("cpu_count=1", "cpu_count=0.5")
    run(two, code, "--strict")
    cpus = [tuple(node["cpus"]) for node in two.attempt("train")["granted"]["by_node"]]
    assert [len(one) for one in cpus] == [1, 1]
    assert len(os.sched_getaffinity(0)) < 2 or set(cpus[0]).isdisjoint(cpus[1])
    planned = json.loads(two.upshift("plan", "pipeline.py", "--on", "two", "--json", "--no-cache").out)
    assert planned["steps"][0]["granted"]["nodes"] == 2


def test_more_than_a_node_has_is_short_of_it(two: Project) -> None:
    cpus = len(os.sched_getaffinity(0))
    said = run(
        two,
        TRAIN.replace(
            "@step\ndef train",
            f'@step(settings={{"resources": ResourceSettings(cpu_count={cpus + 2})}})\ndef train',
        ),
        "--strict",
        expect=2,
    )
    assert f"each of 2 nodes on this machine has {max(1, cpus // 2)}" in said


def test_more_nodes_than_the_target_rehearses_are_refused_or_said(two: Project) -> None:
    code = TRAIN.replace("nnodes=2", "nnodes=3")
    said = run(two, code, "--strict", expect=2)
    assert "train: asked 3 nodes, gets 2: its target rehearses 2 nodes" in said
    assert "options = { nodes = 3 } rehearses them here" in said
    assert "train: asked 3 nodes, gets 2" in run(two, code)


def test_a_step_of_one_process_has_one_node_and_is_told_what_would_use_more(two: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(num_nodes=2)})
def plain() -> int:
    return 1

@pipeline
def example():
    return plain()
"""
    assert "plain: asked 2 nodes, gets 1: the step is one process" in run(two, code)
    said = run(two, code, "--strict", expect=2)
    assert "@run_with_accelerate and @run_with_torchrun start processes on all nodes" in said


@pytest.mark.parametrize("nodes", ["0", '"2"', "65", "1.5"])
def test_a_number_of_nodes_that_makes_no_sense_is_refused(project: Project, nodes: str) -> None:
    Path(project.folder, "upshift.toml").write_text(TARGET.replace("2", nodes))
    said = run(project, TRAIN, expect=2)
    assert "target 'two': nodes = " in said and "from 1 to 64" in said


def test_the_first_rank_to_fail_is_the_error_wherever_it_ran_and_a_retry_starts_all_again(
    two: Project,
) -> None:
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(retries=1)
def train() -> list:
    with open(f"rank{current.rank}", "a") as file:
        file.write("started\\n")
    if current.attempt == 1 and current.rank == 1:
        raise ValueError("no good")
    if current.attempt == 1:
        time.sleep(1000)
    return [current.attempt, current.rank]

@pipeline
def example():
    return train()
"""
    said = run(two, code)
    assert "failed on rank 1, node 127.0.0.2" in said and "ValueError: no good" in said
    assert upshift.get_run("latest").output == [2, 0]
    assert [Path(two.folder, f"rank{rank}").read_text() for rank in (0, 1)] == ["started\n" * 2] * 2


def test_a_node_that_dies_is_the_infrastructures_failure_and_is_tried_again(two: Project) -> None:
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(retries=Retry(times=1, on=["infrastructure"]))
def train() -> int:
    if current.attempt == 1 and current.rank == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    if current.attempt == 1:
        time.sleep(1000)
    return current.attempt

@pipeline
def example():
    return train()
"""
    said = run(two, code)
    assert "node 1 (127.0.0.2) is gone" in said
    assert upshift.get_run("latest").output == 2


def test_a_step_that_will_do_with_fewer_nodes_goes_on_with_those_that_are_left(project: Project) -> None:
    Path(project.folder, "upshift.toml").write_text(TARGET.replace("2", "3"))
    code = """
@run_with_torchrun(nproc_per_node=2)
@step(retries=Retry(times=2, on=["infrastructure"]),
      settings={"resources": ResourceSettings(num_nodes=(2, 4))})
def train() -> list:
    latest = current.checkpoint.latest
    sizes = [] if latest is None else (latest / "sizes").read_text().split()
    with current.checkpoint.save() as folder:
        (folder / f"rank{current.rank}").touch()
        if current.rank == 0:
            (folder / "sizes").write_text(" ".join([*sizes, str(current.world_size)]))
    if current.attempt == 3:
        return [*sizes, current.world_size]
    if current.rank == 2:
        while getattr(current.checkpoint.latest, "name", "") != f"{current.attempt}.1":
            time.sleep(0.01)  # until all ranks have saved
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)

@pipeline
def example():
    return train()
"""
    said = run(project, code, "--strict")
    assert "train: started, 6 processes on 3 nodes" in said
    assert "with 2 nodes" in said
    # The least is not gone below, however many are lost.
    assert upshift.get_run("latest").output == ["6", "4", 4]
    first, *_, last = project.tasks("train")[0]["attempts"]
    assert (first["asked"]["nodes"], first["asked"]["least_nodes"]) == (4, 2)
    assert [first[record]["nodes"] for record in ("granted", "used")] == [3, 3]
    assert [last[record]["nodes"] for record in ("granted", "seen", "used")] == [2, 2, 2]
    shown = project.upshift("show", "latest", "train").out
    assert "2 to 4 nodes" in shown and "3 nodes !" not in shown
    assert "num_nodes=[2, 4]" in project.upshift("plan", "pipeline.py", "--on", "two", "--no-cache").out
    said = run(project, code.replace("(2, 4)", "(4, 5)"), "--strict", expect=2)
    assert "asked 4 nodes, gets 3: its target rehearses 3 nodes" in said


def test_a_rank_of_a_further_node_that_is_stopped_is_named(two: Project) -> None:
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2, hang=1)
@step
def train() -> None:
    if current.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)

@pipeline
def example():
    return train()
"""
    said = run(two, code, expect=1)
    assert "no progress for 1 s: rank 1 does not answer: process " in said
    assert " is stopped until SIGCONT, rank 0 sleeps" in said
    error = two.attempt("train")["error"]
    assert (error["rank"], error["node"]) == (1, "127.0.0.2")


def test_a_supervisor_that_is_frozen_is_killed_with_its_processes_before_the_next_attempt(
    two: Project,
) -> None:
    code = """
import fcntl

@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(retries=Retry(times=1, on=["infrastructure"]))
def train() -> int:
    lock = open(f"rank{current.rank}", "w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if current.attempt == 1 and current.rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getppid(), signal.SIGSTOP)
    if current.attempt == 1:
        time.sleep(1000)
    return current.attempt

@pipeline
def example():
    return train()
"""
    Path(two.folder, "upshift.toml").write_text(f'{TARGET}nodes_silence = "2s"\n')
    said = run(two, code)
    assert "node 1 (127.0.0.2) is gone: nothing has come from it for" in said
    assert upshift.get_run("latest").output == 2


TOLD = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(cache=False)
def train() -> list:
    if current.rank == 1:
        with open("told", "w") as told:
            told.write(f"{os.getpid()} {os.getppid()}")
    with open(f"go{current.rank}") as go:
        go.read()
    return [current.rank, current.world_size]

@pipeline
def example():
    return train()
"""


def start(project: Project) -> tuple[object, list[int]]:
    project.write(HEAD + TOLD)
    told = project.fifo("told")
    for rank in (0, 1):
        project.fifo(f"go{rank}")
    engine = project.start("run", "pipeline.py", "--on", "two")
    return engine, [int(pid) for pid in told.read_text().split()]


def test_nodes_go_on_without_their_engine_and_are_found_again(two: Project) -> None:
    engine, (rank, supervisor) = start(two)
    engine.kill()
    engine.communicate(timeout=30)
    assert "train still runs" in " ".join(two.upshift("show", "latest").out.split())  # it is wrapped
    resumed = two.start("resume", "latest")
    assert resumed.stderr is not None
    assert any(line.startswith("train: still running since ") for line in resumed.stderr)
    for number in (0, 1):
        Path(two.folder, f"go{number}").write_text("")
    assert resumed.wait(60) == 0
    resumed.communicate()
    run = upshift.get_run("latest")
    assert run.output == [0, 2] and len(run["train"].tasks[0].attempts) == 1
    assert wait_for(rank) and wait_for(supervisor)


def test_cancelling_ends_all_processes_on_all_nodes(two: Project) -> None:
    engine, pids = start(two)
    engine.send_signal(signal.SIGINT)
    out, err = engine.communicate(timeout=60)
    assert engine.returncode == 130, out + err
    assert all(map(wait_for, pids))
    assert two.attempt("train")["reason"] == "cancelled"


def test_secrets_reach_all_nodes_and_are_masked_in_what_they_print(two: Project) -> None:
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(secrets={"TOKEN": "env:MY_TOKEN"})
def train() -> bool:
    print("have", os.environ["TOKEN"])
    return "UPSHIFT_NODES_TOKEN" in os.environ

@pipeline
def example():
    return train()
"""
    run(two, code, env={"MY_TOKEN": "sesame-open"})
    assert upshift.get_run("latest").output is False
    assert printed(two) == ["[rank 0] have ***", "[rank 1] have ***"]


def test_each_node_has_devices_of_its_own(two: Project, fake_nvml: Callable[..., FakeNvml]) -> None:
    machine = fake_nvml([Gpu(), Gpu()])
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step(settings={"resources": ResourceSettings(gpu_count=1)})
def train() -> str:
    print(os.environ["CUDA_VISIBLE_DEVICES"])
    return "done"

@pipeline
def example():
    return train()
"""
    run(two, code, "--strict", env=machine.environment())
    granted = two.attempt("train")["granted"]["gpus"]
    assert [gpu["node"] for gpu in granted] == [0, 1]
    assert sorted(line.partition("] ")[2] for line in printed(two)) == sorted(gpu["uuid"] for gpu in granted)


def test_each_node_has_samples_and_charts_of_its_own(two: Project) -> None:
    code = """
@run_with_torchrun(nproc_per_node=1, nnodes=2)
@step
def train() -> int:
    held = bytearray((1 + current.rank) << 26)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        held[0] = held[-1]
    return len(held)

@pipeline
def example():
    return train()
"""
    run(two, code, "--strict")
    attempt = upshift.get_run("latest")["train"].tasks[0].attempts[-1]
    series = [read_series(attempt.series_path.with_name(name)) for name in ("0.1.series", "0.1.node1.series")]
    for number, one in enumerate(series):
        assert one is not None
        times = one.columns["time"]
        assert len(times) >= 2 and times == sorted(times) and len(set(times)) == len(times)
        assert max(value or 0 for value in one.columns["memory"]) >= (1 + number) << 26
    page = report_page(upshift.get_run("latest"))
    assert "Node 0, 127.0.0.1" in page and "Node 1, 127.0.0.2" in page


def test_rehearsals_that_need_the_same_devices_follow_each_other(
    two: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    machine = fake_nvml([Gpu() for _ in range(4)])
    code = """
@run_with_torchrun(nproc_per_node=2, nnodes=2)
@step(settings={"resources": ResourceSettings(gpu_count=2)})
def train(number: int) -> int:
    return number

@pipeline
def example(number: int):
    return train(number)
"""
    two.write(HEAD + code)
    environment = two.environment(machine.environment())
    commands = [
        [UPSHIFT, "run", "pipeline.py", "--on", "two", "--strict", "-p", f"number={number}"]
        for number in range(4)
    ]
    runs = [
        subprocess.Popen(
            command,
            cwd=two.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        said = [run.communicate(timeout=120)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
            run.wait()
    assert [run.returncode for run in runs] == [0, 0, 0, 0], said
    found = upshift.list_runs(pipeline="example")
    assert sorted(run.output for run in found) == [0, 1, 2, 3]
    for run in found:
        granted = run["train"].tasks[0].attempts[-1].granted
        assert granted is not None and granted.gpus is not None
        assert [gpu.node for gpu in granted.gpus] == [0, 0, 1, 1]
        assert {gpu.uuid for gpu in granted.gpus} == {gpu.uuid for gpu in machine.gpus}


def test_nodes_share_the_devices_of_the_machine_where_there_are_fewer_than_they_ask_for(
    two: Project, fake_nvml: Callable[..., FakeNvml]
) -> None:
    machine = fake_nvml([Gpu(), Gpu()])
    code = """
@run_with_torchrun(nnodes=2, nproc_per_node="gpu")
@step(settings={"resources": ResourceSettings(gpu_count=2)})
def train() -> int:
    return current.world_size

@pipeline
def example():
    return train()
"""
    assert "2 GPUs on each of 2 nodes" in run(two, code, env=machine.environment())
    assert upshift.get_run("latest").output == 2
    assert [gpu["node"] for gpu in two.attempt("train")["granted"]["gpus"]] == [0, 1]


def test_ranks_of_torch_meet_over_rehearsed_nodes(two: Project) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    code = """
@run_with_accelerate(num_processes=2, num_machines=2, cpu=True)
@step
def train() -> float:
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    return float(accelerator.reduce(torch.tensor(float(accelerator.process_index + 1))))

@pipeline
def example():
    return train()
"""
    run(two, code, "--strict")
    assert upshift.get_run("latest").output == 3.0
