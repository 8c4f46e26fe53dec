"""Secrets reach the step that asks for them, and nothing else: no file of Upshift's, no line of output."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

import upshift
from project import HEADER, Outcome, Project
from upshift.model.spec import TaskSpec, from_json

TOKEN = "hf_Qx/7Zr+2Wp&9Kd"
PASSWORD = "corr3ct h0rse/battery?staple"
ENV = {"HF_TOKEN": TOKEN}

CODE = """
import base64, os, subprocess, sys
from urllib.parse import quote
{prologue}

def show(text: str) -> None:
    print("plain", text)
    for character in text:
        os.write(1, character.encode())
    print("\\n", repr(text), quote(text, safe=""))
    for before in ("", "u", "us"):
        print(base64.b64encode((before + text).encode()).decode())
        print(base64.urlsafe_b64encode((before + text + "!").encode()).decode())
    print(f"\\r 10% {{text}}\\r 20% {{text}}", file=sys.stderr)
    halves = 'printf "%s" "$0" | head -c 9; printf "%s\\n" "$0" | tail -c +10'
    subprocess.run(["sh", "-c", halves, text], check=True)

@step(secrets={{"TOKEN": "env:HF_TOKEN", "DB": "file:private/db"}})
def use(n: int) -> int:
    show(os.environ["TOKEN"])
    show(os.environ["DB"])
    return len(os.environ["TOKEN"]) + len(os.environ["DB"])

@step
def other(n: int) -> list:
    return ["TOKEN" in os.environ, "DB" in os.environ]

@step(secrets={{"DB": "file:private/db"}}, retries=1)
def fails(n: list) -> None:
    sys.stderr.write("at the end " + os.environ["DB"][:26])
    raise RuntimeError("cannot reach db://" + os.environ["DB"], [os.environ["DB"]])

@pipeline
def example(fail: bool = False):
    seen = other(use(1))
    if fail:
        fails(seen)
    return seen
"""
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.fixture
def secret(project: Project) -> Project:
    """A project with a token in the environment and a password in a file."""
    (project.folder / "private").mkdir()
    (project.folder / "private" / "db").write_text(PASSWORD + "\n")
    project.write(CODE.format(prologue=""))
    return project


def forms() -> list[bytes]:
    found = []
    for value in (TOKEN, PASSWORD):
        found += [value.encode(), quote(value, safe="").encode()]
        for before in range(3):
            encoded = base64.b64encode(b"x" * before + value.encode())[4:-4]
            found += [encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))]
    return found


def holding_secrets(project: Project) -> list[Path]:
    """The files of Upshift's that have a secret in them, in any form."""
    files = [path for path in project.home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    return [path for path in files if any(form in path.read_bytes() for form in forms())]


def shown(*outcomes: Outcome) -> list[str]:
    text = "".join(outcome.text for outcome in outcomes)
    return [form.decode() for form in forms() if form.decode() in text]


@pytest.mark.parametrize("prologue", ["", THREAD], ids=["forked", "fresh"])
def test_the_step_has_them_and_nobody_else_does(secret: Project, prologue: str) -> None:
    secret.write(CODE.format(prologue=prologue))
    ran = secret.upshift("run", "pipeline.py", env=ENV)
    run = upshift.get_run("latest")
    assert run["use"].output == len(TOKEN) + len(PASSWORD), "the line end of the file is no part of it"
    assert run.output == [False, False]
    assert "[use] plain ***\n[use] ***\n" in ran.out
    assert "[use]  20% ***\n" in ran.out
    logs, show = secret.upshift("logs", "latest"), secret.upshift("show", "latest", "--json")
    assert shown(ran, logs, show) == []
    assert holding_secrets(secret) == []


def test_a_failure_shows_none_in_its_message_or_traceback(secret: Project) -> None:
    ran = secret.upshift("run", "pipeline.py", "--param", "fail=true", env=ENV, expect=1)
    assert "[fails] at the end ***\n" in ran.out
    assert "RuntimeError: ('cannot reach db://***', ['***'])" in ran.err
    failed = secret.attempt("fails")
    assert failed["number"] == 2, "a retry has the secret too"
    assert PASSWORD not in json.dumps(failed)
    show = secret.upshift("show", "latest")
    assert shown(ran, show, secret.upshift("logs", "latest")) == []
    assert holding_secrets(secret) == []


def test_a_resumed_run_reads_them_again(secret: Project) -> None:
    secret.upshift("run", "pipeline.py", "--param", "fail=true", env=ENV, expect=1)
    secret.write(CODE.format(prologue="").replace("raise RuntimeError(", "print("))
    refused = secret.upshift("resume", "latest", expect=2)
    assert "the variable HF_TOKEN is not set" in refused.err
    secret.upshift("resume", "latest", env=ENV)
    assert upshift.get_run("latest").status == "completed"
    assert holding_secrets(secret) == []


def test_another_value_is_no_new_work_and_another_source_is(secret: Project) -> None:
    secret.upshift("run", "pipeline.py", env=ENV)
    secret.upshift("run", "pipeline.py", env={"HF_TOKEN": "another token"})
    assert secret.tasks("use")[0]["cached"]
    secret.write(CODE.format(prologue="").replace("env:HF_TOKEN", "env:HF_TOKEN_2"))
    secret.upshift("run", "pipeline.py", env={"HF_TOKEN_2": TOKEN})
    assert secret.tasks("use")[0]["cache_reason"] == "secrets changed: TOKEN"


def test_what_is_not_there_is_refused_before_anything_runs(secret: Project) -> None:
    (secret.folder / "private" / "db").write_text("\n")
    refused = secret.upshift("run", "pipeline.py", env={"HF_TOKN": TOKEN}, expect=2)
    line = (
        Path(secret.folder, "pipeline.py")
        .read_text()
        .split("\n")
        .index('@step(secrets={"TOKEN": "env:HF_TOKEN", "DB": "file:private/db"})')
    )
    assert refused.err.splitlines() == [
        "Error: 2 secrets cannot be had",
        f"  where: pipeline.py:{line + 1} (@step)",
        "  why:   step use: secret TOKEN (env:HF_TOKEN): the variable HF_TOKEN is not set "
        f"(pipeline.py:{line + 1} (@step))",
        f"         step use: secret DB (file:private/db): is empty (pipeline.py:{line + 1} (@step))",
        "  fix:   export HF_TOKEN=… before the run. HF_TOKN is set: did you mean env:HF_TOKN?",
        "         Give it a value.",
    ]
    assert secret.upshift("runs", "--json").out.strip() == "[]"
    planned = secret.upshift("plan", "pipeline.py", env=ENV, expect=2)
    assert "step use: secret DB (file:private/db): is empty" in planned.err
    assert "TOKEN from env:HF_TOKEN: pipeline.py" in planned.out


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda path: path.unlink(), "No such file or directory"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a regular file"),
        (lambda path: path.write_bytes(b"a\0bcdef"), "holds a NUL byte"),
        (lambda path: path.write_text("abc\n"), "has fewer than 4 characters in each line"),
        (lambda path: path.write_text("x" * 100_000), "more than 65,536 bytes together"),
    ],
)
def test_files_that_hold_no_secret_are_refused_with_the_reason(secret: Project, prepare, why: str) -> None:  # type: ignore[no-untyped-def]
    prepare(secret.folder / "private" / "db")
    refused = secret.upshift("run", "pipeline.py", env=ENV, expect=2)
    assert why in refused.err and "where: pipeline.py:" in refused.err


