"""The classes of a step's inputs count: their methods are code that the step runs without naming it."""

from __future__ import annotations

import pytest

from project import Project

DATA = """
from dataclasses import dataclass
import scaling

@dataclass
class Base:
    x: int
    def shifted(self): return self.x + 1

class Data(Base):
    def total(self): return scaling.scaled(self.x)
    def other(self): return 7
"""
SCALING = "def scaled(x): return x * 10\n"
PIPELINE = """
from data import Data

@step
def make(x: int):
    return {"data": Data(x)}

@step
def use(holder) -> int:
    return holder["data"].total() + holder["data"].shifted()

@pipeline
def example(x: int = 1):
    return use(make(x))
"""


@pytest.fixture
def ran(project: Project) -> Project:
    project.write(DATA, "data.py", header="")
    project.write(SCALING, "scaling.py", header="")
    project.run(PIPELINE)
    assert not project.tasks("use")[0]["cached"]
    project.run(PIPELINE)
    assert project.tasks("use")[0]["cached"]
    return project


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("data.py", "scaled(self.x)", "scaled(self.x) + 1"),
        ("data.py", "self.x + 1", "self.x + 2"),
        ("scaling.py", "x * 10", "x * 11"),
    ],
)
def test_a_method_that_a_step_calls_on_its_input(ran: Project, file: str, old: str, new: str) -> None:
    path = ran.folder / file
    path.write_text(path.read_text().replace(old, new))
    ran.upshift("run", "pipeline.py")
    task = ran.tasks("use")[0]
    assert not task["cached"]
    assert task["cache_reason"] == "code of its inputs changed: data.Data, or what it reaches"
    assert "code of its inputs changed" in ran.upshift("show", "latest").out


def test_a_comment_in_the_class_changes_nothing(ran: Project) -> None:
    path = ran.folder / "data.py"
    path.write_text(path.read_text() + "\n# a word\n")
    ran.upshift("run", "pipeline.py")
    assert ran.tasks("use")[0]["cached"]


def test_the_class_of_an_item_of_a_mapped_list(project: Project) -> None:
    code = """
class Item:
    def __init__(self, x): self.x = x
    def value(self): return self.x

@step
def items() -> list:
    return [Item(1), Item(2)]

@step
def use(item) -> int:
    return item.value()

@step
def all_of(items: list) -> int:
    return sum(item.value() for item in items)

@pipeline
def example():
    made = items()
    return all_of(made), use.map(item=made)
"""
    project.run(code)
    project.run(code.replace("return self.x", "return self.x * 2"))
    assert [t["cached"] for t in project.tasks("use")] == [False, False]
    assert [t["cached"] for t in project.tasks("all_of")] == [False]


def test_the_class_of_a_parameter(project: Project) -> None:
    code = """
class Config:
    def __init__(self, x): self.x = x
    def value(self): return self.x

@step
def use(config) -> int:
    return config.value()

@pipeline
def example():
    return use(Config(1))
"""
    project.run(code)
    project.run(code.replace("return self.x", "return -self.x"))
    assert not project.tasks("use")[0]["cached"]
    project.run(code.replace("return self.x", "return -self.x"))
    assert project.tasks("use")[0]["cached"]


def test_a_class_in_a_module_that_only_the_step_imports(project: Project) -> None:
    project.write(DATA, "data.py", header="")
    project.write(SCALING, "scaling.py", header="")
    code = PIPELINE.replace("from data import Data", "").replace(
        "    return {", "    from data import Data\n    return {"
    )
    project.run(code)
    project.run(code)
    assert project.tasks("use")[0]["cached"]
    project.write(SCALING.replace("10", "11"), "scaling.py", header="")
    project.run(code)
    assert not project.tasks("use")[0]["cached"]


def test_the_code_as_recorded_knows_its_own_results(project: Project) -> None:
    code = """
class Box:
    def __init__(self, x): self.x = x
    def value(self): return self.x

@step
def make():
    return Box(5)

@step
def use(box) -> int:
    open("use.log", "a").write("ran\\n")
    return box.value()

@step
def last(x: int) -> int:
    return x // 0

@pipeline
def example():
    return last(use(make()))
"""
    project.run(code, expect=1)
    project.upshift("resume", "latest", "--same-code", expect=1)
    project.upshift("resume", "latest", expect=1)
    assert (project.folder / "use.log").read_text() == "ran\n"
    project.write(code.replace("return self.x", "return self.x + 1"))
    project.upshift("resume", "latest", expect=1)
    assert (project.folder / "use.log").read_text() == "ran\nran\n"
