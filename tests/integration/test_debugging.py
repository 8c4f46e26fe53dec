"""``run --debug`` and ``replay``: a step in this terminal, under a debugger."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from project import UPSHIFT, Project
from screen import on_terminal

CODE = """
import os

@step
def load() -> list[int]:
    return [1, 2, 3]

@step
def work(x: int, n: int) -> float:
    double = x * 2
    print("working on", x, os.getpid())
    return double / (x - n)

@pipeline
def example(n: int = 2):
    return work.map(x=load(), n=n)
"""


def typed(project: Project, lines: str, *args: str) -> tuple[int, str]:
    """Run ``upshift ARGS`` on a terminal, with these lines typed ahead."""
    script = f"stty -echo; {UPSHIFT} {' '.join(args)}"
    keys = project.folder / "keys"
    keys.write_text(lines)
    command = ["python3", "-c", TYPIST, str(keys), "sh", "-c", script]
    return on_terminal(command, project.environment(), cwd=project.folder, width=200)


TYPIST = """
import os, pty, sys
keys = open(sys.argv[1]).read()
def read(fd):
    data = os.read(fd, 4096)
    global keys
    if b"(Pdb)" in data and keys:
        line, _, keys = keys.partition(chr(10))
        os.write(fd, line.encode() + b"\\n")
    return data
code = pty.spawn(sys.argv[2:], read)
sys.exit(os.waitstatus_to_exitcode(code))
"""


def test_a_debugged_step_runs_in_this_process_and_the_others_in_theirs(project: Project) -> None:
    project.write(CODE)
    outcome = project.upshift("run", "pipeline.py", "-p", "n=7", "--debug", "work[1]")
    pids = dict(re.findall(r"working on (\d) (\d+)", outcome.out))
    assert len(set(pids.values())) == 3
    assert "work[1]: runs in this process, neither limited nor pinned (--debug)" in outcome.err
    tasks = project.tasks("work")
    assert [task["attempts"][0]["backend"] for task in tasks] == ["local", "inline", "local"]
    assert tasks[1]["attempts"][0]["used"]["memory"] is not None
    assert tasks[1]["cache_reason"] == "debugged"


def test_it_runs_though_there_is_a_result_and_its_own_is_not_reused(project: Project) -> None:
    project.write(CODE)
    project.upshift("run", "pipeline.py", "-p", "n=7", "--debug", "work")
    project.upshift("run", "pipeline.py", "-p", "n=7")
    assert [task["cached"] for task in project.tasks("work")] == [False] * 3
    outcome = project.upshift("run", "pipeline.py", "-p", "n=7", "--debug", "work")
    assert outcome.out.count("working on") == 3


def test_a_failure_of_it_is_the_run_s_and_the_run_can_be_resumed(project: Project) -> None:
    project.write(CODE)
    outcome = project.upshift("run", "pipeline.py", "--debug", "work[1]", expect=1)
    assert "ZeroDivisionError" in outcome.err
    assert "where: pipeline.py:13" in outcome.err
    project.write(CODE.replace("(x - n)", "(x - n or 1)"))
    project.upshift("resume", "latest")
    assert [t["attempts"][-1]["backend"] for t in project.tasks("work")] == ["local"] * 3


def test_a_step_that_was_debugged_is_debugged_again_when_its_run_is_resumed(project: Project) -> None:
    code = CODE.replace("return work.map(x=load(), n=n)", "return last(work.map(x=load(), n=n))").replace(
        "@pipeline", "@step\ndef last(values: list[float]) -> float:\n    return sum(values) / 0\n\n@pipeline"
    )
    project.write(code)
    project.upshift("run", "pipeline.py", "-p", "n=7", "--debug", "work[1]", expect=1)
    outcome = project.upshift("resume", "latest", "--debug", "work[1]", expect=1)
    assert "working on 2" in outcome.out
    assert "working on 1" not in outcome.out
    assert [len(t["attempts"]) for t in project.tasks("work")] == [1, 2, 1]


def test_the_debugged_step_is_not_tried_again(project: Project) -> None:
    project.write(CODE.replace("@step\ndef work", "@step(retries=3)\ndef work"))
    project.upshift("run", "pipeline.py", "--debug", "work[1]", expect=1)
    assert len(project.tasks("work")[1]["attempts"]) == 1


@pytest.mark.parametrize(
    ("step", "message"),
    [("wrok", "Did you mean 'work'?"), ("load[0]", "step 'load' is not mapped")],
)
def test_a_step_that_is_not_there(project: Project, step: str, message: str) -> None:
    project.write(CODE)
    assert message in project.upshift("run", "pipeline.py", "--debug", step, expect=2).err


def test_breakpoint_works_in_a_debugged_step(project: Project) -> None:
    project.write(CODE.replace("    double = x * 2\n", "    double = x * 2\n    breakpoint()\n"))
    code, screen = typed(
        project, "p ('double', double)\nc\n", "run", "pipeline.py", "-p n=7 --debug 'work[1]'"
    )
    assert "('double', 4)" in screen
    assert code != 0  # the other two have no terminal to stop at
    assert project.tasks("work")[1]["status"] == "completed"


def test_the_debugger_opens_where_a_debugged_step_raises(project: Project) -> None:
    project.write(CODE)
    code, screen = typed(project, "p ('x and n', x, n)\nq\n", "run", "pipeline.py", "--debug 'work[1]'")
    assert "('x and n', 2, 2)" in screen
    assert "ZeroDivisionError" in screen
    assert code == 1


def test_leaving_the_debugger_ends_the_run(project: Project) -> None:
    project.write(CODE.replace("    double = x * 2\n", "    breakpoint()\n    double = x * 2\n"))
    code, screen = typed(project, "q\n", "run", "pipeline.py", "-p n=7 --debug work")
    assert code == 130, screen
    assert project.show()["status"] == "cancelled"


# replay


def test_a_task_is_replayed_with_its_inputs(project: Project) -> None:
    project.run(CODE, expect=1)
    outcome = project.upshift("replay", "latest", "work[1]", expect=1)
    assert "working on 2" in outcome.out
    assert "ZeroDivisionError: division by zero" in outcome.err
    assert "as recorded" in outcome.err
    project.upshift("run", "pipeline.py", "-p", "n=7")  # beside a failure, another task may be stopped
    fine = project.upshift("replay", "latest", "work[0]")
    assert "with the output that was recorded" in fine.err


def test_it_has_the_code_that_it_had(project: Project) -> None:
    project.run(CODE, expect=1)
    first = project.show()["id"]
    project.write(CODE.replace("(x - n)", "(x - n or 1)"))
    project.upshift("run", "pipeline.py")
    assert "division by zero" in project.upshift("replay", first, "work[1]", expect=1).err
    assert "output that was recorded" in project.upshift("replay", "latest", "work[1]").err
    assert "division by zero" in project.upshift("replay", first, "work[1]", expect=1).err
    changed = project.upshift("replay", first, "work[1]", "--current-code")
    assert "recorded was a failure" in changed.err


def test_code_that_the_package_lacks_is_named(project: Project) -> None:
    project.write("made.py\n", ".gitignore", header="")
    project.write("", "tables/__init__.py", header="")
    made = project.write("raise ValueError('not yet')\n", "tables/made.py", header="")
    project.run(
        """
