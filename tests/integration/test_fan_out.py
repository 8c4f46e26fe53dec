"""Composing: mapping, joining, conditions, order, pipelines in pipelines, end to end."""

from __future__ import annotations

import pytest

import upshift
from project import Project

STEPS = """
@step
def numbers(n: int) -> list[int]:
    return list(range(n))

@step
def double(x: int) -> int:
    return 2 * x

@step
def add(a: int, b: int = 0) -> int:
    return a + b

@step
def total(values: list[int]) -> int:
    return sum(values)

@step
def divide(a: int, b: int) -> tuple[int, int]:
    return divmod(a, b)

@step
def is_large(x: int) -> bool:
    return x > 10
"""


def result(project: Project, body: str, *args: str) -> upshift.Run:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    project.run(f"{STEPS}\n@pipeline\ndef example(n: int = 3):\n{lines}\n", *args)
    return upshift.get_run("latest")


def test_a_static_list_is_mapped_and_joined_in_order(project: Project) -> None:
    run = result(project, "return double.map(x=[3, 1, 2])")
    assert run.output == [6, 2, 4]
    assert run["double"].output == [6, 2, 4]


def test_a_list_that_exists_only_at_run_time(project: Project) -> None:
    run = result(project, "return total(double.map(x=numbers(n)))", "--param", "n=20")
    assert run.output == 380
    assert len(run["double"].tasks) == 20


def test_a_run_time_list_of_no_items(project: Project) -> None:
    run = result(project, "return total(double.map(x=numbers(0)))")
    assert run.output == 0
    assert run["double"].output == []
    assert run["double"].status == "completed"


def test_a_static_list_of_no_items(project: Project) -> None:
    run = result(project, "return double.map(x=[])")
    assert run.output == []


def test_mapping_the_result_of_a_mapped_step(project: Project) -> None:
    run = result(project, "return double.map(x=double.map(x=double.map(x=numbers(4))))")
    assert run.output == [0, 8, 16, 24]


def test_lists_are_zipped_and_other_values_passed_whole(project: Project) -> None:
    run = result(project, "return add.map(a=[1, 2, 3], b=[10, 20, 30]), add.map(a=[1, 2], b=5)")
    assert run.output == ([11, 22, 33], [6, 7])


def test_unmapped_passes_a_list_whole(project: Project) -> None:
    code = """
@step
def scale(x: int, table: list[int]) -> int:
    return x * sum(table)

@step
def make_table() -> list[int]:
    return [1, 2, 3]

@pipeline
def example():
    return scale.map(x=[1, 2], table=unmapped(make_table())), scale.map(x=[1, 2], table=unmapped([5]))
"""
    project.run(code)
    assert upshift.get_run("latest").output == ([6, 12], [5, 10])


def test_run_time_lists_of_unequal_length_fail_with_the_lengths(project: Project) -> None:
    code = STEPS + "\n@pipeline\ndef example():\n    return add.map(a=numbers(2), b=numbers(3))\n"
    outcome = project.run(code, expect=1)
    assert "2" in outcome.err
    assert "3" in outcome.err
    assert "add" in outcome.err


def test_several_outputs_of_a_mapped_step_give_a_list_each(project: Project) -> None:
    run = result(project, "q, r = divide.map(a=[7, 9, 11], b=4)\nreturn q, r")
    assert run.output == ([1, 2, 2], [3, 1, 3])


def test_repeated_calls_are_numbered(project: Project) -> None:
    run = result(project, "return add(add(add(1, 1), 1), 1)")
    assert [step.name for step in run.steps] == ["add", "add_2", "add_3"]
    assert run.output == 4


def test_a_step_runs_only_when_the_flag_is_true(project: Project) -> None:
    body = """
small, large = add(1), add(100)
a = double.when(is_large(small))(small)
b = double.when(is_large(large))(large)
c = add(a, 1)
return b
"""
    run = result(project, body)
    assert run.output == 200
    assert run.status == "completed"
    assert run["double"].status == "skipped"
    assert run["add_3"].status == "skipped"
    assert run["double_2"].status == "completed"


def test_a_skipped_step_says_why(project: Project) -> None:
    code = """
@step
def is_good() -> bool:
    return False

@step
def one(x: int = 1) -> int:
    return x

@step
def several() -> list[int]:
    return [1, 2]

@pipeline
def example():
    deployed = one.with_options(name="deploy").when(is_good())()
    many = several.when(is_good())()
    one.with_options(name="tell").map([deployed, 2])
    one.with_options(name="each").map(many)
    return one.with_options(name="announce")(deployed)
"""
    progress = project.run(code).err
    assert "deploy: skipped: is_good gave False\n" in progress
    assert "announce: skipped: needs deploy, which was skipped\n" in progress
    shown = {s["name"]: s["tasks"] for s in project.show()["steps"]}
    assert shown["deploy"][0]["cache_reason"] == "is_good gave False"
    assert shown["announce"][0]["cache_reason"] == "needs deploy, which was skipped"
    assert shown["each"][0]["cache_reason"] == "needs several, which was skipped"
    assert [task["status"] for task in shown["tell"]] == ["skipped", "completed"]
    assert shown["tell"][0]["cache_reason"] == "needs deploy, which was skipped"
    assert "is_good_2 gave False" in project.upshift("show", "latest").out


def test_after_orders_without_data(project: Project) -> None:
    code = """
from pathlib import Path

@step(cache=False)
def write() -> None:
    Path("flag").write_text("written")

@step(cache=False)
def read() -> str:
    return Path("flag").read_text()

@pipeline
def example():
    first = write()
    return read.after(first)()
"""
    project.run(code)
    assert upshift.get_run("latest").output == "written"


