"""Steps of many processes, wherever their code is: in a package, a notebook, a script."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import upshift
from project import Project
from told import TELL, told

SUM = """
@run_with_torchrun(nproc_per_node=2)
@step
def act(x: int) -> int:
    tell(got=scaled(x), module=__name__)
    return scaled(x)

@pipeline
def example(x: int = 3):
    return act(x)
"""


def test_a_package_with_relative_imports(project: Project) -> None:
    project.write("", "training/__init__.py", header="")
    project.write("def scaled(x):\n    return x * 10\n", "training/scaling.py", header="")
    project.write(TELL + "from .scaling import scaled\n" + SUM, "training/steps.py")
    project.write("from .steps import example\n", "training/pipelines.py", header="")
    project.upshift("run", "training/pipelines.py:example")
    assert [rank["got"] for rank in told(project.folder, 2)] == [30, 30]
    assert upshift.get_run("latest").output == 30


def test_a_script_is_the_module_main(project: Project) -> None:
    body = "def scaled(x):\n    return x * 10\n" + SUM
    project.write(TELL + body + "\nif __name__ == '__main__':\n    print('gave', example(x=4).output)\n")
    assert "gave 40" in project.python("pipeline.py").out
    assert [rank["got"] for rank in told(project.folder, 2)] == [40, 40]


def test_a_script_that_runs_its_pipeline_at_its_end(project: Project) -> None:
    body = "def scaled(x):\n    return x * 10\n" + SUM
    project.write(TELL + body + "\nprint('gave', example(x=4).output)\n")
    assert project.python("pipeline.py").out.count("gave 40") == 1
    assert [rank["got"] for rank in told(project.folder, 2)] == [40, 40]
    assert len(upshift.list_runs()) == 1


CELLS = [
    "from upshift import pipeline, step\n" + TELL,
    "FACTOR = 10\ndef scaled(x):\n    return x * FACTOR\n" + SUM,
    "print(example(x=5).output)",
    "FACTOR = 100",
    "print(example(x=5).output)",
]


def execute(cells: list[str], folder: Path) -> list[str]:
    """Run these cells in a kernel; what each printed, and the traceback that it ended with."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    resources = {"metadata": {"path": folder}}
    client = NotebookClient(
        notebook, timeout=100, kernel_name="python3", resources=resources, allow_errors=True
    )
    client.execute()
    return [
        "".join(output.get("text", "\n".join(output.get("traceback", ()))) for output in cell.outputs)
        for cell in notebook.cells
    ]


@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of is theirs
def test_a_notebook(tmp_path: Path) -> None:
    printed = execute(CELLS, tmp_path)
    assert "50" in printed[2].split()
    assert "500" in printed[4].split()
    assert [rank["got"] for rank in told(tmp_path, 2)] == [500, 500]


ACCELERATOR = [
    """
import torch
from accelerate import Accelerator
from upshift import pipeline, run_with_accelerate, step

accelerator = Accelerator(cpu=True)
print("here", accelerator.num_processes)
""",
    """
def gathered(accelerator):
    mine = torch.tensor([accelerator.process_index + 1])
    return accelerator.gather(mine).tolist()

@run_with_accelerate(cpu=True, num_processes=2)
@step
def made_in_the_step() -> list[int]:
    return gathered(Accelerator())

@run_with_accelerate(cpu=True, num_processes=2)
@step
def made_before() -> list[int]:
    return gathered(accelerator)

@pipeline
def right():
    return made_in_the_step()

@pipeline
def wrong():
    return made_before()
""",
    "print('gave', right().output)",
    "wrong()",
]


@pytest.mark.filterwarnings("ignore")  # what Jupyter's own packages warn of is theirs
def test_a_notebook_with_an_accelerator_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    _, _, right, wrong = execute(ACCELERATOR, tmp_path)
    assert "gave [1, 2]" in right
    assert "the step uses 'accelerator', which was made by one process and knows of no other" in wrong
    assert "Make it in the step: accelerator = Accelerator()." in wrong
    assert re.search(r"where: In\[\d+\]:\d+\n", wrong)


ARGUMENTS = """
import argparse, os, threading

if "UNSAFE_TO_FORK" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()

parser = argparse.ArgumentParser()
parser.add_argument("--factor", type=int, default=2)
FACTOR = parser.parse_args().factor

def scaled(x):
    return x * FACTOR
"""


@pytest.mark.parametrize("unsafe", [False, True], ids=["forked", "fresh"])
def test_a_module_that_reads_its_arguments_when_it_is_imported(project: Project, unsafe: bool) -> None:
    run = "\nif __name__ == '__main__':\n    print('gave', example(x=4).output)\n"
    project.write(TELL + ARGUMENTS + SUM + run)
    env = {"UNSAFE_TO_FORK": "1"} if unsafe else None
    assert "gave 12" in project.python("pipeline.py", "--factor", "3", env=env).out
    assert [rank["got"] for rank in told(project.folder, 2)] == [12, 12]
    project.upshift("run", "pipeline.py", "--param", "x=5", env=env)
    assert [rank["got"] for rank in told(project.folder, 2)] == [10, 10]


def test_what_a_module_does_when_it_is_imported_is_not_done_again_for_each_rank(project: Project) -> None:
    import_it = "open('imports.txt', 'a').write('one\\n')\ndef scaled(x):\n    return x\n"
    imports = project.folder / "imports.txt"
    counts = []
    for ranks in (1, 4):
        imports.unlink(missing_ok=True)
        project.write(TELL + import_it + SUM.replace("nproc_per_node=2", f"nproc_per_node={ranks}"))
        project.upshift("run", "pipeline.py", "--no-cache")
        counts.append(imports.read_text().count("one"))
    assert len(told(project.folder, 4)) == 4
    assert counts[0] == counts[1]