@step
def work() -> int:
    import tables.made
    return 1

@pipeline
def example():
    work()
""",
        expect=1,
    )
    made.write_text("")
    lacks = "tables/made.py is in the project, but not in its code package: .gitignore or .upshiftignore"

    told = project.upshift("replay", "latest", "work", expect=1).err
    assert "No module named 'tables.made'" in told
    assert lacks in told
    assert "put !tables/made.py into .upshiftignore" in told
    resumed = project.upshift("resume", "latest", "--same-code", expect=1).err
    assert lacks in resumed
    assert "  where: pipeline.py:" in resumed
    told = project.upshift("replay", "latest", "work", "--current-code").err
    assert "recorded was a failure" in told  # though that attempt had the package
    project.upshift("resume", "latest")


def test_a_project_that_is_too_large_is_told_with_its_largest_file_and_what_to_do(project: Project) -> None:
    project.write(
        "@step\ndef one() -> int:\n    return 1 // 0\n\n@pipeline\ndef example():\n    return one()\n"
    )
    with open(project.folder / "weights.bin", "wb") as file:
        file.truncate(120 * 10**6)
    assert "--same-code" not in project.upshift("run", "pipeline.py", expect=1).err
    told = " ".join(project.upshift("resume", "latest", "--same-code", expect=2).err.split())
    assert "was not recorded why: the project" in told
    assert "120 MB, and 100 MB is the limit. Name what steps do not import in .upshiftignore" in told
    assert "for example the largest file, of 120 MB: /weights.bin" in told


@pytest.mark.parametrize(
    ("name", "why", "later"),
    [
        ("rate.txt", ".gitignore or .upshiftignore names it", "put !rate.txt into .upshiftignore"),
        ("credentials.json", "its name looks like a secret", "rename it"),
    ],
)
def test_a_file_that_the_package_lacks_is_named(project: Project, name: str, why: str, later: str) -> None:
    project.write("rate.txt\n", ".upshiftignore", header="")
    project.write("none yet", name, header="")
    project.run(
        f"""
from pathlib import Path

