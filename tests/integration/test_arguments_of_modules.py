"""Modules that read ``sys.argv`` when they are imported find what is for them, wherever they are imported."""

from __future__ import annotations

import pytest

from project import Project

SCRIPT = """
import argparse, os, sys, threading

if "UNSAFE_TO_FORK" in os.environ:
    threading.Thread(target=threading.Event().wait, daemon=True).start()

parser = argparse.ArgumentParser()
parser.add_argument("--factor", type=int, default=2)
parser.add_argument("words", nargs="*")
given = parser.parse_args()

@step(cache=False)
def act(x: int) -> int:
    print("arguments", sys.argv[1:])
    return x * given.factor

@pipeline
def example(x: int = 4):
    return act(x)

if __name__ == "__main__":
    print("gave", example().output)
"""


@pytest.fixture(params=["forked", "fresh"])
def env(request: pytest.FixtureRequest) -> dict[str, str]:
    return {"UNSAFE_TO_FORK": "1"} if request.param == "fresh" else {}


def test_the_arguments_of_a_script_reach_its_steps(project: Project, env: dict[str, str]) -> None:
    project.write(SCRIPT)
    printed = project.python("pipeline.py", "--factor", "3", "--", "--step", env=env).out
    assert "gave 12" in printed
    assert "arguments ['--factor', '3', '--', '--step']" in printed


def test_those_of_the_command_line_are_not_for_modules(project: Project, env: dict[str, str]) -> None:
    project.write(SCRIPT)
    assert "arguments []" in project.upshift("run", "pipeline.py", "--param", "x=5", env=env).out


def test_a_resumed_run_imports_such_a_module(project: Project, env: dict[str, str]) -> None:
    project.write(SCRIPT.replace("return x * given.factor", "return x // (given.factor - 2)"))
    project.upshift("run", "pipeline.py", env=env, expect=1)
    project.write(SCRIPT)
    assert "arguments []" in project.upshift("resume", "latest", env=env).out
