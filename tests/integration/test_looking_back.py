"""What happened, later: runs, show, logs, get_run, list_runs, tags."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone

import pytest

import upshift
from project import UPSHIFT, Project
from screen import on_terminal

CODE = """
@step
def greet(name: str) -> str:
    print("hello", name)
    return "hello " + name

@step
def count(text: str) -> tuple[int, int]:
    return len(text), text.count("l")

@pipeline
def greetings(name: str = "world"):
    size, ells = count(greet(name))
    return size

@pipeline
def other():
    return greet.map(name=["a", "b"])
"""


@pytest.fixture
def history(project: Project) -> Project:
    project.write(CODE)
    project.upshift("run", "pipeline.py:greetings", "--tag", "first", "--tag", "nightly")
    project.upshift("run", "pipeline.py:greetings", "--param", "name=you", "--tag", "nightly")
    project.upshift("run", "pipeline.py:other")
    return project


def test_runs_are_listed_newest_first_and_filtered(history: Project) -> None:
    assert [r.pipeline for r in upshift.list_runs()] == ["other", "greetings", "greetings"]
    assert len(upshift.list_runs(pipeline="greetings")) == 2
    assert [r.tags for r in upshift.list_runs(tag="first")] == [("first", "nightly")]
    assert len(upshift.list_runs(tag="nightly")) == 2
    assert len(upshift.list_runs(limit=1)) == 1
    assert upshift.list_runs(user="nobody-of-this-name") == []


def test_runs_as_json(history: Project) -> None:
    rows = json.loads(history.upshift("runs", "--json").out)
    assert len(rows) == 3
    for row in rows:
        assert set(row) == {"id", "pipeline", "status", "target", "user", "tags", "started", "ended"}
        assert row["status"] == "completed"
        assert datetime.fromisoformat(row["started"].replace("Z", "+00:00")).utcoffset() is not None


def test_show_as_json_has_the_documented_form(history: Project) -> None:
    shown = history.show(upshift.list_runs(tag="first")[0].id)
    assert set(shown) == {
        "id", "pipeline", "status", "target", "started", "ended", "params", "images", "steps",
    }  # fmt: skip
    assert shown["params"] == {"name": "world"}
    assert [s["name"] for s in shown["steps"]] == ["greet", "count"]
    (task,) = shown["steps"][0]["tasks"]
    fields = "index status cached cache_reason inputs outputs attempts origin"
    assert set(task) == set(fields.split())
    (output,) = task["outputs"]
    assert set(output) == {"name", "type", "digest", "bytes"}
    assert output["type"] == "str"
    assert output["digest"].partition(":")[0] in ("blake3", "sha256")
    (attempt,) = task["attempts"]
    assert set(attempt) == {
        "number", "status", "reason", "backend", "target", "node", "image", "started", "ended", "error",
        "asked", "granted", "seen", "used", "metrics", "metrics_by_rank", "cards", "gaps", "stacks",
        "checkpoints", "run",
    }  # fmt: skip
    assert (task["origin"], attempt["run"]) == (None, shown["id"])
    assert attempt["backend"] == "local"
    assert attempt["error"] is None
    assert attempt["started"] <= attempt["ended"]


def test_a_run_took_as_long_while_it_ran_as_afterwards(project: Project) -> None:
    code = """
@step
def greet(): ...

@pipeline
def example(): greet()
"""
    told = re.search(r"completed in (.+?) ·", project.run(code).err)
    shown = re.search(r"took (.+)", project.upshift("show", "latest").out)
    assert told is not None and shown is not None
    assert told[1] == shown[1]


def test_a_reused_task_gives_the_attempts_of_the_run_that_did_it(project: Project) -> None:
    code = """
@step
def make() -> int:
    return 3

@pipeline
def example():
    return make()
"""
    runs = []
    for _ in range(3):
        project.run(code)
        runs.append(upshift.get_run("latest"))
    assert [run["make"].tasks[0].attempts[-1].run for run in runs] == [runs[0].id] * 3, "who really did it"
    assert runs[2]["make"].tasks[0].attempts[-1].used == runs[0]["make"].tasks[0].attempts[-1].used
    (task,) = project.tasks("make")
    assert task["origin"] == {"run": runs[0].id, "step": "make", "index": None}
    assert [attempt["run"] for attempt in task["attempts"]] == [runs[0].id]
    assert task["attempts"][0]["used"]["memory"] is not None


def test_a_run_is_found_by_a_unique_prefix(history: Project) -> None:
    run = upshift.list_runs(tag="first")[0]
    length = next(
        n for n in range(1, 99) if sum(r.id.startswith(run.id[:n]) for r in upshift.list_runs()) == 1
    )
    assert upshift.get_run(run.id[:length]).id == run.id
    with pytest.raises(LookupError, match="no-such-run"):
        upshift.get_run("no-such-run")


def test_values_by_step_and_by_name(history: Project) -> None:
    run = upshift.list_runs(tag="first")[0]
    assert run.output == 11
    assert run["greet"].output == "hello world"
    assert run["count"].output == (11, 3)
    assert len(run["count"].outputs) == 2
    assert run.params == {"name": "world"}
    assert run.started.tzinfo is not None
    assert run.started <= run.ended <= datetime.now(timezone.utc)
    with pytest.raises(LookupError, match="greet"):
        run["gret"]


def test_a_mapped_step_gives_a_list(history: Project) -> None:
    run = upshift.get_run("latest")
    assert run["greet"].output == ["hello a", "hello b"]
    assert [task.output for task in run["greet"].tasks] == ["hello a", "hello b"]


def test_logs_of_a_step_and_of_a_reused_task(history: Project) -> None:
    assert "hello b" in history.upshift("logs", "latest", "greet").out
    history.upshift("run", "pipeline.py:other")
    assert all(t.cached for t in upshift.get_run("latest")["greet"].tasks)
    assert "hello b" in history.upshift("logs", "latest", "greet").out


def test_logs_of_a_step_that_is_not_there(history: Project) -> None:
    outcome = history.upshift("logs", "latest", "gret", expect=2)
    assert "greet" in outcome.err


def test_the_records_of_an_attempt_are_objects(history: Project) -> None:
    attempt = upshift.get_run("latest")["greet"].tasks[0].attempts[-1]
    assert attempt.status == "completed"
    assert attempt.used.cpu_count > 0
    assert attempt.seen.cpu_count >= 1
    assert attempt.started <= attempt.ended
    assert attempt.node
    assert "hello a" in attempt.log


def test_plain_listings_are_for_people(history: Project) -> None:
    table = history.upshift("runs").out
    assert "greetings" in table
    assert "completed" in table
    assert "greet" in history.upshift("show", "latest").out


def test_no_runs_yet(project: Project) -> None:
    assert json.loads(project.upshift("runs", "--json").out) == []
    project.upshift("runs")
    outcome = project.upshift("show", "latest", expect=2)
    assert "run" in outcome.err


def test_help_names_every_command(project: Project) -> None:
    text = project.upshift("--help").out
    for command in ("run", "resume", "cancel", "runs", "show", "logs"):
        assert command in text
        project.upshift(command, "--help")


def test_an_unknown_command_names_the_nearest(project: Project) -> None:
    outcome = project.upshift("shw", expect=2)
    assert "show" in outcome.err


def test_every_parameter_is_shown_whatever_its_type(project: Project) -> None:
    project.write("")
    code = """
