"""Steps of several processes that are interrupted, killed and tried again: always all of them together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

import upshift
from project import Project
from told import TELL

# Each rank tells its process id and waits until the test writes to it.
WAITING = (
    TELL
    + """
import os

@run_with_torchrun(nproc_per_node=2)
@step(cache=False)
def act() -> list[str]:
    rank = upshift.current.rank
    with open(f"told{rank}", "w") as pipe:
        pipe.write(str(os.getpid()))
    with open(f"go{rank}") as pipe:
        return [pipe.read(), str(os.getpid())]

@pipeline
def example():
    return act()
"""
)


class Waiting:
    """A run with a step of two processes, both of which wait."""

    def __init__(self, project: Project) -> None:
        project.write(WAITING)
        told = [project.fifo(f"told{rank}") for rank in range(2)]
        self.go = [project.fifo(f"go{rank}") for rank in range(2)]
        self.process: subprocess.Popen[str] = project.start("run", "pipeline.py")
        self.pids = [int(pipe.read_text()) for pipe in told]
        self._watched = [os.pidfd_open(pid) for pid in self.pids]

    def ended(self, seconds: float = 20) -> bool:
        """Whether all ranks end within this time."""
        poller = select.poll()
        left = set(self._watched)
        for descriptor in left:
            poller.register(descriptor, select.POLLIN)
        while left and (found := poller.poll(seconds * 1000)):
            for descriptor, _ in found:
                poller.unregister(descriptor)
                os.close(descriptor)
                left.discard(descriptor)
        return not left


@pytest.mark.parametrize("by", ["Ctrl-C", "cancel"])
def test_a_run_that_is_interrupted_ends_all_ranks(project: Project, by: str) -> None:
    run = Waiting(project)
    if by == "Ctrl-C":
        os.killpg(run.process.pid, signal.SIGINT)
    else:
        project.upshift("cancel", "latest")
    _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 130, err
    assert run.ended()
    assert project.attempt("act")["reason"] == "cancelled"


def test_ranks_outlive_the_engine_and_a_resumed_run_finds_them(project: Project) -> None:
    run = Waiting(project)
    run.process.kill()
    run.process.communicate()
    resumed = project.start("resume", "latest")
    for pipe in run.go:
        pipe.write_text("gone on")
    _, err = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, err
    assert run.ended()
    assert upshift.get_run("latest").output == ["gone on", str(run.pids[0])]
    assert len(project.tasks("act")[0]["attempts"]) == 1


def test_ranks_die_with_their_fork_server(project: Project) -> None:
    run = Waiting(project)
    zygote = parent_of(run.pids[0])
    assert parent_of(run.pids[1]) == zygote
    os.kill(parent_of(zygote), signal.SIGKILL)
    _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 1, err
    assert run.ended()
    assert project.attempt("act")["reason"] == "infrastructure"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_retry_starts_all_ranks_again_and_the_first_one_s_files_are_kept(project: Project) -> None:
    code = """
import os
from typing import Annotated

@run_with_torchrun(nproc_per_node=2)
@step(retries=1)
def act() -> tuple[Annotated[Path, "file"], Annotated[list[int], "which"]]:
    rank, attempt = upshift.current.rank, upshift.current.attempt
    with open("started.txt", "a") as file:
        file.write(f"{attempt}.{rank} ")
    if (attempt, rank) == (1, 1):
        os.kill(os.getpid(), 9)
    path = Path(f"rank{rank}.txt")
    path.write_text(f"attempt {attempt}")
    return path, [attempt, rank]

@pipeline
def example():
    return act()
"""
    project.run(TELL + code)
    started = (project.folder / "started.txt").read_text().split()
    assert {"1.1", "2.0", "2.1"} <= set(started)
    assert len(started) == len(set(started))
    file, which = upshift.get_run("latest").output
    assert (file.name, file.read_text(), which) == ("rank0.txt", "attempt 2", [2, 0])
    first, second = project.tasks("act")[0]["attempts"]
    assert (first["status"], first["error"]["rank"], second["status"]) == ("failed", 1, "completed")
