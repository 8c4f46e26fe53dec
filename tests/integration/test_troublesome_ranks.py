"""Ranks that print without end, do not stop when they are asked to, and have processes of their own."""

from __future__ import annotations

import os

import psutil
import pytest

import upshift
from project import Project
from told import TELL, told


def test_a_rank_that_prints_a_hundred_megabytes(project: Project) -> None:
    """Lines of both ranks are whole, in their order, and all there; and each rank's own log has its own."""
    project.run(
        TELL
        + """
LINES = 1_000_000

@run_with_torchrun(nproc_per_node=2)
@step
def act() -> int:
    mine = "ab"[upshift.current.rank] * 92
    count = LINES if upshift.current.rank == 1 else LINES // 100
    for start in range(0, count, 1000):
        print("".join(f"{n:07} {mine}\\n" for n in range(start, start + 1000)), end="", flush=True)
    return count

@pipeline
def example():
    return act()
""",
        timeout=110,
    )
    counts = {"0": 0, "1": 0}
    letters = {"0": "a" * 92, "1": "b" * 92}
    for line in project.upshift("logs", "latest", "act", timeout=110).out.splitlines():
        if "[rank " not in line:
            continue  # Upshift's own
        rank, number, rest = line[line.index("[rank ") + 6 :].replace("] ", " ", 1).split(" ")
        assert (int(number), rest) == (counts[rank], letters[rank])
        counts[rank] += 1
    assert counts == {"0": 10_000, "1": 1_000_000}
    alone = project.upshift("logs", "latest", "act", "--rank", "0").out
    assert alone.count("a" * 92) == 10_000
    assert "b" not in alone.replace("[act]", "")


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os._exit(3)", "user-error"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "stopped-from-outside"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "stopped-from-outside"),
    ],
)
def test_a_rank_that_dies_is_at_no_line_unless_it_has_said_where_it_was(
    project: Project, end: str, reason: str
) -> None:
    project.run(
        TELL
        + f"""
import os, signal, threading

@run_with_torchrun(nproc_per_node=2)
@step
def act() -> None:
    if upshift.current.rank == 1:
        {end}
    threading.Event().wait()

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    attempt = project.attempt("act")
    assert (attempt["reason"], attempt["error"]["rank"]) == (reason, 1)
    source = (project.folder / "pipeline.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, start=1) if end in text)
    assert attempt["error"]["where"] == (f"pipeline.py:{line}" if "SIGTERM" in end else None)


def test_a_rank_that_ignores_sigterm_is_killed_when_another_fails(project: Project) -> None:
    ready = project.fifo("ready")
    project.run(
        TELL
        + f"""
import os, signal

@run_with_torchrun(nproc_per_node=2)
@step
def act() -> None:
    tell(pid=os.getpid())
    if upshift.current.rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open({str(ready)!r}, "w").close()
        while True:
            signal.pause()
    open({str(ready)!r}).close()
    raise LookupError("the rank that fails")

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    attempt = project.attempt("act")
    assert attempt["reason"] == "user-error"
    assert "LookupError: the rank that fails" in attempt["error"]["message"]
    assert attempt["error"]["rank"] == 0
    assert not any(psutil.pid_exists(rank["pid"]) for rank in told(project.folder, 2))


def test_a_rank_that_ignores_sigterm_does_not_outlive_a_timeout(project: Project) -> None:
    project.run(
        TELL
        + """
import os, signal

@run_with_torchrun(nproc_per_node=2)
@step(timeout=1, grace=1)
def act() -> None:
    tell(pid=os.getpid())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    assert project.attempt("act")["reason"] == "timeout"
    assert not any(psutil.pid_exists(rank["pid"]) for rank in told(project.folder, 2))


def test_what_a_rank_failed_with_is_the_cause_though_the_step_times_out_while_another_one_is_killed(
    project: Project,
) -> None:
    ready = project.fifo("ready")
    project.run(
        TELL
        + f"""
import signal

@run_with_torchrun(nproc_per_node=2, hang=1)
@step(timeout=3)
def act() -> None:
    if upshift.current.rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open({str(ready)!r}, "w").close()
        while True:
            signal.pause()
    open({str(ready)!r}).close()
    raise LookupError("before its time was over")

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    attempt = project.attempt("act")
    assert (attempt["reason"], attempt["error"]["rank"]) == ("user-error", 1)
    assert attempt["error"]["message"] == "LookupError: before its time was over"
    assert "raise LookupError" in attempt["error"]["traceback"]
    assert "no progress" not in project.upshift("logs", "latest", "act").out


LOADING = """
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return index * index, os.getpid()

def loader():
    return DataLoader(Squares(), batch_size=8, num_workers=2, persistent_workers=True)

def passes():
    workers, sums, batches = set(), [], loader()
    for _ in range(2):
        total = 0
        for squares, pids in batches:
            total += int(squares.sum())
            workers |= set(pids.tolist())
        sums.append(total)
    return sums, sorted(workers)
"""


def test_ranks_whose_data_loaders_have_workers(project: Project) -> None:
    pytest.importorskip("torch")
    project.run(
        TELL
        + LOADING
        + """
@run_with_torchrun(nproc_per_node=2)
@step
def act() -> list[int]:
    sums, workers = passes()
    tell(sums=sums, workers=workers)
    return sums

@pipeline
def example():
    return act()
"""
    )
    ranks = told(project.folder, 2)
    assert [rank["sums"] for rank in ranks] == [[85344, 85344]] * 2
    workers = [pid for rank in ranks for pid in rank["workers"]]
    assert len(set(workers)) == 4
    assert not any(psutil.pid_exists(pid) for pid in workers)


def test_a_rank_that_fails_takes_the_workers_of_all_data_loaders_with_it(project: Project) -> None:
    pytest.importorskip("torch")
    ready = project.fifo("ready")
    project.run(
        TELL
        + LOADING
        + f"""
@run_with_torchrun(nproc_per_node=2)
@step
def act() -> None:
    batches = iter(loader())
    workers = {{int(pid) for _, pids in (next(batches), next(batches)) for pid in pids}}
    tell(workers=sorted(workers))
    if upshift.current.rank == 1:
        open({str(ready)!r}, "w").close()
        next(iter(loader()))
        open({str(ready)!r}).read()  # nobody writes any more
    open({str(ready)!r}).close()
    raise LookupError("the rank that fails")

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    assert "the rank that fails" in project.attempt("act")["error"]["message"]
    workers = [pid for rank in told(project.folder, 2) for pid in rank["workers"]]
    assert len(set(workers)) == 4
    assert not any(psutil.pid_exists(pid) for pid in workers)


ACCELERATE = """
import os, warnings
from upshift import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step
def act() -> int:
    from accelerate.test_utils.scripts import test_script
    from accelerate.state import PartialState

    processes = PartialState(cpu=True).num_processes
    test_script.main()
    return processes

@pipeline
def example():
    return act()
"""


def test_accelerates_own_test_script_passes(project: Project) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("torch")
    outcome = project.run(ACCELERATE, timeout=110)
    assert upshift.get_run("latest").output == 2
    for part in (
        "**Initialization**",
        "**Test process execution**",
        "All rng are properly synched.",
        "Shuffled central dataloader passing.",
        "Training yielded the same results on one CPU or distributed setup with batch split.",
        "**Breakpoint trigger test**",
        "**Test reinstantiated state**",
    ):
        assert part in outcome.out
    assert os.environ.get("RANK") is None
