"""The command line itself: what it knows, how it answers mistakes, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from upshift.cli import exit_code_of, upshift
from upshift.errors import NotFound, RequestRefused, RunCancelled, RunFailed, StoreUnavailable, UpshiftError


def call(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "upshift", *args], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("outer", [(), ("image",)])
def test_help_names_each_command_with_the_first_line_of_its_own_help(outer: tuple[str, ...]) -> None:
    text = CliRunner().invoke(upshift, [*outer, "--help"]).output
    context = click.Context(upshift)
    group: Any = upshift
    for name in outer:
        group = group.get_command(context, name)
    width = max(map(len, group.lazy))
    for name, entry in group.lazy.items():
        command = group.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == entry.summary
        assert f"  {name.ljust(width)}  {entry.summary}" in text


def test_help_imports_no_command_and_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; from upshift.cli import upshift; upshift.main(['--help'], standalone_mode=False)\n"
        "heavy = {'attr', 'rich', 'sqlite3', 'upshift.cli.run'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_python_minus_m_is_the_same_command() -> None:
    done = call("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("upshift ")
    assert call("--help").stdout.startswith("Usage: upshift [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["shwo"], "No such command 'shwo'. Did you mean 'show'?"),
        (["zzzzzz"], "No such command 'zzzzzz'. Commands: run, plan, resume, cancel, runs, show, compare,"),
        (["run", "--no-cahce", "x.py"], "--no-cache"),
        (["run"], "Missing argument 'FILE[:PIPELINE]'"),
        (["runs", "--limit", "0"], "0 is not in the range 1<=x<=999999999"),
        (["run", "x.py", "--wiht", "kubernetes"], "no such option '--wiht'"),
        (["run", "x.py", "--no-cash"], "fix:   Did you mean --no-cache? A parameter of"),
        (["run", "x.py", "--n", "3"], "fix:   A parameter of the pipeline is given by -p: -p n=3"),
        (["run", "x.py", "--on"], "fix:   Write the value after --on; --help lists the options."),
        (["plan", "x.py", "--detach"], "no such option '--detach'"),
        (["run", "x.py", "n=3"], "unexpected argument 'n=3'"),
        (["run", "x.py", "n=3"], "Parameters of the pipeline are given by -p: -p n=3"),
        (["plan", "x.py", "--n", "3"], "A parameter of the pipeline is given by -p: -p n=3"),
        (["run", "x.py", "--net.lr=3"], "A parameter of the pipeline is given by -p: -p net.lr=3"),
        (
            ["run", "x.py", "--pipeline", "train"],
            "fix:   To name the pipeline in the file: FILE:train. A parameter",
        ),
        (["run", "x.py", "train"], "To name the pipeline in the file: x.py:train."),
    ],
)
def test_a_usage_error_exits_with_2_and_names_the_nearest(args: list[str], expected: str) -> None:
    done = call(*args)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def _raise(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "label"),
    [
        (
            NotFound("no such run", where="x.py:3", why="It is gone.", fix="Look again."),
            2,
            "Error: no such run",
        ),
        (RequestRefused("too much"), 2, "Error: too much"),
        (StoreUnavailable("full"), 1, "Error: full"),
        (RunFailed("run r1 failed"), 1, "Failed: run r1 failed"),
        (RunCancelled("run r1 was cancelled"), 130, "Cancelled: run r1 was cancelled"),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(
    error: UpshiftError, code: int, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(lambda: _raise(error)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == label
    assert "Traceback" not in err
    assert "\x1b" not in err


def test_a_message_says_what_where_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(lambda: _raise(NotFound("no run", where="x.py:3", why="Gone.", fix="Look\nagain.")))
    assert capsys.readouterr().err == (
        "Error: no run\n  where: x.py:3\n  why:   Gone.\n  fix:   Look\n         again.\n"
    )


def test_an_interrupt_exits_with_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: _raise(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_a_bug_of_ours_shows_its_traceback_and_exits_with_70(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: _raise(ZeroDivisionError("oops"))) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "ZeroDivisionError: oops" in err
    assert err.splitlines()[-1] == "This is a bug in Upshift. Please report it with the lines above."


def test_what_a_command_returns_is_the_exit_code() -> None:
    assert exit_code_of(lambda: 3) == 3
    assert exit_code_of(lambda: None) == 0


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    code = (
        "import sys; from upshift.cli import exit_code_of\n"
        "def write():\n"
        "    for _ in range(100_000): print('x' * 80)\n"
        "sys.exit(exit_code_of(write))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as err:
        assert err.read() == b""
    assert process.wait() == 141


def test_a_run_whose_output_nobody_reads_any_more_keeps_its_exit_code() -> None:
    code = (
        "import sys; from upshift.cli import exit_code_of\n"
        "from upshift.report import make_progress\n"
        "from upshift.model.spec import TaskId\n"
        "def run():\n"
        "    progress = make_progress()\n"
        "    for _ in range(10_000): progress.output(TaskId(run='r', step='s'), 'x' * 80 + '\\n')\n"
        "sys.exit(exit_code_of(run))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as err:
        assert err.read() == b""
    assert process.wait() == 0
