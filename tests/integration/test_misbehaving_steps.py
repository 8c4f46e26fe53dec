"""Steps that do what no step should: the run says what happened, and nothing is left behind."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

import upshift
from project import Project

RUN_IT = "\n@pipeline\ndef example():\n    return act()\n"


def test_an_exception_keeps_the_users_frames_and_no_others(project: Project) -> None:
    code = """
def helper(x):
    return 1 / x

@step
def act() -> float:
    return helper(0)
"""
    outcome = project.run(code + RUN_IT, expect=1)
    assert "ZeroDivisionError" in outcome.err
    assert "in helper" in outcome.err
    assert "return 1 / x" in outcome.err
    assert "/upshift/" not in outcome.err.replace(str(project.home), "")
    attempt = project.attempt("act")
    assert attempt["reason"] == "user-error"
    assert "ZeroDivisionError" in attempt["error"]["message"]


@pytest.mark.parametrize("call", ["breakpoint()", "input()", "input('really? ')"])
def test_what_needs_a_terminal_is_told_where_there_is_one(project: Project, call: str) -> None:
    outcome = project.run(f"@step\ndef act() -> None:\n    {call}\n    print('on')\n" + RUN_IT, expect=1)
    assert "A step has no terminal" in outcome.err
    assert "upshift run FILE --debug act" in outcome.err


def test_an_end_of_file_of_another_kind_says_nothing_of_terminals(project: Project) -> None:
    code = "@step\ndef act() -> None:\n    raise EOFError('the archive is cut off')\n"
    assert "terminal" not in project.run(code + RUN_IT, expect=1).err


def test_an_output_that_cannot_be_saved_names_step_output_and_part(project: Project) -> None:
    code = """
import threading
from typing import Annotated

@step
def act() -> Annotated[dict, "model"]:
    return {"weights": [1, 2], "guard": threading.Lock()}
"""
    outcome = project.run(code + RUN_IT, expect=1)
    said = "act failed (user-error): output model['guard'] of type _thread.lock cannot be saved"
    assert said in outcome.err
    assert "where: pipeline.py:" in outcome.err
    assert "fix: Leave it out" in outcome.err


def test_a_generator_is_refused_with_what_to_return_instead(project: Project) -> None:
    outcome = project.run("@step\ndef act():\n    return (i for i in range(3))\n" + RUN_IT, expect=1)
    assert "(user-error): output of type generator cannot be saved\n" in outcome.err
    assert "cannot pickle" not in outcome.err
    assert "Make it a list" in outcome.err


def test_too_few_outputs_are_the_users_error(project: Project) -> None:
    code = """
@step
def act() -> tuple[int, int]:
    return (1, 2, 3)
"""
    outcome = project.run(code + "\n@pipeline\ndef example():\n    a, b = act()\n    return a\n", expect=1)
    assert "act" in outcome.err
    assert "3" in outcome.err


def test_fifty_megabytes_of_output_are_all_kept(project: Project) -> None:
    code = """
import sys

@step
def act() -> int:
    line = "x" * 99 + "\\n"
    for _ in range(500):
        sys.stdout.write(line * 1000)
    print("the last line")
    return 1
"""
    outcome = project.run(code + RUN_IT)
    assert "the last line" in outcome.out
    log = project.upshift("logs", "latest", "act").out
    assert len(log) >= 50_000_000
    assert log.count("x" * 99) == 500_000


def test_bytes_that_are_not_utf8_do_not_disturb(project: Project) -> None:
    code = r"""
import sys

@step
def act() -> int:
    sys.stdout.buffer.write(b"caf\xe9 \xff\xfe\n")
    sys.stdout.flush()
    print("after")
    return 7
"""
    outcome = project.run(code + RUN_IT)
    assert "caf" in outcome.out
    assert "after" in outcome.out
    assert "after" in project.upshift("logs", "latest").out
    assert upshift.get_run("latest").output == 7


def test_what_a_child_process_prints_is_in_the_log(project: Project) -> None:
    code = """
