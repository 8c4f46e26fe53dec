"""A pipeline in a real Jupyter kernel: an event loop runs, threads are alive, nothing can be imported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
from dataclasses import dataclass
from functools import lru_cache
from upshift import pipeline, step, current

FACTOR = 3

@dataclass
class Point:
    x: int

@lru_cache(maxsize=None)
def helper(x):
    return x * FACTOR

@step
def points(n: int) -> list[Point]:
    print("making points")
    return [Point(i) for i in range(n)]

@step
def scale(point: Point) -> Point:
    assert isinstance(point, Point)
    return Point(helper(point.x))

@step
def total(points: list[Point]) -> int:
    return sum(point.x for point in points)

@pipeline
def example(n: int = 3):
    return total(scale.map(point=points(n)))
""",
    "run = example(n=4); print(run.status, run.output)",
    "print(all(isinstance(point, Point) for point in run['scale'].output))",
    "FACTOR = 5",
    "print(example(n=4).output)",
]


FAILING = [
    """\
import json
from upshift import pipeline, step

def read(text):
    return json.loads(text)
""",
    """\
@step
def act(text: str):
    return read(text)

@step(timeout=0.5)
def stuck():
    while True: sum(range(100))

@pipeline
def reading():
    return act("x")

@pipeline
def waiting():
    return stuck()
""",
    "reading.run({})",
    "waiting.run({})",
    "import upshift\nprint(upshift.get_run('latest')['stuck'].tasks[0].attempts[0].error.where)",
]


MISTAKES = [
    "from upshift import ResourceSettings, get_run, step",
    "@step\ndef act():\n    return 1",
    "def ask():\n    act.when(3)\nask()",
    "ResourceSettings(memory='16GBB')",
]


RANKS = [
    "import time\nfrom upshift import pipeline, run_with_torchrun, step",
    """\
@run_with_torchrun(nproc_per_node=2, hang=1)
@step
def train():
    time.sleep(600)

@pipeline
def training():
    return train()
""",
    "training()",
]


def execute(cells: list[str], folder: Path, *, allow_errors: bool = False) -> list[str]:
    """Run these cells in a kernel; what each printed, or the traceback that it ended with."""
    return [
        "".join(o.get("text", "\n".join(o.get("traceback", ()))) for o in outputs)
        for outputs in outputs_of(cells, folder, allow_errors=allow_errors)
    ]


def outputs_of(cells: list[str], folder: Path, *, allow_errors: bool = False) -> list[list[Any]]:
    """Run these cells in a kernel; what each shows."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook,
        timeout=90,
        kernel_name="python3",
        allow_errors=allow_errors,
        resources={"metadata": {"path": folder}},
    ).execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of is theirs
def test_a_failing_step_is_shown_with_the_lines_of_its_cells(tmp_path: Path) -> None:
    _, _, read, _, where = execute(FAILING, tmp_path, allow_errors=True)
    for line in ("Cell In[2], line 3, in act", "return read(text)", "Cell In[1], line 5, in read"):
        assert line in read
    assert "ipykernel_" not in read
    assert where.strip() == "In[2]:7"


@pytest.mark.filterwarnings("ignore")
def test_where_ranks_hang_is_shown_with_the_lines_of_the_cell(tmp_path: Path) -> None:
    *_, shown = execute(RANKS, tmp_path, allow_errors=True)
    assert "ranks 0 and 1 sleep (In[2]:4)" in shown
    assert "ipykernel_" not in shown


@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_shown_with_the_lines_of_its_cells_only(tmp_path: Path) -> None:
    _, _, when, setting = execute(MISTAKES, tmp_path, allow_errors=True)
    for shown, line in ((when, "  Cell In[3], line 2, in ask\n"), (setting, "  Cell In[4], line 1, in ")):
        assert line in shown
        assert "  where: In[" in shown
        assert "src/upshift" not in shown
        assert "ipykernel_" not in shown


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_runs_in_a_notebook_and_an_edited_cell_counts(tmp_path: Path) -> None:
    printed = execute(CELLS, tmp_path)
    assert "completed 18" in printed[1]
    assert printed[2].strip() == "True"
    assert "30" in printed[4]


SHOWN = [
    """\
from upshift import pipeline, step, list_runs

@step
def load(n: int) -> list[int]:
    print("loading")
    return list(range(n))

@step
def half(x: int) -> float:
    return 1 / (x - 2)

@pipeline
def halving(n: int = 2):
    return half.map(load(n))
""",
    "run = halving()",
    "run",
    "run['half']",
    "run['half'].tasks",
    "halving",
    "half",
    "halving(3)",
    "list_runs()",
]


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_a_quiet_block_and_what_it_gives_is_drawn(tmp_path: Path) -> None:
    _, ran, run, step, tasks, pipeline, definition, failed, runs = outputs_of(
        SHOWN, tmp_path, allow_errors=True
    )
    for outputs in (ran, run, step, tasks, pipeline, definition, failed, runs):
        assert all(output.get("name") != "stderr" for output in outputs)
    (block,) = (output for output in ran if output.output_type == "display_data")
    assert block.data["text/plain"].startswith("halving completed · ")
    assert [output.text.strip() for output in ran if output.output_type == "stream"] == ["[load] loading"]
    for (shown,), text, html in (
        (run, r"<Run \S+ of halving: completed in .* s on local>", "<svg width="),
        (step, "<Step half: completed, 2 tasks>", "half[1]"),
        (tasks, r"task +index +status", "half[1]"),
        (pipeline, r"<pipeline halving\(n: int = 2\), In\[1\]:\d+>", "one task per item"),
        (definition, r"<step half\(x: int\), In\[1\]:\d+>", "half(x: int)"),
        (runs, r"run +(pipeline +)?status +", "halving"),
    ):
        assert re.match(text, shown.data["text/plain"])
        assert html in shown.data["text/html"]
        assert "\x1b" not in shown.data["text/html"]
    (block,) = (output for output in failed if output.output_type == "display_data")
    assert "half[2] failed (user-error): ZeroDivisionError" in block.data["text/html"]
    (error,) = (output for output in failed if output.output_type == "error")
    assert error.traceback[:2] == ["Traceback (most recent call last):", "  Cell In[8], line 1, in <module>"]
    assert "return 1 / (x - 2)" in "\n".join(error.traceback)