import datetime
import enum
from dataclasses import dataclass
from pathlib import Path

class Kind(enum.Enum):
    BIG = 1

@dataclass
class Config:
    lr: float = 0.1

    def __setstate__(self, state):
        print("unpickled")

NOTHING = object()

@step
def work(name: str) -> str:
    return name

@pipeline
def example(
    config: Config,
    file: Path,
    kind: Kind = Kind.BIG,
    day: datetime.date = datetime.date(2026, 1, 2),
    shape: tuple[int, int] = (3, 4),
    other: Config = Config(),
    missing: object = NOTHING,
    rate: float = 0.5,
):
    return work(file.name)
"""
    project.run(code, "--param", "config={}", "--param", "file=pipeline.py")
    told = " ".join(project.upshift("show", "latest").out.split())
    assert (
        "params config.lr=0.1, file='pipeline.py', kind='BIG', day='2026-01-02', shape=[3, 4], other.lr=0.1, "
        "rate=0.5, missing=<object object>"
    ) in told
    assert "unpickled" not in told
    params = project.show()["params"]
    assert params["rate"] == 0.5
    assert params["config"] == params["other"] == {"$type": "pipeline.Config", "lr": 0.1}
    assert (params["kind"], params["shape"], params["file"]) == ("BIG", [3, 4], "pipeline.py")
    assert params["missing"] == {"type": None, "digest": None, "bytes": None, "text": "<object object>"}
    planned = json.loads(
        project.upshift(
            "plan", "pipeline.py", "--param", "config={}", "--param", "file=pipeline.py", "--json"
        ).out
    )
    assert planned["params"] == params


def test_a_run_without_steps_and_a_narrow_page_are_both_readable(project: Project) -> None:
    project.run("@pipeline\ndef example():\n    return 3\n")
    shown = project.upshift("show", "latest", env={"COLUMNS": "40"}).out
    assert shown.endswith("\nNo steps: the pipeline called none.\n")
    assert max(map(len, shown.splitlines())) <= 40


def test_what_a_step_says_gives_a_terminal_no_commands(project: Project) -> None:
    evil = r"\x1b]52;c;aGVsbG8=\x07\x1b]0;title\x1b\\\x1b[2J\x1b[1A\x9b2J"
    project.write(
        f"""
from upshift import pipeline, step

@step
def talks():
    print("{evil}printed \\x1b[31mred\\x1b[0m")
    raise ValueError("{evil}raised")

@pipeline
def example():
    talks()
"""
    )
    environment = project.environment()
    for command, code in (["run", "pipeline.py"], 1), (["show", "latest"], 0), (["logs", "latest"], 0):
        ended, written = on_terminal([UPSHIFT, *command], environment, cwd=project.folder)
        assert ended == code, written
        assert "\x1b]" not in written and "\x1b[2J" not in written and "\x9b" not in written, repr(written)
        assert "raised" in written or command[0] == "logs"
        assert "printed \x1b[31mred" in written or command[0] == "show"
    assert "\x9b2Jprinted" in project.upshift("logs", "latest").out  # no terminal: as it was printed


def test_logs_end_with_why_a_step_failed(project: Project) -> None:
    project.write("""
        @step
        def check(x: int) -> int:
            print("checks", x)
            if x % 2:
                raise ValueError(f"{x} is odd")
            return x

        @pipeline
        def example():
            return check.map([0, 1, 3])
        """)
    project.upshift("run", "pipeline.py", "--keep-going", expect=1)
    told = project.upshift("logs", "latest")
    assert told.out == "[check[0]] checks 0\n[check[1]] checks 1\n[check[2]] checks 3\n"
    first, *traceback = told.err.splitlines()
    assert (
        first == "check[1] failed (user-error), and 1 other task alike: ValueError: 1 is odd (pipeline.py:7)"
    )
    assert traceback[0] == "    Traceback (most recent call last):"
    assert traceback[-1] == "    ValueError: 1 is odd"
    assert project.upshift("logs", "latest", "check[0]").err == ""
    assert project.upshift("logs", "latest", "check[2]").err.startswith(
        "check[2] failed (user-error): ValueError: 3"
    )