@step
def work() -> int:
    return int((Path(__file__).parent / "{name}").read_text())

@pipeline
def example():
    work()
""",
        expect=1,
    )
    told = project.upshift("replay", "latest", "work", expect=1).err
    assert f"{name} is in the project, but not in its code package: {why}." in told
    assert f"for later runs, {later}." in told


def test_nothing_is_recorded(project: Project) -> None:
    project.run(CODE, expect=1)
    before = project.show()
    blobs = {path for path in (project.home / "store").rglob("*") if path.is_file()}
    project.upshift("replay", "latest", "work[0]")
    assert project.show() == before
    assert {path for path in (project.home / "store").rglob("*") if path.is_file()} == blobs
    assert list((project.home / "scratch").glob("*")) == []


def test_another_output_than_recorded_is_told(project: Project) -> None:
    project.run("""
import time

@step
def now() -> float:
    return time.time()

@pipeline
def example():
    return now()
""")
    told = project.upshift("replay", "latest", "now").err
    assert "with another output than recorded: the step depends on something" in told


def test_a_reused_task_is_replayed_as_it_ran(project: Project) -> None:
    project.run(CODE, "-p", "n=7")
    first = project.show()["id"]
    project.run(CODE, "-p", "n=7")
    assert project.tasks("load")[0]["cached"]
    assert f"replaying load of run {first}" in project.upshift("replay", "latest", "load").err


def test_the_debugger_stops_at_the_first_line(project: Project) -> None:
    project.run(CODE, "-p", "n=7")
    code, screen = typed(project, "p ('x', x)\nn\np ('double', double)\nc\n", "replay", "latest", "'work[1]'")
    assert "('x', 2)" in screen
    assert "double = x * 2" in screen
    assert "with the output that was recorded" in screen
    assert code == 0


def test_what_was_done_before_is_told_before_the_debugger_stops(project: Project) -> None:
    project.write(CODE.replace("    double = x", "    breakpoint()\n    double = x"))
    _, screen = typed(project, "c\n", "run", "pipeline.py", "-p", "n=7", "--debug", "'work[1]'")
    before, _, after = screen.partition("(Pdb)")
    assert "load: completed" in before
    assert "work: started" in before
    assert "started" not in after


def test_a_debugger_without_a_terminal_says_so(project: Project) -> None:
    project.write(CODE.replace("    double = x", "    if x == 2:\n        breakpoint()\n    double = x"))
    outcome = project.upshift("run", "pipeline.py", "-p", "n=7", "--debug", "work[1]", expect=1)
    assert "the debugger has no terminal, and found nothing more to read" in outcome.err
    assert "fix:   Run the command in a terminal" in outcome.err


def test_leaving_the_debugger_is_no_failure(project: Project) -> None:
    project.run(CODE, "-p", "n=7")
    code, screen = typed(project, "q\n", "replay", "latest", "'work[1]'")
    assert "left before it ended" in screen
    assert "Traceback" not in screen
    assert code == 130


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("work", "Name one of them: work[1], which failed"),
        ("work[9]", "work[0] to work[2]"),
        ("wokr", "Did you mean 'work'?"),
        ("last", "has not run"),
    ],
)
def test_what_cannot_be_replayed(project: Project, task: str, message: str) -> None:
    code = CODE + "\n@step\ndef last(x: list[float]) -> float:\n    return sum(x)\n"
    project.run(
        code.replace("return work.map(x=load(), n=n)", "return last(work.map(x=load(), n=n))"), expect=1
    )
    assert message in project.upshift("replay", "latest", task, expect=2).err


def test_a_file_is_not_left_of_a_replay_with_files(project: Project) -> None:
    (project.folder / "data.txt").write_text("hello")
    project.run("""
from pathlib import Path

@step
def make() -> Path:
    Path("made.txt").write_text("made")
    return Path("made.txt")

@step
def read(file: Path) -> str:
    return file.read_text()

@pipeline
def example():
    return read(make())
""")
    assert "with the output that was recorded" in project.upshift("replay", "latest", "read").err
    assert [p for p in Path(project.home / "scratch").glob("*") if p.is_dir()] == []


def test_the_debugger_shows_no_secret_and_works_as_always(project: Project) -> None:
    project.write("corr3ct-h0rse\n", "private/db", header="")
    project.run("""
import os

@step(secrets={"DB": "file:private/db"})
def work() -> int:
    password = os.environ["DB"]
    return len(password)

@pipeline
def example():
    return work()
""")
    keys = "n\np ('it is', password)\np ('long', len(password))\nc\n"
    code, screen = typed(project, keys, "replay", "latest", "work")
    assert code == 0, screen
    assert "('it is', '***')" in screen
    assert "('long', 13)" in screen
    assert "corr3ct" not in screen
