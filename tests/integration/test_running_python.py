"""`python my_pipeline.py`, `__main__`, notebooks, and modules that run a pipeline when imported."""

from __future__ import annotations

from pathlib import Path

import pytest

import upshift
from project import Project

SCRIPT = """
from dataclasses import dataclass

FACTOR = 3

@dataclass
class Point:
    x: int
    y: int

def scale(value):
    return FACTOR * value

@step
def make(x: int) -> Point:
    return Point(x, scale(x))

@step
def norm(point: Point) -> int:
    assert isinstance(point, Point), type(point)
    return point.x + point.y

@pipeline
def example(x: int = 1):
    return norm(make(x))
"""


def test_a_script_runs_its_pipeline(project: Project) -> None:
    project.write(
        SCRIPT + "\nif __name__ == '__main__':\n    run = example(x=2)\n    print(run.status, run.output)\n"
    )
    assert "completed 8" in project.python("pipeline.py").out


def test_objects_of_classes_in_main_come_back_as_such(project: Project) -> None:
    project.write(
        SCRIPT
        + "\nif __name__ == '__main__':\n    run = example(x=2)\n"
        + "    print(isinstance(run['make'].output, Point), run['make'].output)\n"
    )
    assert "True Point(x=2, y=6)" in project.python("pipeline.py").out


def test_a_script_and_the_command_share_results(project: Project) -> None:
    project.write(SCRIPT + "\nif __name__ == '__main__':\n    example()\n")
    project.python("pipeline.py")
    project.upshift("run", "pipeline.py")
    assert all(task.cached for step in upshift.get_run("latest").steps for task in step.tasks)


def test_a_pipeline_called_at_module_level_runs_once(project: Project) -> None:
    project.write(SCRIPT + "\nrun = example(x=2)\nprint('ended', run.output)\n")
    outcome = project.python("pipeline.py")
    assert outcome.out.count("ended 8") == 1
    assert len(upshift.list_runs()) == 1


def test_the_command_runs_a_file_that_calls_its_pipeline_once(project: Project) -> None:
    project.write(SCRIPT + "\nrun = example(x=2)\n")
    project.upshift("run", "pipeline.py", "--param", "x=5")
    (run,) = upshift.list_runs()
    assert upshift.get_run(run.id).output == 20


def test_a_failed_run_raises_in_python_and_has_the_run(project: Project) -> None:
    code = """
import upshift

@step
def bad() -> int:
    return 1 // 0

@pipeline
def example():
    return bad()

if __name__ == "__main__":
    try:
        example()
    except upshift.RunFailed as error:
        print("caught", error.run.status, error.run["bad"].status)
"""
    project.write(code)
    assert "caught failed failed" in project.python("pipeline.py").out


def test_an_uncaught_failure_shows_the_users_error(project: Project) -> None:
    project.write(
        "@step\ndef bad() -> int:\n    return 1 // 0\n"
        "@pipeline\ndef example():\n    return bad()\n\nexample()\n"
    )
    outcome = project.python("pipeline.py", expect=1)
    assert "ZeroDivisionError" in outcome.err


def test_calling_a_step_outside_a_pipeline_just_calls_it(project: Project) -> None:
    project.write(SCRIPT + "\nprint(norm(make(4)))\n")
    assert project.python("pipeline.py").out.strip() == "16"
    assert upshift.list_runs() == []


def test_functions_that_cannot_be_imported_travel_by_value(project: Project) -> None:
    # As a notebook does: the code has no file, and an event loop is running.
    notebook = f'''
import asyncio
CELL = """{SCRIPT}"""
async def main():
    exec(compile("from upshift import *\\n" + CELL, "<cell>", "exec"), globals())
    run = globals()["example"](x=3)
    print("in a loop:", run.output)
asyncio.run(main())
'''
    project.write(notebook)
    assert "in a loop: 12" in project.python("pipeline.py").out


def test_a_program_read_from_standard_input_works(project: Project) -> None:
    code = "from upshift import *\n" + SCRIPT + "\nprint('from -c:', example(x=1).output)\n"
    assert "from -c: 4" in project.python("-c", code).out


def test_closures_and_lambdas(project: Project) -> None:
    code = """
def make_step(k):
    @step(name=f"times_{k}")
    def times(x: int) -> int:
        return k * x
    return times

@pipeline
def example():
    return make_step(3)(make_step(2)(1))
"""
    project.run(code)
    run = upshift.get_run("latest")
    assert run.output == 6
    assert [s.name for s in run.steps] == ["times_2", "times_3"]


