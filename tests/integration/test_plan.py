"""``upshift plan`` says what the next ``upshift run`` does, and does none of it."""

from __future__ import annotations

import json
from typing import Any

import upshift
from project import Project

CODE = """
from features import normalize

@step
def load(n: int) -> list[int]:
    return list(range(n))

@step
def prepare(x: int) -> int:
    return normalize(x)

@step(settings={"resources": ResourceSettings(cpu_count=1, memory="300MB")})
def total(data: list[int]) -> int:
    return sum(data)

@step
def is_large(value: int) -> bool:
    return value > 100

@step
def alarm(value: int) -> str:
    return f"{value} is large"

@pipeline
def example(n: int = 3):
    added = total(prepare.map(x=load(n)))
    alarm.when(is_large(added))(added)
    return added
"""
FEATURES = """
def normalize(x):
    return scale(x)

def scale(x):
    return 2 * x
"""


def planned(project: Project, *args: str, expect: int = 0) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        project.upshift("plan", "pipeline.py", "--json", *args, expect=expect).out
    )
    return data


def actions(plan: dict[str, Any]) -> dict[str, list[str]]:
    return {step["name"]: [task["action"] for task in step["tasks"]] for step in plan["steps"]}


def check_against_the_run(project: Project, plan: dict[str, Any], *args: str) -> None:
    """Run; what was said to be reused was, what was said to run did, for the reason that was given."""
    project.upshift("run", "pipeline.py", *args)
    done = {step["name"]: step for step in project.show()["steps"]}
    for step in plan["steps"]:
        for task, ended in zip(step["tasks"], done[step["name"]]["tasks"], strict=False):
            if task["action"] in ("runs", "reused"):
                assert ended["cached"] == (task["action"] == "reused"), step["name"]
                assert ended["cache_reason"] == task["reason"], step["name"]
            elif task["action"] == "skipped":
                assert ended["status"] == "skipped", step["name"]


def test_a_plan_says_what_the_next_run_reuses(project: Project) -> None:
    project.write(FEATURES, "features.py", header="")
    project.write(CODE)
    plan = planned(project)
    assert actions(plan) == {
        "load": ["runs"],
        "prepare": ["depends"],
        "total": ["depends"],
        "is_large": ["depends"],
        "alarm": ["depends"],
    }
    check_against_the_run(project, plan)

    plan = planned(project)
    assert actions(plan) == {
        "load": ["reused"],
        "prepare": ["reused"] * 3,
        "total": ["reused"],
        "is_large": ["reused"],
        "alarm": ["skipped"],
    }
    check_against_the_run(project, plan)

    plan = planned(project, "--param", "n=5")
    assert actions(plan)["load"] == ["runs"]
    check_against_the_run(project, plan, "--param", "n=5")

    project.write(FEATURES.replace("2 * x", "3 * x"), "features.py", header="")
    plan = planned(project, "--param", "n=5")
    assert actions(plan) == {
        "load": ["reused"],
        "prepare": ["runs"] * 5,
        "total": ["depends"],
        "is_large": ["depends"],
        "alarm": ["depends"],
    }
    prepare = next(step for step in plan["steps"] if step["name"] == "prepare")
    assert prepare["tasks"][0]["reason"] == "code changed: scale in features.py"
    check_against_the_run(project, plan, "--param", "n=5")

    plan = planned(project, "--param", "n=5", "--no-cache")
    assert {name for name, tasks in actions(plan).items() if tasks != ["runs"]} == {"alarm"}
    check_against_the_run(project, plan, "--param", "n=5", "--no-cache")


def test_a_plan_calls_no_step_and_leaves_no_run(project: Project) -> None:
    project.write("""
@step
def touch() -> int:
    open("touched", "w").close()
    return 1

@pipeline
def example():
    return touch()
""")
    project.upshift("plan", "pipeline.py")
    assert upshift.list_runs() == []
    assert not (project.folder / "touched").exists()
    kept = [path for path in project.home.rglob("*") if path.is_file()]
    assert [path for path in kept if "store" in path.parts] == []


def test_a_plan_on_a_page(project: Project) -> None:
    project.write(FEATURES, "features.py", header="")
    project.write(CODE)
    project.upshift("run", "pipeline.py")
    out = project.upshift("plan", "pipeline.py").out
    assert out.splitlines()[0] == "plan of example · 5 steps: 4 reused, 1 skipped"
    assert "prepare ×3  for each of load" in out
    assert "alarm       when is_large" in out
    assert "asks     cpu_count=1, memory=300 MB: pipeline.py:13 (@step)" in out
    assert "is_large gave False" in out
    assert "2 files" in out


def test_what_a_run_would_be_refused_for_a_plan_is_too_in_the_same_words(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(num_nodes=4)})
def train() -> int:
    return 1

@pipeline
def example():
    return train()
"""
    project.write(code)
    plan = project.upshift("plan", "pipeline.py", "--strict", expect=2)
    run = project.upshift("run", "pipeline.py", "--strict", expect=2)
    assert plan.err == run.err
    assert "asked 4 nodes, gets 1" in plan.err
    assert "refused" in plan.out
    data = planned(project, "--strict", expect=2)
    assert data["steps"][0]["refused"]
    assert data["refused"][0]["what"] in run.err
    assert "degraded asked 4 nodes, gets 1" in project.upshift("plan", "pipeline.py").out


def test_mistakes_are_told_as_a_run_tells_them(project: Project) -> None:
    project.write("""
@step
def one() -> int:
    return 1

@pipeline
def example():
    raise ValueError("no data")
""")
    plan = project.upshift("plan", "pipeline.py", expect=2)
    run = project.upshift("run", "pipeline.py", expect=2)
    assert plan.err == run.err
    assert "ValueError: no data" in plan.err
    assert plan.out == ""
    missing = project.upshift("plan", "pipeline.py", "--on", "clutser", expect=2)
    assert "no target is named 'clutser'" in missing.err


def test_a_plan_exits_as_its_run_does(project: Project) -> None:
    code = """
@step
def numbers() -> list[int]:
    return [1, 2, 3]

@step
def add(x: int, y: int) -> int:
    return x + y

@step
def last(added: list[int]) -> int:
    return sum(added)

@pipeline
def example(many: int = 2):
    return last(add.map(numbers(), list(range(many))))
"""
    project.write(code)
    assert planned(project)["exit_code"] == 0  # how many numbers there are is not known yet
    project.upshift("run", "pipeline.py", expect=1)
    plan = planned(project, expect=1)
    assert plan["exit_code"] == 1
    assert actions(plan) == {"numbers": ["reused"], "add": ["fails"], "last": ["fails"]}
    outcome = project.upshift("plan", "pipeline.py", expect=1)
    assert "Failed: the run would fail at step add: add is mapped over" in outcome.err
    assert "where: pipeline.py:" in outcome.err
    assert planned(project, "--param", "many=3")["exit_code"] == 0
    project.upshift("run", "pipeline.py", "--param", "many=3")
