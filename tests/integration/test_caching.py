"""When a result is used again, when it is not, and what is said about it."""

from __future__ import annotations

import pytest

import upshift
from project import Project

CODE = """
from features import normalize

OFFSET = 1

@step
def load() -> list[int]:
    return [3, 4, 5]

@step
def prepare(data: list[int]) -> list[int]:
    return [normalize(x) + OFFSET for x in data]

@step
def total(data: list[int]) -> int:
    return sum(data)

@pipeline
def example():
    return total(prepare(load()))
"""
FEATURES = """
def normalize(x):
    return scale(x)

def scale(x):
    return 2 * x

def unrelated(x):
    return x
"""


def cached(project: Project) -> dict[str, bool]:
    return {s["name"]: s["tasks"][0]["cached"] for s in project.show()["steps"]}


def first(project: Project) -> None:
    project.write(FEATURES, "features.py", header="")
    project.run(CODE)


def test_nothing_changed_so_everything_is_reused(project: Project) -> None:
    first(project)
    project.upshift("run", "pipeline.py")
    assert cached(project) == {"load": True, "prepare": True, "total": True}
    assert upshift.get_run("latest").output == 27


def test_a_helper_in_another_module_that_changed_is_named(project: Project) -> None:
    first(project)
    project.write(FEATURES.replace("2 * x", "3 * x"), "features.py", header="")
    project.upshift("run", "pipeline.py")
    assert cached(project) == {"load": True, "prepare": False, "total": False}
    assert upshift.get_run("latest").output == 39
    assert project.tasks("prepare")[0]["cache_reason"] == "code changed: scale in features.py"
    assert project.tasks("total")[0]["cache_reason"] == ("input changed: data: [7,9,11] → [10,13,16]")


def test_a_function_that_no_step_reaches_matters_only_in_another_file_than_theirs(project: Project) -> None:
    first(project)
    project.run(CODE + "\n\ndef unused():\n    return 1\n")
    assert all(cached(project).values())

    project.write(FEATURES.replace("    return x\n", "    return x + 1\n"), "features.py", header="")
    project.upshift("run", "pipeline.py")
    assert cached(project) == {"load": True, "prepare": False, "total": True}


def test_a_constant_that_changed(project: Project) -> None:
    first(project)
    project.run(CODE.replace("OFFSET = 1", "OFFSET = 2"))
    assert cached(project) == {"load": True, "prepare": False, "total": False}
    assert project.tasks("prepare")[0]["cache_reason"] == "code changed: constant OFFSET in pipeline.py"


@pytest.mark.parametrize(
    "used", ["import side\n", "from side import CFG\n", ""], ids=["module", "name", "in the step"]
)
def test_a_constant_that_changed_is_named_the_same_way_wherever_it_is_used(
    project: Project, used: str
) -> None:
    inside = "" if used else "    import side\n"
    name = "CFG" if "from" in used else "side.CFG"
    code = used + CODE.replace("    return [normalize", inside + "    return [normalize")
    code = code.replace("+ OFFSET", f"+ {name}")
    project.write(FEATURES, "features.py", header="")
    project.write("CFG = 1\n", "side.py", header="")
    project.run(code)
    project.write("CFG = 2\n", "side.py", header="")
    planned = project.upshift("plan", "pipeline.py").out
    project.upshift("run", "pipeline.py")
    assert cached(project) == {"load": True, "prepare": False, "total": False}
    reason = project.tasks("prepare")[0]["cache_reason"]
    assert reason == "code changed: constant CFG in side.py"
    assert reason in planned


def test_comments_and_blank_lines_do_not_matter(project: Project) -> None:
    first(project)
    project.run(
        "\n\n# a comment\n" + CODE.replace("    return sum(data)", "    # add up\n    return sum(data)")
    )
    assert all(cached(project).values())


def test_an_upstream_that_gave_the_same_bytes_invalidates_nothing(project: Project) -> None:
    first(project)
    project.run(CODE.replace("[3, 4, 5]", "list(range(3, 6))"))
    assert cached(project) == {"load": False, "prepare": True, "total": True}


def test_no_cache_runs_everything(project: Project) -> None:
    first(project)
    project.upshift("run", "pipeline.py", "--no-cache")
    assert not any(cached(project).values())


def test_a_step_that_opts_out_always_runs(project: Project) -> None:
    project.write(FEATURES, "features.py", header="")
    code = CODE.replace("@step\ndef prepare", "@step(cache=False)\ndef prepare")
    project.run(code)
    project.upshift("run", "pipeline.py")
    assert cached(project) == {"load": True, "prepare": False, "total": True}


def test_two_runs_of_one_pipeline_at_once(project: Project) -> None:
    code = """
@step
def work(i: int) -> int:
    return i * i

@step
def total(values: list[int]) -> int:
    return sum(values)

@pipeline
def example(n: int = 40):
    return total(work.map(i=list(range(n))))
"""
    project.write(code)
    processes = [project.start("run", "pipeline.py") for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    runs = upshift.list_runs()
    assert len({run.id for run in runs}) == 3
    assert [run.status for run in runs] == ["completed"] * 3
    assert [run.output for run in runs] == [sum(i * i for i in range(40))] * 3


def test_a_failed_result_is_never_reused(project: Project) -> None:
    code = """
from pathlib import Path

@step
def flaky() -> int:
    if not Path("ready").exists():
        raise RuntimeError("not ready")
    return 1

@pipeline
def example():
    return flaky()
"""
    project.run(code, expect=1)
    (project.folder / "ready").touch()
    project.upshift("run", "pipeline.py")
    assert upshift.get_run("latest").output == 1
