"""What people see of a step of several processes, from a real run: logs, metrics, the records, the report."""

from __future__ import annotations

import os
import re
from pathlib import Path

import upshift
from project import Outcome, Project

TRAIN = """
import os
import time
import upshift
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=3)
@step
def train(fails: int = -1) -> int:
    rank = upshift.current.rank
    for epoch in range(2):
        print(f"epoch {epoch} of rank {rank}", flush=True)
        upshift.log(step=epoch, loss=10.0 * rank + epoch)
    if rank == 1:
        upshift.log(only_here=True)
    upshift.current.card.append(f"card of **{rank}**", title="Card")
    open(f"printed-{rank}", "w").close()
    if rank == fails:
        while not all(os.path.exists(f"printed-{other}") for other in range(3)):
            time.sleep(0.01)
        raise ValueError(f"no batch for rank {rank}")
    return rank + 40

@step
def after(value: int) -> int:
    print("after", value)
    return value

@pipeline
def example(fails: int = -1):
    return after(train(fails))
"""


def epochs(rank: int, prefix: str = "") -> list[str]:
    return [f"{prefix}epoch {epoch} of rank {rank}" for epoch in range(2)]


def printed(outcome: Outcome) -> list[str]:
    """The lines that the step printed itself."""
    return [line for line in outcome.out.splitlines() if "upshift: " not in line]


def test_each_rank_has_its_log_and_the_step_has_the_lines_of_all(project: Project) -> None:
    done = project.run(TRAIN)
    assert re.search(r"^train: started, 3 processes$", done.err, re.M)
    for rank in range(3):
        assert printed(project.upshift("logs", "latest", "train", "--rank", str(rank))) == epochs(rank)
        merged = printed(project.upshift("logs", "latest", "train"))
        assert [line for line in merged if line.startswith(f"[rank {rank}] ")] == epochs(
            rank, f"[rank {rank}] "
        )
        assert len(merged) == 6
    assert upshift.get_run("latest")["train"].tasks[0].attempts[0].ranks[2].log.splitlines() == epochs(2)


def test_the_ranks_of_a_whole_run_are_those_of_its_steps(project: Project) -> None:
    project.run(TRAIN)
    assert printed(project.upshift("logs", "latest", "--rank", "0"))[-1] == "[after] after 40"
    assert printed(project.upshift("logs", "latest", "--rank", "1")) == epochs(1, "[train] ")
    refused = project.upshift("logs", "latest", "train", "--rank", "3", expect=2).err
    assert "train has no rank 3\n  fix:   Its ranks: 0 to 2." in refused
    assert "run " in project.upshift("logs", "latest", "--rank", "9", expect=2).err
    refused = project.upshift("logs", "latest", "after", "--rank", "1", expect=2).err
    assert "after has no rank 1\n  fix:   Each of its steps has one process, rank 0." in refused


def test_the_log_of_one_rank_is_followed(project: Project) -> None:
    pipe = project.fifo("pipe")
    project.write("""
from upshift import current, run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step
def train(pipe: str) -> None:
    print("rank", current.rank, "begins")
    if current.rank == 0:
        open(pipe).read()  # until the test has read a line
    print("rank", current.rank, "ends")

@pipeline
def example(pipe: str):
    train(pipe)
""")
    run = project.start("run", "pipeline.py", "-p", f"pipe={pipe}")
    writer = os.open(pipe, os.O_WRONLY)  # waits until the step reads
    following = project.start("logs", "latest", "train", "-f", "--rank", "0")
    assert following.stdout is not None
    assert following.stdout.readline() == "rank 0 begins\n"
    os.close(writer)
    assert following.stdout.readline() == "rank 0 ends\n"
    assert "rank 1" not in following.communicate(timeout=60)[0]
    run.communicate(timeout=60)
    assert (following.returncode, run.returncode) == (0, 0)


def test_metrics_and_cards_are_of_the_first_rank_and_of_each(project: Project) -> None:
    project.run(TRAIN)
    attempt = upshift.get_run("latest")["train"].tasks[0].attempts[-1]
    assert {rank.rank: list(rank.metrics["loss"].values) for rank in attempt.ranks} == {
        0: [0.0, 1.0],
        1: [10.0, 11.0],
        2: [20.0, 21.0],
    }
    assert list(attempt.metrics["loss"].values) == [0.0, 1.0]
    assert attempt.metrics["only_here"].rank == 1
    metrics = project.attempt("train")["metrics"]
    assert (metrics["loss"]["last"], metrics["loss"]["ranks"]) == (1.0, 3)
    assert sorted(card["rank"] for card in project.attempt("train")["cards"]) == [0, 1, 2]
    assert "loss (rank 0 of 3)" in project.upshift("show", "latest").out


def test_the_rank_that_failed_is_named_wherever_it_is_told(project: Project) -> None:
    failed = project.run(TRAIN, "-p", "fails=1", expect=1)
    assert "train: failed on rank 1 after " in failed.err
    assert "Failed: step train failed on rank 1 (user-error): ValueError: no batch for rank 1" in failed.err
    assert "(that rank alone: --rank 1)" in failed.err
    assert (
        "train failed on rank 1 (user-error)\n  ValueError: no batch" in project.upshift("show", "latest").out
    )
    attempt = project.attempt("train")
    assert (attempt["error"]["rank"], attempt["error"]["node"]) == (1, os.uname().nodename)
    ranks = attempt["seen"]["ranks"]
    assert [(rank["rank"], rank["node"], rank["local_rank"]) for rank in ranks] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
    ]
    assert len({rank["pid"] for rank in ranks}) == 3
    first = upshift.get_run("latest")["train"].tasks[0].attempts[-1].ranks[1]
    assert (first.status, first.host) == ("failed", os.uname().nodename)


def test_a_rank_that_had_returned_when_another_failed_says_so(project: Project) -> None:
    told, never = project.fifo("told"), project.fifo("never")
    project.run(
        f"""
import contextlib
import os
import select
from upshift import current, run_with_torchrun

@run_with_torchrun(nproc_per_node=3)
@step
def train() -> None:
    if current.rank == 0:
        with open({str(told)!r}) as pipe, contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(int(pipe.read()))], [], [])  # until rank 2 has ended
        raise ValueError("no")
    if current.rank == 1:
        open({str(never)!r}).read()
    with open({str(told)!r}, "w") as pipe:
        pipe.write(str(os.getpid()))

@pipeline
def example():
    train()
""",
        expect=1,
    )
    statuses = [rank.status for rank in upshift.get_run("latest")["train"].tasks[0].attempts[-1].ranks]
    assert statuses == ["failed", "stopped", "completed"]


def test_the_report_has_a_row_and_a_log_for_each_rank(project: Project, tmp_path: Path) -> None:
    project.run(TRAIN, "-p", "fails=2", expect=1)
    page = project.upshift("report", "latest", "-o", "-").out
    shown = page.partition('id="steps"')[2]
    for rank in range(3):
        assert f"epoch 1 of rank {rank}" in shown
        assert f"<summary>rank {rank} " in shown
    assert all(f">{head}</th>" in shown for head in ("CPU time", "memory, peak"))
    assert re.search(r"<summary>rank 2 <[^\n]*>failed</span>", shown) and "no batch for rank 2" in shown
