"""Ranks share the memory of their step; the one that took it is named."""

from __future__ import annotations

import pytest

from project import Project
from told import TELL


@pytest.mark.parametrize("cgroups", [True, False])
def test_the_rank_that_took_the_memory_is_named(project: Project, cgroups: bool) -> None:
    project.run(
        TELL
        + """
import threading

@run_with_torchrun(nproc_per_node=2)
@step(settings={"resources": ResourceSettings(memory="300MB")})
def act() -> None:
    if upshift.current.rank == 1:
        taken = b"x" * 600_000_000
    threading.Event().wait()

@pipeline
def example():
    return act()
""",
        env={} if cgroups else {"UPSHIFT_NO_CGROUPS": "1"},
        expect=1,
    )
    attempt = project.attempt("act")
    assert (attempt["reason"], attempt["error"]["rank"]) == ("out-of-memory", 1)
    told = "the step asked for 300 MB of memory, and its 2 processes together reached "
    assert attempt["error"]["message"].startswith(told)