def test_a_plan_names_sources_and_leaves_the_file_out_of_the_code(secret: Project) -> None:
    planned = secret.upshift("plan", "pipeline.py", env=ENV)
    assert "secrets  TOKEN from env:HF_TOKEN: pipeline.py" in planned.out
    assert "private/db (the secret of a step)" in planned.out
    as_json = json.loads(secret.upshift("plan", "pipeline.py", "--json", env=ENV).out)
    assert as_json["steps"][0]["secrets"]["DB"]["source"] == "file:private/db"
    assert shown(planned) == []


def test_files_of_secrets_of_another_pipeline_are_in_no_code_package(secret: Project) -> None:
    (secret.folder / "private" / "of_all").write_text(PASSWORD)
    secret.write(
        """
@pipeline(secrets={"DB": "file:private/of_all"})
def guarded():
    return other(use(1))

@step
def public() -> None:
    print("public")

@pipeline
def plain():
    public()
""",
        "more.py",
        header="from pipeline import other, use\n" + HEADER,
    )
    planned = secret.upshift("plan", "more.py:plain")
    secret.upshift("run", "more.py:plain")
    for name in ("private/db", "private/of_all"):
        assert f"{name} (the secret of a step)" in planned.out
    assert holding_secrets(secret) == []


def test_every_task_of_a_mapped_step_and_every_step_of_a_pipeline_has_its_own(project: Project) -> None:
    project.run(
        """
import os

def look(*names: str) -> list:
    return [os.environ.get(name, "")[::-1] for name in names]

@step
def inherits(n: int) -> list:
    print(os.environ["DB"])
    return look("A", "B", "DB")

@step(secrets={"A": "env:SECOND", "B": "env:FIRST"})
def has(n: int) -> list:
    return look("A", "B", "DB")

@pipeline(secrets={"A": "env:FIRST", "DB": "env:SECOND"})
def example():
    less = has.with_options(name="less", secrets={"B": "env:SECOND"})
    none = has.with_options(name="none", secrets={})
    return inherits.map(n=[1, 2, 3]), has(1), less(1), none(1)
""",
        env={"FIRST": "first secret", "SECOND": "second secret"},
    )
    first, second = "terces tsrif", "terces dnoces"
    inherits, has, less, none = upshift.get_run("latest").output
    assert inherits == [[first, "", second]] * 3
    assert has == [second, first, second], "the step's own go before the pipeline's"
    assert less == [first, second, second] and none == [first, "", second], "with_options replaces the step's"
    log = project.upshift("logs", "latest", "inherits").out
    assert log == "".join(f"[inherits[{i}]] ***\n" for i in range(3))


