"""Ranks that wait for ever are noticed, and stopped if they are to be; where each one was is told."""

from __future__ import annotations

import re

from project import Project
from told import TELL

STUCK = (
    TELL
    + """
import signal, threading

@run_with_torchrun(nproc_per_node=3 HANG)
@step(TIMEOUT)
def act() -> None:
    if upshift.current.rank == 0:
        threading.Event().wait()
    elif upshift.current.rank == 1:
        stuck_elsewhere()

def stuck_elsewhere():
    while True:
        signal.sigwait([signal.SIGUSR1])

@pipeline
def example():
    return act()
"""
)


def stuck(*, hang: str = "", timeout: str = "") -> str:
    return STUCK.replace(" HANG", hang).replace("TIMEOUT", timeout)


def test_ranks_without_progress_are_stopped_and_each_says_where_it_was(project: Project) -> None:
    shown = project.run(stuck(hang=", hang=2"), expect=1)
    attempt = project.attempt("act")
    assert attempt["reason"] == "hang"
    message = attempt["error"]["message"]
    assert message.startswith(
        "no progress for 2 s: rank 2 has returned, rank 0 waits for a lock (pipeline.py:"
    )
    assert "rank 1 is at pipeline.py:" in message
    assert f"upshift: {message}" in project.upshift("logs", "latest", "act").out
    assert message in shown.text
    stacks = project.attempt("act")["stacks"]
    assert [(stack["rank"], stack["waits"]) for stack in stacks] == [(0, "a lock"), (1, None)]
    assert "in stuck_elsewhere\n    signal.sigwait([signal.SIGUSR1])" in stacks[1]["text"]


def test_a_rank_that_is_stopped_is_named_as_the_one_that_hangs(project: Project) -> None:
    project.run(
        TELL
        + """
import os, signal, threading

@run_with_torchrun(nproc_per_node=3, hang=1)
@step
def act() -> None:
    if upshift.current.rank == 1:
        Path("pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    error = project.attempt("act")["error"]
    pid = (project.folder / "pid").read_text()
    told = f"rank 1 does not answer: process {pid} is stopped until SIGCONT, ranks 0 and 2 wait for a lock"
    assert error["message"].startswith(f"no progress for 1 s: {told} (pipeline.py:")
    assert error["rank"] == 1
    lines = (project.folder / "pipeline.py").read_text().splitlines()
    assert "SIGSTOP" in lines[int(error["where"].partition(":")[2]) - 1]
    stacks = project.attempt("act")["stacks"]
    assert [bool(stack["silent"]) for stack in stacks] == [False, True, False]


def test_the_last_rank_that_does_not_return_is_named(project: Project) -> None:
    project.run(
        TELL
        + """
import os, signal

@run_with_torchrun(nproc_per_node=2, hang=1)
@step
def act() -> None:
    if upshift.current.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    error = project.attempt("act")["error"]
    assert error["message"].startswith("no progress for 1 s: rank 0 has returned, rank 1 does not answer: ")
    assert (error["rank"], error["where"].partition(":")[0]) == (1, "pipeline.py")


def test_at_a_timeout_each_rank_says_where_it_was(project: Project) -> None:
    project.run(stuck(timeout="timeout=3"), expect=1)
    attempt = project.attempt("act")
    assert attempt["reason"] == "timeout"
    assert (
        "still running after 3 s; rank 2 has returned, rank 0 waits for a lock" in attempt["error"]["message"]
    )
    assert [stack["rank"] for stack in project.attempt("act")["stacks"]] == [0, 1]


def test_ranks_that_go_on_after_sigterm_have_their_grace_and_the_log_says_that_it_is_over(
    project: Project,
) -> None:
    project.run(
        TELL
        + """
import signal, threading

@run_with_torchrun(nproc_per_node=3)
@step(timeout=1, grace=2)
def act() -> None:
    if upshift.current.rank:
        signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
    while True:
        threading.Event().wait(0.1)

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    log = project.upshift("logs", "latest", "act").out.splitlines()
    assert sorted(log[:-1]) == ["[rank 1] not yet", "[rank 2] not yet"]
    assert log[-1] == "upshift: ranks 1 and 2 still run 2 s after SIGTERM: SIGKILL"


def test_a_rank_that_handles_sigterm_itself_says_where_it_was_too(project: Project) -> None:
    failed = project.run(
        TELL
        + """
import signal, sys, threading

@run_with_torchrun(nproc_per_node=2)
@step(timeout=3)
def act() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    stuck()

def stuck():
    threading.Event().wait()

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    assert project.attempt("act")["reason"] == "timeout"
    stacks = project.attempt("act")["stacks"]
    assert len(stacks) == 2
    assert all("in stuck\n    threading.Event().wait()" in stack["text"] for stack in stacks)
    assert re.search(r"upshift show \S+ --stacks shows where each rank was", failed.err)
    shown = project.upshift("show", "latest", "--stacks").out.partition("\nstacks\n")[2]
    assert "in stuck\n        threading.Event().wait()\n" in shown


def test_ranks_that_compute_do_not_hang_however_silent_they_are(project: Project) -> None:
    project.run(
        TELL
        + """
import threading, time

@run_with_torchrun(nproc_per_node=2, hang=0.5)
@step
def act() -> int:
    if upshift.current.rank == 1:
        while time.process_time() < 2:
            pass
        open("done", "w").close()
        return 1
    while not Path("done").exists():
        threading.Event().wait(0.05)
    return 0

@pipeline
def example():
    return act()
"""
    )
    assert project.attempt("act")["error"] is None


def test_what_ranks_wait_for_is_shown_where_another_one_failed(project: Project) -> None:
    ready = project.fifo("ready")
    project.run(
        TELL
        + f"""
import sys
import threading

def tell(thread: int) -> None:
    while sys._current_frames()[thread].f_code.co_name != "wait":
        pass
    open({str(ready)!r}, "w").close()

@run_with_torchrun(nproc_per_node=2)
@step
def act() -> None:
    if upshift.current.rank == 0:
        threading.Thread(target=tell, args=(threading.get_ident(),)).start()
        threading.Event().wait()
    open({str(ready)!r}).close()
    raise LookupError("a rank that fails")

@pipeline
def example():
    return act()
""",
        expect=1,
    )
    error = project.attempt("act")["error"]
    assert (error["rank"], error["message"]) == (1, "LookupError: a rank that fails")
    stacks = project.attempt("act")["stacks"]
    assert [(stack["rank"], stack["waits"]) for stack in stacks] == [(0, "a lock")]
