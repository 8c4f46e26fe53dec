"""Ctrl-C, cancel and resume: what is done is kept, what ran is stopped, nothing is repeated."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path

import pytest

import upshift
from project import Project

# `first` notes each time that it runs; `second` tells its process id and waits, until a file says go.
CODE = """
import os, signal
from pathlib import Path

@step
def first() -> int:
    with open("first.log", "a") as log:
        log.write("ran\\n")
    return 20

@step(cache=False)
def second(x: int) -> int:
    with open("second.log", "a") as log:
        log.write("ran\\n")
    if not Path("go").exists():
        with open("told", "w") as told:
            told.write(str(os.getpid()))
        while True:
            signal.pause()
    return x + 1

@step
def third(x: int) -> int:
    return 2 * x

@pipeline
def example():
    return third(second(first()))
"""


def start(project: Project) -> tuple[object, int]:
    """Start the run, and wait until the second step tells its process id."""
    project.write(CODE)
    told = project.fifo("told")
    process = project.start("run", "pipeline.py")
    pid = int(told.read_text())
    told.unlink()
    return process, os.pidfd_open(pid)


def ended(pidfd: int, seconds: float = 15) -> bool:
    """Whether the process ends within this time."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(pidfd)


def times(project: Project, log: str) -> int:
    return Path(project.folder, log).read_text().count("ran")


def test_ctrl_c_stops_the_children_and_exits_130(project: Project) -> None:
    process, step = start(project)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert ended(step)
    assert "Traceback" not in err
    assert "stopping: 1 task is being ended (up to 10 s); press Ctrl-C again to kill it\n" in err
    shown = project.show()
    assert f"upshift resume {shown['id']} continues from the last completed step" in err
    assert "not run: the run was cancelled" in " ".join(project.upshift("show", "latest").out.split())
    assert shown["status"] == "cancelled"
    statuses = {s["name"]: s["status"] for s in shown["steps"]}
    assert statuses["first"] == "completed"
    assert statuses["second"] == "cancelled"
    assert project.attempt("second")["reason"] == "cancelled"


def test_resume_completes_an_interrupted_run_and_repeats_nothing(project: Project) -> None:
    process, step = start(project)
    process.send_signal(signal.SIGINT)  # to the engine alone
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert ended(step)
    run = upshift.get_run("latest").id
    Path(project.folder, "go").touch()
    project.upshift("resume", "latest")
    resumed = upshift.get_run("latest")
    assert resumed.id == run
    assert resumed.status == "completed"
    assert resumed.output == 42
    assert times(project, "first.log") == 1
    assert times(project, "second.log") == 2
    assert [a.status for a in resumed["second"].tasks[0].attempts] == ["cancelled", "completed"]


def test_cancel_from_another_process(project: Project) -> None:
    process, step = start(project)
    project.upshift("cancel", "latest")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert ended(step)
    assert project.show()["status"] == "cancelled"


def test_sigterm_is_a_cancellation_too(project: Project) -> None:
    process, step = start(project)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert ended(step)
    assert project.show()["status"] == "cancelled"


def test_a_run_that_somebody_owns_cannot_be_resumed(project: Project) -> None:
    process, step = start(project)
    assert project.show()["status"] == "running"
    outcome = project.upshift("resume", "latest", expect=2)
    assert "owns" in outcome.err or "running" in outcome.err
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert ended(step)


def test_a_killed_engine_leaves_a_run_that_resumes_where_it_was(project: Project) -> None:
    process, step = start(project)
    process.kill()
    process.communicate(timeout=30)
    # The fork server outlives the engine, and so does the step that it runs.
    assert not ended(os.dup(step), seconds=0)
    shown = project.show()
    assert (shown["status"], shown["ended"]) == ("cancelled", None)
    assert upshift.get_run("latest").interrupted
    assert " interrupted " in project.upshift("runs").out
    assert (
        f"upshift resume {shown['id']} continues from the last completed step"
        in project.upshift("show", "latest").out
    )
    Path(project.folder, "go").touch()
    signal.pidfd_send_signal(step, signal.SIGKILL)
    assert ended(step)
    project.upshift("resume", "latest", expect=None)
    project.upshift("resume", "latest", expect=None)
    run = upshift.get_run("latest")
    assert run.status == "completed"
    assert run.output == 42
    assert times(project, "first.log") == 1