def test_a_pipeline_in_a_pipeline(project: Project) -> None:
    code = (
        STEPS
        + """
@pipeline
def inner(x: int):
    return double(double(x))

@pipeline
def example():
    return add(inner(1), inner(x=2))
"""
    )
    project.write(code)
    project.upshift("run", "pipeline.py:example")
    run = upshift.get_run("latest")
    assert run.output == 12
    assert len(run.steps) == 5


def test_a_pipeline_without_steps_completes(project: Project) -> None:
    run = result(project, "return n")
    assert run.status == "completed"
    assert run.output == 3
    assert run.steps == []


def test_with_options_gives_a_changed_copy(project: Project) -> None:
    body = """
big = double.with_options(name="big", settings={"resources": ResourceSettings(memory="300MB")})
return big(double(1))
"""
    run = result(project, body)
    assert run.output == 4
    assert run["big"].tasks[0].attempts[-1].asked.memory == 300_000_000
    assert run["double"].tasks[0].attempts[-1].asked.memory is None


def test_parameters_are_read_by_annotation(project: Project) -> None:
    code = """
from dataclasses import dataclass
from typing import Literal, Optional

@step
def echo(values: list) -> list:
    return values

@pipeline
def example(
    n: int = 1,
    rate: float = 0.1,
    flag: bool = False,
    name: str = "a",
    sizes: list[int] = [],
    table: dict[str, float] = {},
    mode: Literal["fast", "slow"] = "fast",
    maybe: Optional[int] = None,
):
    return echo([n, rate, flag, name, sizes, table, mode, maybe])
"""
    params = (
        "n=5",
        "rate=1e-3",
        "flag=true",
        "name=007",
        "sizes=[1, 2]",
        'table={"x": 1.5}',
        "mode=slow",
        "maybe=4",
    )
    project.run(code, *(arg for p in params for arg in ("--param", p)))
    assert upshift.get_run("latest").output == [5, 0.001, True, "007", [1, 2], {"x": 1.5}, "slow", 4]


def test_parameters_from_a_file(project: Project) -> None:
    (project.folder / "params.json").write_text('{"n": 4}')
    run = result(project, "return double(n)", "--params-file", "params.json")
    assert run.output == 8
    assert run.params == {"n": 4}


def test_a_thousand_tasks(project: Project) -> None:
    run = result(project, "return total(double.map(x=numbers(n)))", "--param", "n=1000")
    assert run.output == 999_000
    assert all(task.status == "completed" for task in run["double"].tasks)


def test_a_file_and_a_folder_travel_by_content(project: Project) -> None:
    code = """
from pathlib import Path

@step
def make() -> tuple[Path, Path]:
    here = Path("made")
    here.mkdir()
    (here / "notes.txt").write_text("hello")
    (here / "model" / "deep").mkdir(parents=True)
    (here / "model" / "deep" / "weights.bin").write_bytes(b"123")
    return here / "notes.txt", here / "model"

@step
def read(notes: Path, model: Path) -> tuple[str, bytes]:
    return notes.read_text(), (model / "deep" / "weights.bin").read_bytes()

@pipeline
def example():
    notes, model = make()
    text, weights = read(notes, model)
    return text, weights
"""
    project.run(code)
    assert upshift.get_run("latest").output == ("hello", b"123")


def test_a_step_may_change_its_input_and_nobody_else_sees_it(project: Project) -> None:
    code = """
import numpy as np

@step
def make() -> np.ndarray:
    return np.zeros(200_000)

@step
def spoil(data: np.ndarray) -> float:
    data += 1
    return float(data.sum())

@step
def look(data: np.ndarray, after: float) -> float:
    return float(data.sum())

@pipeline
def example():
    data = make()
    spoiled = spoil(data)
    return spoiled, look(data, spoiled)
"""
    project.run(code)
    run = upshift.get_run("latest")
    assert run.output == (200_000.0, 0.0)
    assert float(run["make"].output.sum()) == 0.0


WAITING = """
import resource, time

@step(settings={"resources": ResourceSettings(cpu_count=0.01)})
def wait(number: int) -> int:
    print("here")
    time.sleep(1.5)
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

@pipeline
def example():
    return wait.map(list(range(40)))
"""


@pytest.mark.parametrize("limit", ["-Sn 130", "-n 130"], ids=["soft", "hard"])
def test_more_tasks_than_files_may_be_open_run_all_the_same(project: Project, limit: str) -> None:
    """A step that runs takes several descriptors of its supervisor's."""
    project.write(WAITING)
    engine = project.start("run", "pipeline.py", prefix=["sh", "-c", f'ulimit {limit}; exec "$0" "$@"'])
    said = "".join(engine.communicate(timeout=60))
    assert engine.returncode == 0, said
    assert upshift.get_run("latest").output == [130] * 40


def test_a_flag_may_be_one_of_numpy(project: Project) -> None:
    code = """
import numpy as np

@step
def good(limit: float) -> bool:
    return np.array([0.9, 0.8]).mean() > limit

@step
def note(word: str) -> str:
    return word

@pipeline
def example():
    yes, no = good(0.5), good(0.95)
    note.with_options(name="kept").when(no)("kept")
    return note.when(yes)("deployed")
"""
    project.run(code)
    run = upshift.get_run("latest")
    assert run.output == "deployed" and run["kept"].status == "skipped"
