"""What modules learn of ranks when they are imported is true on each rank."""

from __future__ import annotations

import json

import pytest

from project import Project

CODE = """
import json, os
from pathlib import Path
from upshift import pipeline, run_with_torchrun, step
{first}

with open("imports", "a") as file:
    file.write("once ")

@run_with_torchrun(nproc_per_node=2)
@step
def train(folder: str) -> None:
    rank = os.environ["RANK"]
    Path(folder, f"rank{{rank}}.json").write_text(json.dumps({known}))

@pipeline
def example():
    train({folder!r})

if __name__ == "__main__":
    example()
"""
UTILS = """
import os

def my_rank():
    return int(os.environ.get("RANK", 0))

class Configuration:
    def __init__(self):
        self.rank = my_rank()
"""
WAYS = [
    ("from utils import my_rank\nRANK = my_rank()", "RANK"),
    ("from utils import Configuration\nCONFIGURATION = Configuration()", "CONFIGURATION.rank"),
    ("ENVIRONMENT = os.environ.copy()", 'int(ENVIRONMENT.get("RANK", 0))'),
    ("import upshift\nRANK = upshift.current.rank", "RANK"),
]


def known(project: Project) -> list[int]:
    return [json.loads((project.folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("first", "found"), WAYS)
def test_what_a_module_found_at_its_import_is_true(project: Project, first: str, found: str) -> None:
    project.write(UTILS, "utils.py")
    project.run(CODE.format(first=first, known=found, folder=str(project.folder)))
    assert known(project) == [0, 1]


def test_a_script_that_runs_itself_may_have_asked_before_upshift_was_there(project: Project) -> None:
    project.write(UTILS, "utils.py")
    first, found = WAYS[0]
    project.write(CODE.format(first=first, known=found, folder=str(project.folder)))
    project.python("pipeline.py")
    assert known(project) == [0, 1]


def test_what_did_not_ask_is_imported_once_for_all_ranks(project: Project) -> None:
    project.run(CODE.format(first="", known="0", folder=str(project.folder)))
    assert (project.folder / "imports").read_text().split() == ["once"]