def test_for_how_long_an_engine_on_another_machine_was_not_heard_of_is_shown(project: Project) -> None:
    process, step = start(project)
    process.kill()
    process.communicate(timeout=30)
    run = project.show()["id"]
    (record,) = Path(project.home, "store", "leases", run).iterdir()
    about = {**json.loads(record.read_text()), "host": "node7", "boot": "b7", "machine": "m7"}
    record.write_text(json.dumps(about))
    assert project.show()["status"] == "running"
    assert "no word" not in project.upshift("show", run).out + project.upshift("runs").text
    heard = time.time() - 200
    os.utime(record, (heard, heard))
    assert project.show()["status"] == "running"
    assert "engine   no word from it for 3 min " in project.upshift("show", run).out
    assert f"{run}: no word from its engine for 3 min " in project.upshift("runs").err
    signal.pidfd_send_signal(step, signal.SIGKILL)
    assert ended(step)


def test_a_step_that_outlives_its_engine_is_shown_to_run_and_waited_for(project: Project) -> None:
    project.write(
        """
        @step(cache=False)
        def train() -> int:
            open("go").close()
            return 42

        @pipeline
        def example():
            return train()
        """
    )
    go = project.fifo("go")
    engine = project.start("run", "pipeline.py")
    assert engine.stderr is not None
    assert any("train: started" in line for line in engine.stderr)
    engine.kill()
    engine.communicate(timeout=30)
    run = project.show()["id"]
    shown = project.upshift("show", "latest", env={"COLUMNS": "200"}).out
    assert (
        f"upshift resume {run} continues from the last completed step; train still runs, which it waits for"
        in " ".join(shown.split())
    )
    (line,) = (line for line in shown.splitlines() if line.startswith("train "))
    assert line.split()[1] == "running"
    resumed = project.start("resume", "latest")
    assert resumed.stderr is not None
    assert any(line.startswith("train: still running since ") for line in resumed.stderr)
    go.write_text("")
    assert resumed.wait(60) == 0
    resumed.communicate()
    assert len(project.tasks("train")[0]["attempts"]) == 1
    assert "still runs" not in project.upshift("show", "latest").out


def test_resuming_a_completed_run_changes_nothing_and_says_so(project: Project) -> None:
    Path(project.folder, "go").touch()
    project.run(CODE)
    before = project.show()
    project.write(CODE.replace("2 * x", "3 * x"))
    outcome = project.upshift("resume", "latest")
    assert f"run {before['id']} is already complete" in outcome.err
    assert times(project, "second.log") == 1
    assert project.show() == before


TWO = """
from pathlib import Path

def note(name: str) -> None:
    with open(f"{name}.log", "a") as log:
        log.write("ran\\n")

@step
def first() -> int:
    note("first")
    return 20

@step
def second(x: int) -> int:
    note("second")
    if not Path("go").exists():
        raise RuntimeError("not yet")
    return x + 1

@pipeline
def example():
    return second(first())
"""


def test_a_run_without_cache_is_resumed_without_cache(project: Project) -> None:
    Path(project.folder, "go").touch()
    project.run(TWO)  # what it did would be reused
    Path(project.folder, "go").unlink()
    project.upshift("run", "pipeline.py", "--no-cache", expect=1)
    assert (times(project, "first.log"), times(project, "second.log")) == (2, 2)
    Path(project.folder, "go").touch()
    rebuilt = project.upshift("gc", "--rebuild-catalog")
    assert "2 runs" in rebuilt.out
    project.upshift("resume", "latest")
    # What this run did is kept, and what another run did is not taken.
    assert (times(project, "first.log"), times(project, "second.log")) == (2, 3)
    assert [task["cached"] for step in project.show()["steps"] for task in step["tasks"]] == [False] * 2


def test_resume_without_cache_runs_again_what_the_run_had_from_others(project: Project) -> None:
    project.run(TWO, expect=1)
    project.upshift("run", "pipeline.py", expect=1)
    assert project.tasks("first")[0]["cached"]
    Path(project.folder, "go").touch()
    project.upshift("resume", "latest", "--no-cache")
    assert times(project, "first.log") == 2
    assert not project.tasks("first")[0]["cached"]


def test_a_strict_run_is_resumed_strictly(project: Project) -> None:
    code = """
from pathlib import Path

@step(settings={"resources": ResourceSettings(gpu_count=GPUS)})
def f() -> int:
    return 1 if Path("go").exists() else 1 // 0

@pipeline
def example():
    return f()
"""
    project.run(code.replace("GPUS", "0"), "--strict", expect=1)
    Path(project.folder, "go").touch()
    project.write(code.replace("GPUS", "8"))
    outcome = project.upshift("resume", "latest", expect=2)
    assert "gpu_count" in outcome.err or "GPU" in outcome.err
    project.upshift("resume", "latest", "--best-effort")