import subprocess

@step
def act() -> None:
    subprocess.run(["echo", "from a child"], check=True)
"""
    project.run(code + RUN_IT)
    assert "from a child" in project.upshift("logs", "latest", "act").out


def test_os_exit_is_a_failure_that_names_the_code(project: Project) -> None:
    code = """
import os

@step
def act() -> None:
    print("so long", flush=True)
    os._exit(3)
"""
    outcome = project.run(code + RUN_IT, expect=1)
    assert "so long" in outcome.out
    assert "3" in project.attempt("act")["error"]["message"]
    assert project.attempt("act")["status"] == "failed"


def test_os_exit_with_zero_is_a_failure_too(project: Project) -> None:
    code = """
import os

@step
def act() -> None:
    os._exit(0)
"""
    project.run(code + RUN_IT, expect=1)
    assert project.attempt("act")["reason"] == "user-error"


def test_sys_exit_is_a_failure(project: Project) -> None:
    code = """
import sys

@step
def act() -> None:
    sys.exit("giving up")
"""
    outcome = project.run(code + RUN_IT, expect=1)
    assert "giving up" in outcome.text


def test_a_step_that_kills_itself_names_the_signal(project: Project) -> None:
    code = """
import os, signal

@step
def act() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
"""
    outcome = project.run(code + RUN_IT, expect=1)
    assert "SIGSEGV" in outcome.err
    # Nobody ran out of memory: the cause is read, not guessed from the signal.
    assert project.attempt("act")["reason"] == "user-error"


def test_a_step_that_is_killed_is_not_taken_for_out_of_memory(project: Project) -> None:
    code = """
import os, signal

@step
def act() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    outcome = project.run(code + RUN_IT, expect=1)
    assert "SIGKILL" in outcome.err
    assert project.attempt("act")["reason"] != "out-of-memory"


def test_children_that_outlive_the_step_are_ended_with_it(project: Project) -> None:
    code = """
import os, subprocess, sys

@step
def act() -> list[int]:
    plain = subprocess.Popen(["sleep", "600"])
    away = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return [plain.pid, away.pid]
"""
    project.run(code + RUN_IT)
    for pid in upshift.get_run("latest").output:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_child_that_holds_the_output_open_does_not_hold_up_the_run(project: Project) -> None:
    code = """
import os

@step
def act() -> int:
    if os.fork() == 0:
        os.setsid()
        os.execlp("sleep", "sleep", "600")
    return 1
"""
    project.run(code + RUN_IT, timeout=30)
    assert upshift.get_run("latest").output == 1


def test_changing_directory_changes_nothing_for_others(project: Project) -> None:
    code = """
import os

@step(cache=False)
def act() -> str:
    os.chdir("/")
    return os.getcwd()

@step(cache=False)
def where(before: str) -> str:
    return os.getcwd()

@pipeline
def example():
    return where(act())
"""
    project.run(code)
    run = upshift.get_run("latest")
    assert run["act"].output == "/"
    assert run.output == os.path.realpath(project.folder)


def test_globals_do_not_leak_from_step_to_step(project: Project) -> None:
    code = """
import os

SEEN = []

@step
def act() -> int:
    SEEN.append(1)
    os.environ["LEAK"] = "yes"
    return len(SEEN)

@step
def look(before: int) -> tuple[int, str]:
    SEEN.append(1)
    return len(SEEN), os.environ.get("LEAK", "no")

@pipeline
def example():
    return look(act())
"""
    project.run(code)
    count, leak = upshift.get_run("latest").output
    assert (count, leak) == (1, "no")


def test_threads_that_still_run_do_not_hold_up_the_step(project: Project) -> None:
    code = """
import threading

@step
def act() -> int:
    threading.Thread(target=threading.Event().wait).start()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return 5
"""
    project.run(code + RUN_IT, timeout=30)
    assert upshift.get_run("latest").output == 5