def test_helper_modules_beside_the_file_and_in_packages(project: Project) -> None:
    project.write("def triple(x):\n    return 3 * x\n", "helpers.py", header="")
    project.write("", "tools/__init__.py", header="")
    project.write(
        "from helpers import triple\n\ndef six(x):\n    return 2 * triple(x)\n", "tools/more.py", header=""
    )
    code = """
from tools.more import six

@step
def f() -> int:
    return six(7)

@pipeline
def example():
    return f()
"""
    project.run(code)
    assert upshift.get_run("latest").output == 42


def test_a_run_started_from_another_folder(project: Project, tmp_path: Path) -> None:
    project.write("def answer():\n    return 42\n", "helpers.py", header="")
    project.write(
        """
import os
from helpers import answer

@step(cache=False)
def f() -> tuple[int, str]:
    return answer(), os.getcwd()

@pipeline
def example():
    number, folder = f()
    return number, folder
"""
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    project.upshift("run", "../project/pipeline.py", cwd=elsewhere)
    assert upshift.get_run("latest").output == (42, str(elsewhere))


def test_a_method_call_from_a_thread(project: Project) -> None:
    project.write(
        SCRIPT
        + "\nif __name__ == '__main__':\n"
        + "    import threading\n"
        + "    thread = threading.Thread(target=lambda: print('threaded', example(x=2).output))\n"
        + "    thread.start(); thread.join()\n"
    )
    assert "threaded 8" in project.python("pipeline.py").out


def test_two_runs_one_after_the_other_in_one_program(project: Project) -> None:
    project.write(
        SCRIPT + "\nif __name__ == '__main__':\n    print(example(x=1).output, example(x=2).output)\n"
    )
    assert "4 8" in project.python("pipeline.py").out


def test_a_traceback_is_shown_once_and_the_time_it_took_too(project: Project) -> None:
    project.write(
        """
@step(retries=Retry(times=1, on=("user-error",)))
def f() -> int:
    raise ValueError("boom")

@pipeline
def example():
    return f()

if __name__ == "__main__":
    example()
"""
    )
    err = project.python("pipeline.py", expect=1).err
    assert err.count('raise ValueError("boom")') == 1
    assert "f: attempt 1 failed (user-error): ValueError: boom (pipeline.py:" in err
    assert err.count("f: attempt 2 failed after ") == 1
    assert "\nf: failed" not in err  # the id of a run may end in an f
    assert "upshift.errors.RunFailed: step f failed in attempt 2 (user-error): ValueError: boom" in err


@pytest.mark.parametrize(
    "mistake",
    [
        "make.when(3)(1)",
        "make.with_options(retires=1)",
        "step(retires=1)",
        "ResourceSettings(memory='16GBB')",
        "upshift.get_run('nothing')",
    ],
)
def test_a_mistake_in_a_script_shows_no_line_of_upshift(project: Project, mistake: str) -> None:
    project.write(SCRIPT + f"\nimport upshift\ndef wrong():\n    {mistake}\nwrong()\n")
    shown = project.python("pipeline.py", expect=1).err
    frames = [line for line in shown.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2, shown
    assert all("pipeline.py" in frame for frame in frames)
    assert "upshift.errors." in shown


@pytest.mark.parametrize("kind", ["KeyError", "upshift.UsageError"])
def test_the_mistake_behind_another_error_shows_none_either(project: Project, kind: str) -> None:
    project.write(f"""
import upshift
try:
    ResourceSettings(memory="16GBB")
except upshift.SettingsError as error:
    raise {kind}("mine") from error
""")
    shown = project.python("pipeline.py", expect=1).err
    assert "16GBB" in shown
    assert "direct cause" in shown
    assert "mine" in shown
    assert "src/upshift" not in shown


def test_a_hook_for_uncaught_errors_that_is_the_users_stays(project: Project) -> None:
    project.write("""
import sys
def mine(kind, error, trace):
    print("mine:", kind.__name__)
sys.excepthook = mine
ResourceSettings(memory="16GBB")
""")
    assert project.python("pipeline.py", expect=1).out == "mine: SettingsError\n"


def test_a_process_that_a_step_starts_anew_runs_no_pipeline(project: Project) -> None:
    """It imports the main module, where the call of the pipeline is not guarded."""
    code = """
import multiprocessing

def double(number: int) -> int:
    return 2 * number

@step
def work() -> list[int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(double, [1, 2])

@pipeline
def example():
    return work()

print("came to", example().output)
"""
    project.write(code)
    outcome = project.python("pipeline.py")
    assert "came to [2, 4]" in outcome.out
    assert len(upshift.list_runs()) == 1