def test_a_run_that_keeps_going_is_resumed_so(project: Project) -> None:
    code = """
from pathlib import Path

@step
def bad() -> int:
    return 1 // 0

@step
def once(x: int) -> int:
    if not Path("go").exists():
        raise RuntimeError("not yet")
    return x + 1

@pipeline
def example():
    bad()
    value = 0
    for _ in range(5):
        value = once(value)
    return value
"""
    project.run(code, "--keep-going", expect=1)
    Path(project.folder, "go").touch()
    project.upshift("resume", "latest", expect=1)
    run = upshift.get_run("latest")
    assert run.status == "failed"
    assert run["once_5"].output == 5


def test_resume_of_a_failed_run_uses_the_code_as_it_is_now(project: Project) -> None:
    code = """
@step
def load() -> int:
    open("load.log", "a").write("ran\\n")
    return 5

@step
def divide(x: int) -> float:
    return x / 0

@pipeline
def example():
    return divide(load())
"""
    project.run(code, expect=1)
    project.write(code.replace("x / 0", "x / 2"))
    project.upshift("resume", "latest")
    assert upshift.get_run("latest").output == 2.5
    assert times(project, "load.log") == 1


def test_resume_from_another_folder(project: Project, tmp_path: Path) -> None:
    project.run(
        "@step\ndef f() -> int:\n    return 1 // 0\n\n@pipeline\ndef example():\n    return f()\n", expect=1
    )
    project.write("@step\ndef f() -> int:\n    return 1\n\n@pipeline\ndef example():\n    return f()\n")
    project.upshift("resume", "latest", cwd=tmp_path)
    assert upshift.get_run("latest").output == 1


FORKS = """
import multiprocessing, os, signal
from pathlib import Path

def wait():
    while True:
        signal.pause()

def open_sockets():
    paths = [f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd")]
    return [path for path in paths if os.path.islink(path) and os.readlink(path).startswith("socket:")]

@step(cache=False)
def train() -> int:
    with open("train.log", "a") as log:
        log.write("ran\\n")
    if not Path("go").exists():
        child = multiprocessing.get_context("fork").Process(target=wait)
        child.start()
        with open("told", "w") as told:
            told.write(str(child.pid))
        child.join()
    return len(open_sockets())

@pipeline
def example():
    return train()

if __name__ == "__main__":
    example()
"""


@pytest.mark.parametrize(("command", "home"), [("cancel", "home"), ("resume", "link/../home")])
def test_what_a_step_has_forked_ends_with_its_engine_and_fork_server(
    command: str, home: str, project: Project
) -> None:
    """However the home is spelt; nor does it keep the socket of the dead server alive."""
    project.home.mkdir(exist_ok=True)
    project.folder.joinpath("link").symlink_to(project.home)
    if "link" in home:
        project = project.with_home(project.folder / home)
    project.write(FORKS)
    told = project.fifo("told")
    process = project.start("run", "pipeline.py")
    child = os.pidfd_open(int(told.read_text()))
    (server,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    dead = os.pidfd_open(int(server))
    process.kill()
    process.communicate(timeout=30)
    os.kill(int(server), signal.SIGKILL)
    assert ended(dead)
    assert not ended(os.dup(child), seconds=0)
    Path(project.folder, "go").touch()
    project.upshift(command, "latest")
    assert ended(child, seconds=0)
    run = upshift.get_run("latest")
    assert run.status == ("completed" if command == "resume" else "cancelled")
    assert times(project, "train.log") == (2 if command == "resume" else 1)


def test_a_step_has_no_socket_of_the_engine_or_its_supervisor(project: Project) -> None:
    Path(project.folder, "go").touch()
    project.run(FORKS)
    assert upshift.get_run("latest").output == 0
    project.python("pipeline.py")
    assert upshift.get_run("latest").output == 0


def test_processes_that_a_step_starts_end_at_signals_as_under_plain_python(project: Project) -> None:
    code = """
import os, signal, subprocess, time

def ends(child: int) -> int:
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def fork() -> int:
    child = os.fork()
    if child == 0:
        os.write(write, b".")
        while True:  # Python sees a signal between two instructions
            time.sleep(0.01)
    return child

ready, write = os.pipe()

@step
def look() -> list[int]:
    found = [ends(fork())]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(42))
    found.append(ends(fork()))
    sleeping = subprocess.Popen(["sleep", "60"])
    sleeping.send_signal(signal.SIGHUP)
    return [*found, sleeping.wait()]

@pipeline
def example():
    return look()
"""
    project.run(code)
    assert upshift.get_run("latest").output == [-15, 42, -1]
