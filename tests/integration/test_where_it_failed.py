"""A failure names the user's own line: where it happened, or else the step."""

from __future__ import annotations

from typing import Any

import pytest

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


def test_a_step_that_runs_out_of_time_names_the_line_that_it_was_at(project: Project) -> None:
    error = failure(
        project,
        """
import threading

def wait():
    threading.Event().wait()  # here

@step(timeout=0.5)
def act():
    wait()
""",
    )
    assert error["where"] == line_of(project, "# here")


def test_a_busy_step_that_runs_out_of_time_names_its_line(project: Project) -> None:
    error = failure(
        project,
        """
@step(timeout=0.5)
def act():
    while True: sum(range(100))  # here
""",
    )
    assert error["where"] == line_of(project, "# here")


def test_children_of_a_step_that_runs_out_of_time_do_not_speak_for_it(project: Project) -> None:
    error = failure(
        project,
        """
import os, threading

def child():
    threading.Event().wait()

@step(timeout=0.5)
def act():
    if os.fork() == 0:
        child()
    threading.Event().wait()  # here
""",
    )
    assert error["where"] == line_of(project, "# here")


def test_a_step_with_a_handler_of_its_own_names_its_definition(project: Project) -> None:
    error = failure(
        project,
        """
import signal, sys, threading

@step(timeout=0.5)
def act():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Event().wait()
""",
    )
    assert project.attempt("act")["reason"] == "timeout"
    assert error["where"] == line_of(project, "@step(timeout")


def test_a_crash_of_native_code_names_the_line_that_called_it(project: Project) -> None:
    error = failure(
        project,
        """
import ctypes

@step
def act():
    ctypes.string_at(0)  # here
""",
    )
    assert "SIGSEGV" in error["message"]
    assert error["where"] == line_of(project, "# here")
    assert (
        '  File "{}", line {}, in act\n    ctypes.string_at(0)'.format(
            project.folder / "pipeline.py", error["where"].rpartition(":")[2]
        )
        in error["traceback"]
    )
    assert "ctypes/__init__.py" in error["traceback"].splitlines()[-2]
    assert "src/upshift" not in error["traceback"]


@pytest.mark.parametrize(
    "body",
    [
        "import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)",
        "import os\n    os._exit(3)",
        "return (item for item in range(3))",
        "return bytearray(1_000_000_000)",
    ],
    ids=["killed", "exits", "cannot be saved", "out of memory"],
)
def test_a_step_that_names_no_line_itself_is_named_by_its_definition(project: Project, body: str) -> None:
    error = failure(
        project,
        f"""
@step(settings={{"resources": ResourceSettings(memory="200MB")}})
def act():
    {body}
""",
    )
    assert error["where"] == line_of(project, "@step(settings")


def test_too_many_outputs_name_the_step(project: Project) -> None:
    project.run(
        """
@step
def act() -> tuple[int, int]:
    return 1, 2, 3

@pipeline
def example():
    a, b = act()
    return a
""",
        expect=1,
    )
    assert project.attempt("act")["error"]["where"] == line_of(project, "@step")


def test_a_step_that_was_cancelled_blames_no_line(project: Project) -> None:
    told = project.fifo("told")
    project.write(
        """
import signal

@step
def act():
    with open("told", "w") as pipe:
        pipe.write("up")
    signal.pause()
"""
        + RUN_IT
    )
    process = project.start("run", "pipeline.py")
    told.read_text()
    project.upshift("cancel", "latest")
    process.communicate(timeout=30)
    assert project.attempt("act")["error"]["where"] is None
