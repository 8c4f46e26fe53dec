"""The example of a flow: real data, every shape of a transition, a model that works."""

from __future__ import annotations

from pathlib import Path

import pytest

import upshift
from project import Project

EXAMPLE = Path(__file__).parents[2] / "examples" / "flow_digits" / "flow.py"


@pytest.mark.processes
def test_the_flow_reads_held_out_digits(project: Project) -> None:
    done = project.upshift("run", str(EXAMPLE), "-p", "folds=3", "-p", "trees=[20]", timeout=180)
    run = upshift.get_run("latest")
    assert run.status == "completed"
    assert 0.97 < run.output.accuracy <= 1
    assert len(run.output.scores) == 3
    assert [task.index for task in run["score"].tasks] == [0, 1, 2]
    assert "refine: completed" in done.err
    page = project.upshift("report", "latest", "-o", "-").out
    for step in ("start", "score", "choose", "refine", "fit", "end"):
        assert step in page
