"""The user's modules are imported as their files are now, whatever bytecode is cached."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from project import UPSHIFT, Project
from screen import on_terminal

SECOND = 1_000_000_000
STAMP = 1_700_000_000 * SECOND


@pytest.fixture
def edited(project: Project) -> Path:
    """A helper of the project, edited within the second that its bytecode was written in, size unchanged."""
    helper = project.write("def value() -> int:\n    return 1\n", "helper.py", header="")
    os.utime(helper, ns=(STAMP, STAMP))
    project.python("-c", "import helper")
    bytecode = Path(importlib.util.cache_from_source(str(helper)))
    os.utime(bytecode, ns=(STAMP + SECOND // 4, STAMP + SECOND // 4))
    project.write("def value() -> int:\n    return 2\n", "helper.py", header="")
    os.utime(helper, ns=(STAMP + SECOND // 2, STAMP + SECOND // 2))
    assert project.python("-c", "import helper; print(helper.value())").out == "1\n"  # Python is misled
    return helper


PIPELINE = """
from helper import value

@step
def show() -> None:
    print("value", value())

@pipeline
def example():
    show()
"""


def test_an_edit_within_a_second_runs(project: Project, edited: Path) -> None:
    project.run(PIPELINE)
    assert "value 2" in project.upshift("logs", "latest").out


def test_bytecode_is_written_anew(project: Project, edited: Path) -> None:
    project.run(PIPELINE)
    assert project.python("-c", "import helper; print(helper.value())").out == "2\n"


def test_a_script_that_python_misled_is_not_reused_as_what_its_file_says(
    project: Project, edited: Path
) -> None:
    project.write(PIPELINE + "\nif __name__ == '__main__':\n    example()\n")
    project.python("pipeline.py")  # `python` itself imports the helper, before Upshift can look
    assert "value 1" in project.upshift("logs", "latest").out
    project.upshift("run", "pipeline.py")
    assert "value 2" in project.upshift("logs", "latest").out


def test_a_module_that_is_named_by_its_file(project: Project) -> None:
    file = project.write(PIPELINE.replace("from helper import value", "value = lambda: 1"))
    os.utime(file, ns=(STAMP, STAMP))
    project.upshift("run", "pipeline.py")
    bytecode = Path(importlib.util.cache_from_source(str(file)))
    os.utime(bytecode, ns=(STAMP + 1, STAMP + 1))
    project.write(PIPELINE.replace("from helper import value", "value = lambda: 2"))
    os.utime(file, ns=(STAMP + 2, STAMP + 2))
    project.upshift("run", "pipeline.py")
    assert "value 2" in project.upshift("logs", "latest").out


def test_data_beside_a_module_may_be_older_than_it(project: Project) -> None:
    data = project.write("hello", "pack/data.txt", header="")
    project.write("", "pack/__init__.py", header="")
    os.utime(data, ns=(STAMP, STAMP))
    project.run("""
import pkgutil
import pack

@step
def read() -> str:
    return pkgutil.get_data("pack", "data.txt").decode()

@pipeline
def example():
    return read()
""")
    assert project.tasks("read")[0]["status"] == "completed"


def test_who_waits_for_an_import_at_a_terminal_is_told(project: Project) -> None:
    project.write(
        "import time\ntime.sleep(1.5)\n@step\ndef work(): ...\n\n@pipeline\ndef example(): work()\n"
    )
    command = [UPSHIFT, "run", "pipeline.py"]
    code, written = on_terminal(command, project.environment(), cwd=project.folder)
    assert code == 0
    assert "importing pipeline.py …" in written
    assert "importing" not in project.upshift("run", "pipeline.py").err
