"""A source file that is edited while a run goes on: no result of the one version stands for the other."""

from __future__ import annotations

import os

import pytest

from project import Project

HELPER = "def g(x): return x + 1\n"
LATE_IMPORT = """
    from h import g
    return g(x)
"""
CHILD = """
    import subprocess, sys
    code = f"import sys; sys.path.insert(0, {str(sys.path[0])!r}); import h; print(h.g({x}))"
    return int(subprocess.check_output([sys.executable, "-c", code], text=True))
"""
CODE = """
import os
import h

@step
def wait(x: int) -> int:
    with open("started", "w") as out:
        out.write("x")
    with open("go") as go:
        go.read()
    return x

@step
def use(x: int) -> int:BODY

@pipeline
def example(x: int = 1):
    return use(wait(x))
"""


def edited_while_running(project: Project, code: str, helper: str) -> int:
    """Run the pipeline; while its first step waits the helper is edited. Its output."""
    project.write(code)
    project.write(HELPER, "h.py", header="")
    started, go = project.fifo("started"), project.fifo("go")
    running = project.start("run", "pipeline.py")
    with open(started) as opened:
        opened.read()
    project.write(helper, "h.py", header="")
    go.write_text("x")
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, out + err
    for pipe in (started, go):
        os.unlink(pipe)
    go.write_text("")  # from now on the first step does not wait
    return int(project.python("-c", "import upshift; print(upshift.get_run('latest').output)").out)


@pytest.mark.parametrize("body", [LATE_IMPORT, CHILD], ids=["late import", "process"])
def test_a_result_of_the_other_version_is_not_reused(project: Project, body: str) -> None:
    code = CODE.replace("BODY", body)
    if body is LATE_IMPORT:
        code = code.replace("import h\n", "")
    assert edited_while_running(project, code, "def g(x): return x + 100\n") == 101
    project.write(HELPER, "h.py", header="")
    project.upshift("run", "pipeline.py")
    task = project.tasks("use")[0]
    assert not task["cached"]
    assert "h.py was edited while run" in task["cache_reason"]
    assert project.python("-c", "import upshift; print(upshift.get_run('latest').output)").out == "2\n"


def test_a_file_that_is_written_again_as_it_was_is_not_edited(project: Project) -> None:
    code = CODE.replace("BODY", "\n    return h.g(x)\n")
    assert edited_while_running(project, code, HELPER) == 2
    project.upshift("run", "pipeline.py")
    assert [project.tasks(name)[0]["cached"] for name in ("wait", "use")] == [True, True]
