"""A failure names the user's own line: where it happened, or else the step."""

from __future__ import annotations

from typing import Any

from project import Project

RUN_IT = """
@pipeline
def example():
    return act()
"""


def failure(project: Project, code: str) -> dict[str, Any]:
    """How the step ``act`` of this code fails, as ``show --json`` has it."""
    project.run(code + RUN_IT, expect=1)
    error: dict[str, Any] = project.attempt("act")["error"]
    return error


def line_of(project: Project, text: str) -> str:
    """Where this text stands in the user's file."""
    lines = (project.folder / "pipeline.py").read_text().splitlines()
    return f"pipeline.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_an_error_of_the_standard_library_names_the_users_line(project: Project) -> None:
    error = failure(
        project,
        """
import json

@step
def act():
    return json.loads("x")
""",
    )
    assert error["where"] == line_of(project, "json.loads")
    assert "json.loads" in error["traceback"]
    assert "__init__.py" not in error["traceback"]
    assert "upshift/worker" not in error["traceback"]


def test_an_error_of_an_installed_package_names_the_users_line(project: Project) -> None:
    error = failure(
        project,
        """
import numpy as np

@step
def act():
    return np.linalg.inv(np.zeros((2, 2)))
""",
    )
    assert error["where"] == line_of(project, "np.linalg")


def test_a_line_is_named_the_same_wherever_the_step_has_gone(project: Project) -> None:
    error = failure(
        project,
        """
import os

@step
def act():
    os.chdir("/")
    return 1 / 0
""",
    )
    assert error["where"] == line_of(project, "1 / 0")