def test_a_step_that_ignores_sigterm_is_still_stopped_by_its_timeout(project: Project) -> None:
    code = f"""
import signal

@step(timeout=0.5, grace=2)
def act() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.sigwait([{int(signal.SIGUSR1)}])
"""
    project.run(code + RUN_IT, expect=1, timeout=60)
    assert project.attempt("act")["reason"] == "timeout"
    assert (
        project.upshift("logs", "latest", "act").out == "upshift: it still runs 2 s after SIGTERM: SIGKILL\n"
    )


def test_a_step_without_input_reads_end_of_file(project: Project) -> None:
    code = """
import sys

@step
def act() -> str:
    return sys.stdin.read()
"""
    project.run(code + RUN_IT)
    assert upshift.get_run("latest").output == ""


def test_a_warning_or_progress_bar_without_newline_is_kept(project: Project) -> None:
    code = r"""
import sys

@step
def act() -> None:
    sys.stderr.write("10%\r50%\r100%")
"""
    project.run(code + RUN_IT)
    assert "100%" in project.upshift("logs", "latest").out


def test_a_value_that_contradicts_its_annotation_is_told_and_kept(project: Project) -> None:
    outcome = project.run("@step\ndef act() -> int:\n    return 'x'\n" + RUN_IT)
    said = "upshift: act is annotated to return int, and returned str"
    assert said in outcome.text
    assert said in project.upshift("logs", "latest", "act").out
    assert upshift.get_run("latest").output == "x"


def test_what_goes_wrong_in_supervising_ends_one_attempt_and_none_beside_it(project: Project) -> None:
    code = """
import signal
from upshift.runtime.supervisor.logs import Log, LogFile
from upshift.runtime.supervisor.node_runtime import NodeRuntime

take, close, watch = Log._take, LogFile.close, NodeRuntime.watch

def taken(self, data):
    if data == b"13\\n":
        raise IndexError("thirteen")
    take(self, data)

def closed(self):
    close(self)
    if self.size == 4:
        raise KeyError("four")

def watched(self, members, **how):
    if self._spec.task.step == "five":
        raise LookupError("five")
    watch(self, members, **how)

# The fork server is forked from the process that imports this.
Log._take, LogFile.close, NodeRuntime.watch = taken, closed, watched

@step
def thirteen() -> int:
    print(13, flush=True)
    signal.pause()

@step
def hundred() -> int:
    print(100, flush=True)
    return 100

@step
def five() -> None:
    signal.pause()

@step
def seven() -> int:
    print(7, flush=True)
    return 7

@pipeline(on_failure="continue")
def example():
    five()
    return thirteen(), hundred(), seven()
"""
    outcome = project.run(code, expect=1)
    begun = project.attempt("five")
    assert "could not supervise the step any more: LookupError: five (in watched" in begun["error"]["message"]
    thirteen = project.attempt("thirteen")
    assert thirteen["reason"] == "infrastructure"
    said = "could not supervise the step any more: IndexError: thirteen (in taken, pipeline.py:"
    assert said in thirteen["error"]["message"]
    assert "hundred: failed" in outcome.err and "KeyError: 'four'" in outcome.err
    assert "seven: completed" in outcome.err


def test_a_pipeline_without_steps_says_that_nothing_ran(project: Project) -> None:
    outcome = project.run("@pipeline\ndef example():\n    return 3\n")
    assert "pipeline example has no steps: nothing ran" in outcome.err


def test_the_end_tells_how_many_more_tasks_failed(project: Project) -> None:
    code = """
@step
def act(x: int) -> float:
    return 1 / x

@pipeline
def example():
    return act.map([0, 1, 0, 0])
"""
    outcome = project.run(code, "--keep-going", expect=1)
    assert "lists 2 more tasks that failed" in outcome.err
    assert "more task" not in project.run(code.replace("0, 1, 0, 0", "0, 1"), "--keep-going", expect=1).err


