"""What the file that was run does when it is imported holds for steps of other modules, in every process."""

from __future__ import annotations

import pytest

import upshift
from project import Project

MAIN = """
import decimal

decimal.getcontext().prec = 5

import plugins
import steps

@pipeline
def example():
    return steps.third()

if __name__ == "__main__":
    example()
"""
STEPS = """
from decimal import Decimal

REGISTERED = {}

def register(function):
    REGISTERED[function.__name__] = function
    return function

@step
def third() -> list[str]:
    return [str(Decimal(1) / 3), *sorted(REGISTERED)]
"""
PLUGINS = """
import steps

@steps.register
def first():
    return 1
"""


@pytest.fixture
def written(project: Project) -> Project:
    project.write(MAIN, "main.py")
    project.write(STEPS, "steps.py")
    project.write(PLUGINS, "plugins.py")
    return project


def edit(project: Project, file: str, old: str, new: str) -> None:
    path = project.folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def outcome(project: Project) -> tuple[bool, object]:
    task = project.show()["steps"][0]["tasks"][0]
    return task["cached"], upshift.get_run("latest").output


@pytest.mark.parametrize(
    "command",
    [
        ("upshift", "run", "main.py"),
        ("python", "main.py"),
        ("python", "-m", "main"),
        ("python", "-c", "import main; main.example()"),
        ("python", "-c", "import other; other.call()"),
    ],
    ids=" ".join,
)
def test_an_edit_of_what_it_does_runs_the_step_and_nothing_else_does(
    written: Project, command: tuple[str, ...]
) -> None:
    written.write("import main\ndef call(): main.example()\n", "other.py", header="")

    def run() -> tuple[bool, object]:
        if command[0] == "upshift":
            written.upshift(*command[1:])
        else:
            written.python(*command[1:])
        return outcome(written)

    run()  # of files that are as old as the process it is not sure that they were not edited since
    assert run()[1] == ["0.33333", "first"]
    edit(written, "main.py", "import plugins", "import plugins  # a comment")
    assert run() == (True, ["0.33333", "first"])
    edit(written, "main.py", "prec = 5", "prec = 12")
    assert run() == (False, ["0.333333333333", "first"])
    reason = written.show()["steps"][0]["tasks"][0]["cache_reason"]
    assert reason == "code changed: what main.py does when it is imported"
    edit(written, "main.py", "    return steps.third()", "    return [steps.third()][0]")
    assert run() == (True, ["0.333333333333", "first"])


def test_what_calls_the_pipeline_counts_though_another_module_has_it(written: Project) -> None:
    script = "import os\nos.environ['X'] = '1'\nimport main\nif __name__ == '__main__':\n    main.example()\n"
    written.write(script, "script.py", header="")

    def run() -> tuple[bool, object]:
        written.python("script.py")
        return outcome(written)

    run()  # of files that are as old as the process it is not sure that they were not edited since
    run()
    assert run()[0] is True
    edit(written, "script.py", "'1'", "'2'")
    assert run()[0] is False


def test_a_replay_imports_what_the_run_had_imported(written: Project) -> None:
    written.upshift("run", "main.py")

    assert "with the output that was recorded" in written.upshift("replay", "latest", "third").text


def test_processes_that_start_afresh_import_it(written: Project) -> None:
    # A thread at import makes this process one that must not be forked.
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    edit(written, "main.py", "import decimal\n", f"import decimal\n{thread}")
    written.upshift("run", "main.py")

    assert outcome(written) == (False, ["0.33333", "first"])


def test_a_script_is_imported_once_in_each_process(written: Project) -> None:
    edit(written, "main.py", "import plugins", "import plugins\nprint('imported as', __name__)")
    done = written.python("main.py")

    assert done.text.count("imported as") == 1, done.text
    assert outcome(written) == (False, ["0.33333", "first"])


def test_an_entry_that_does_nothing_is_not_imported_where_its_step_is_enough(project: Project) -> None:
    text = "print('imported')\n"
    project.write("import quiet\nimport steps\n@pipeline\ndef p():\n    return steps.third()\n", "main.py")
    project.write("LIMIT = 3\ndef f(x):\n    return x + LIMIT\n", "quiet.py")
    project.write(STEPS, "steps.py")
    project.upshift("run", "main.py")
    edit(project, "quiet.py", "LIMIT = 3", f"{text}LIMIT = 3")

    assert "imported" not in project.upshift("replay", "latest", "third", "--current-code").text


def test_an_entry_that_cannot_be_imported_again_fails_the_step_and_is_named(written: Project) -> None:
    written.upshift("run", "main.py")
    edit(written, "main.py", "import plugins", "import plugins\nraise RuntimeError('no')")

    failed = written.upshift("replay", "latest", "third", "--current-code", expect=None)
    assert failed.code == 1
    assert "RuntimeError: no" in failed.text
    assert "main.py" in failed.text