def test_two_processes_that_print_at_the_same_time_leave_none(project: Project) -> None:
    project.run(
        r"""
import os, subprocess

@step(secrets={"DB": "file:key"})
def use() -> None:
    loop = 'i=0; while [ $i -lt 2000 ]; do echo "$0 $DB end"; i=$((i+1)); done'
    for process in [subprocess.Popen(["sh", "-c", loop, name]) for name in "ab"]:
        process.wait()

@pipeline
def example():
    use()
""",
        expect=2,
    )
    (project.folder / "key").write_text(PASSWORD)
    project.upshift("run", "pipeline.py")
    log = project.upshift("logs", "latest", "use").out
    assert sorted(log.splitlines()) == ["a *** end"] * 2000 + ["b *** end"] * 2000
    assert holding_secrets(project) == []


def test_where_ranks_wait_is_told_without_any_though_names_of_their_code_hold_them(project: Project) -> None:
    password = PASSWORD.replace("/", "")
    (project.folder / "private").mkdir()
    (project.folder / "private" / "db").write_text(password)
    project.run(
        """
import os, threading
from upshift import run_with_torchrun

@run_with_torchrun(nproc_per_node=2, hang=0.5)
@step(secrets={"DB": "file:private/db"})
def use() -> None:
    file = os.path.abspath(os.environ["DB"] + ".py")
    exec(compile("wait()", file, "exec"), {"wait": threading.Event().wait})

@pipeline
def example():
    use()
""",
        expect=1,
    )
    failed = project.attempt("use")
    assert failed["error"]["message"].startswith("no progress for 0.5 s: ranks 0 and 1 ")
    assert [stack["where"] for stack in failed["stacks"]] == ["***.py:1"] * 2
    assert all('***.py", line 1' in stack["text"] for stack in failed["stacks"])
    log = project.upshift("logs", "latest", "use").out
    assert "(***.py:1)" in log
    files = [path for path in project.home.rglob("*") if path.is_file()]
    assert [path for path in files if password.encode() in path.read_bytes()] == []


def test_a_step_that_returns_one_is_told_so(project: Project) -> None:
    ran = project.run(
        """
import os

@step(secrets={"TOKEN": "env:HF_TOKEN"})
def use() -> str:
    return "Bearer " + os.environ["TOKEN"]

@pipeline
def example():
    return use()
""",
        env=ENV,
    )
    assert "the output 'output' holds the secret TOKEN; it is stored as it is" in ran.out


def test_the_supervisor_of_one_task_reads_them_by_itself(secret: Project) -> None:
    secret.upshift("run", "pipeline.py", env=ENV)
    (spec,) = secret.home.glob("store/runs/*/tasks/use/*.spec.json")
    assert dict(from_json(TaskSpec, spec.read_bytes()).settings.secret_sources) == {
        "TOKEN": "env:HF_TOKEN",
        "DB": "file:private/db",
    }
    again = json.loads(spec.read_text()) | {"attempt": 7}
    spec.with_name("0.7.spec.json").write_text(json.dumps(again))
    command = [sys.executable, "-m", "upshift.runtime", str(spec.with_name("0.7.spec.json"))]
    without = subprocess.run(command, env=secret.environment(), capture_output=True, text=True, check=False)
    assert (without.returncode, without.stdout) == (2, "")
    assert without.stderr.startswith("secret TOKEN (env:HF_TOKEN): the variable HF_TOKEN is not set\n")
    done = secret.call(command, env=ENV)
    assert done.code == 0 and "plain ***\n" in done.out and shown(done) == []
    assert holding_secrets(secret) == []


def test_debug_and_replay_have_them_and_record_none(secret: Project) -> None:
    debugged = secret.upshift(
        "run", "pipeline.py", "--param", "fail=true", "--debug", "fails", env=ENV, expect=1
    )
    assert "RuntimeError: ('cannot reach db://***', ['***'])" in debugged.err
    assert "at the end ***" in debugged.err
    replayed = secret.upshift("replay", "latest", "fails", env=ENV, expect=1)
    assert "DB: masked in what the step prints" in replayed.err
    assert "at the end ***" in replayed.err
    assert shown(debugged) == shown(replayed) == []
    assert "NameError" not in replayed.text and "KeyError" not in replayed.text
    (secret.folder / "private" / "db").unlink()
    assert "secret DB (file:private/db)" in secret.upshift("replay", "latest", "fails", expect=2).err
    assert holding_secrets(secret) == []
