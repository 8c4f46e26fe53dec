"""A pipeline in a real Jupyter kernel: an event loop runs, threads are alive, nothing can be imported."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
from dataclasses import dataclass
from upshift import pipeline, step, current

FACTOR = 3

@dataclass
class Point:
    x: int

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
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook,
        timeout=90,
        kernel_name="python3",
        allow_errors=allow_errors,
        resources={"metadata": {"path": folder}},
    ).execute()
    return [
        "".join(o.get("text", "\n".join(o.get("traceback", ()))) for o in cell.outputs)
        for cell in notebook.cells
    ]


@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of is theirs
def test_a_failing_step_is_shown_with_the_lines_of_its_cells(tmp_path: Path) -> None:
    _, _, read, _, where = execute(FAILING, tmp_path, allow_errors=True)
    assert "Cell In[2], line 3, in act\n        return read(text)\n" in read
    assert "Cell In[1], line 5, in read\n        return json.loads(text)\n" in read
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
