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


@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of is theirs
def test_a_pipeline_runs_in_a_notebook_and_an_edited_cell_counts(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(
        notebook, timeout=90, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    printed = [
        "".join(o.get("text", "") for o in cell.outputs if o.get("name") == "stdout")
        for cell in notebook.cells
    ]
    assert "completed 18" in printed[1]
    assert printed[2].strip() == "True"
    assert "30" in printed[4]