def test_whatever_a_step_does_to_its_process_is_told_as_it_is(project: Project) -> None:
    """The result, or the step's own error: never that of a part of ours that the step has broken."""
    steps: dict[str, tuple[str, str, str | tuple[str, ...]]] = {
        "closes_all": ("os.closerange(3, 4096); return 3", "completed", ""),
        "closes_all_and_fails": (
            "os.closerange(3, 4096); raise ValueError('mine')",
            "failed",
            "ValueError: mine",
        ),
        "takes_descriptors": (
            "os.closerange(3, 4096); keep.extend(open(f'own{n}', 'w') for n in range(20)); return 3",
            *("completed", ""),
        ),
        "patches": ("os.write = os.getpid = os._exit = lambda *a: 1 / 0; return 3", "completed", ""),
        "patches_open": ("builtins.open = lambda *a, **k: 1 / 0; return 3", "completed", ""),
        "has_no_descriptors": (
            "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); return 3",
            *("completed", ""),
        ),
        "recurses": ("sys.setrecursionlimit(60); return 3", "completed", ""),
        "says_what_is_no_text": ("raise ValueError('\\udcff')", "failed", r"ValueError: \udcff"),
        "says_much": ("raise ValueError('x' * 50_000_000)", "failed", "ValueError: xxx"),
        "says_by_exiting": ("raise Exits()", "failed", "Exits (its text cannot be shown)"),
        "patches_json": ("json.dumps = None; raise ValueError('mine')", "failed", "ValueError: mine"),
        "ends_oddly": ("sys.exit(10 ** 5000)", "failed", "SystemExit"),
        "children_die": (
            "[fork(n / 500) for n in range(150)]; signal.signal(signal.SIGCHLD, complain)\n"
            "    raise ValueError('mine')",
            *("failed", ("ValueError: mine", "RuntimeError: not mine")),  # either is the step's own
        ),
        "signal_while_it_is_explained": (
            "signal.signal(signal.SIGCHLD, complain); raise Signals('mine')",
            *("failed", "Signals: mine"),
        ),
        "signal_while_it_is_saved": (
            "signal.signal(signal.SIGUSR1, complain); return Signals(3)",
            *("completed", ""),
        ),
        "alarm_comes_late": (
            "signal.signal(signal.SIGALRM, complain); signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)\n"
            "    return Slow()",
            *("completed", ""),
        ),
    }
    if os.geteuid() == 0:
        steps["changes_root"] = ("os.chroot('/srv'); return 3", "completed", "")
        steps["changes_root_and_fails"] = (
            "os.chroot('/srv'); raise ValueError('mine')",
            *("failed", "ValueError: mine"),
        )
    header = """
import builtins, json, os, resource, signal, sys, time

keep = []

class Slow:
    def __reduce__(self):
        time.sleep(0.5)
        return int, (3,)

class Signals(Exception):
    def __str__(self):
        os.kill(os.getpid(), signal.SIGCHLD)
        return self.args[0]

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        return int, self.args

class Exits(Exception):
    def __str__(self):
        sys.exit(4)

    __repr__ = __str__

def complain(*_):
    raise RuntimeError("not mine")

def fork(seconds):
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    bodies = "".join(f"\n@step\ndef {name}():\n    {code}\n" for name, (code, _, _) in steps.items())
    calls = f"\n@pipeline\ndef example():\n    {'; '.join(f'{name}()' for name in steps)}\n"
    project.run(header + bodies + calls, "--keep-going", expect=1)
    for name, (_, status, message) in steps.items():
        attempt = project.attempt(name)
        said = "" if attempt["error"] is None else attempt["error"]["message"]
        assert (name, attempt["status"], attempt["reason"]) == (
            *(name, status),
            "user-error" if status == "failed" else None,
        ), said
        assert said.startswith(message) and len(said) < 30_000, (name, said[:1000])
    assert not any(file.read_text() for file in project.folder.glob("own*"))
