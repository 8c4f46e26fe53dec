"""A process group of PyTorch that loses a rank: who is gone is named, and not who missed it."""

from __future__ import annotations

import pytest

from project import Project

pytest.importorskip("torch")

GROUP = """
import datetime, os, signal, sys, threading
import torch
import torch.distributed as dist
import upshift
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2)
@step({options})
def act() -> None:
    rank = upshift.current.rank
    {before}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={seconds}))
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        {then}
    dist.all_reduce(torch.ones(3))

@pipeline
def example():
    return act()
"""


def group(*, before: str = "", then: str = "pass", seconds: int = 600, options: str = "") -> str:
    return GROUP.format(before=before, then=then, seconds=seconds, options=options)


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ('raise LookupError("bad batch")', "LookupError: bad batch"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the step's process was killed by SIGKILL"),
        ("return None", "rank 1 returned, while rank 0 waited for it"),
        ("sys.exit(0)", "the step called sys.exit(0)"),
        ("os._exit(0)", "the step's process ended with exit code 0 before the step returned"),
    ],
)
def test_the_rank_that_is_gone_is_named(project: Project, then: str, message: str) -> None:
    project.run(group(then=then), expect=1)
    error = project.attempt("act")["error"]
    assert error["rank"] == 1
    assert error["message"].startswith(message)


def test_a_rank_that_never_joins_is_named_with_where_it_was(project: Project) -> None:
    project.run(group(before="rank == 0 or threading.Event().wait()", seconds=3), expect=1)
    error = project.attempt("act")["error"]
    assert error["rank"] == 1
    assert error["message"].startswith(
        "rank 1 never joined: rank 0 waited for it in vain; rank 1 waits for a lock (pipeline.py:"
    )


def test_a_rank_that_returns_before_it_joins_ends_those_that_wait_for_it(project: Project) -> None:
    project.run(group(before="if rank == 1: return"), expect=1)
    error = project.attempt("act")["error"]
    assert error["rank"] == 1
    assert error["message"].startswith(
        "rank 1 returned without having joined the others: rank 0 waits in init_process_group (pipeline.py:"
    )


def test_a_rank_that_is_late_for_a_collective_call_is_named_with_where_it_was(project: Project) -> None:
    project.run(group(then="threading.Event().wait()", seconds=5), expect=1)
    error = project.attempt("act")["error"]
    assert error["rank"] == 1
    assert error["message"].startswith(
        "rank 1 did not come to a collective call in which rank 0 waited; rank 1 waits for a lock ("
    )
    assert "Rank 0 waited here:" in error["traceback"]


def test_at_a_timeout_it_is_told_in_which_call_each_rank_waits(project: Project) -> None:
    project.run(group(then="threading.Event().wait()", options="timeout=12"), expect=1)
    error = project.attempt("act")["error"]
    assert "rank 0 waits in all_reduce (pipeline.py:" in error["message"]
    assert error["rank"] == 1
    stacks = project.attempt("act")["stacks"]
    assert [(stack["rank"], stack["waits"]) for stack in stacks] == [(0, "all_reduce"), (1, "a lock")]
