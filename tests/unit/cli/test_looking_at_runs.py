"""``upshift runs``, ``show`` and ``logs``, on runs that are over and on one that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recorder import Recorder
from upshift.cli import upshift
from upshift.model.spec import TaskId
from upshift.runs.catalog.rows import AttemptRow, TaskRow
from upshift.runs.lease import Lease


@pytest.fixture
def recorder(upshift_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    upshift_home.mkdir()
    monkeypatch.chdir(tmp_path)
    return Recorder(upshift_home)


def call(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(upshift, args)
    assert result.exit_code == code, result.output
    return result


def test_runs_as_a_table_and_as_json(recorder: Recorder) -> None:
    recorder.run()
    assert "20261121-aaaa  digits    completed" in call("runs").stdout
    (row,) = json.loads(call("runs", "--json").stdout)
    assert row == {
        "id": "20261121-aaaa",
        "pipeline": "digits",
        "status": "completed",
        "target": "local",
        "user": "ada",
        "tags": ["nightly"],
        "started": "2026-11-21T12:00:00.000Z",
        "ended": "2026-11-21T12:01:33.200Z",
    }


def test_runs_are_filtered(recorder: Recorder) -> None:
    recorder.run()
    recorder.run(id="20261121-bbbb", pipeline="other", tags=(), user="grace")
    for option, value in (("--pipeline", "other"), ("--user", "grace"), ("--limit", "1")):
        (row,) = json.loads(call("runs", "--json", option, value).stdout)
        assert row["id"] == "20261121-bbbb"
    (row,) = json.loads(call("runs", "--json", "--tag", "nightly").stdout)
    assert row["id"] == "20261121-aaaa"


def test_a_long_list_says_that_there_is_more(recorder: Recorder) -> None:
    for index in range(60):
        recorder.run(id=f"20261121-{index:04}")
    shown = call("runs")
    assert len(shown.stdout.splitlines()) == 52
    assert "the newest 50; there are more: --limit N" in shown.stderr
    assert call("runs", "--limit", "60").stderr == ""
    assert len(json.loads(call("runs", "--json").stdout)) == 60
    assert len(json.loads(call("runs", "--json", "--limit", "7").stdout)) == 7


def test_show_takes_an_id_a_prefix_or_latest(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load")
    for ref in ("20261121-aaaa", "20261121-a", "latest"):
        assert call("show", ref).stdout.startswith("run 20261121-aaaa · digits · completed\n")
    assert (
        json.loads(call("show", "latest", "--json").stdout)["steps"][0]["tasks"][0]["status"] == "completed"
    )
    assert "Error: " in call("show", "nosuchrun", code=2).stderr


def test_logs_of_one_task_are_the_bytes_that_it_printed_with_last_frames_only(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load")
    recorder.log("load", b"caf\xe9\n100%\r200%\nno line feed")
    assert call("logs", "latest", "load").stdout_bytes == b"caf\xe9\n200%\nno line feed"


def test_logs_of_several_tasks_show_the_last_frames_too(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load")
    recorder.log("load", b"50%\r100%\nwiped\r ")
    recorder.task("train", 0)
    recorder.log("train", b"ended\r\nat 7%\rat 8%", 0)
    assert call("logs", "latest").stdout == "[load] 100%\n[train[0]] ended\n[train[0]] at 8%\n"


def test_logs_of_several_tasks_begin_with_their_names(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load")
    recorder.log("load", b"one\ntwo")
    for index in range(2):
        recorder.task("train", index)
        recorder.log("train", b"three\n", index)
    assert call("logs", "latest").stdout == "[load] one\n[load] two\n[train[0]] three\n[train[1]] three\n"
    assert call("logs", "latest", "train").stdout == "[train[0]] three\n[train[1]] three\n"
    assert call("logs", "latest", "train[1]").stdout == "three\n"


def test_logs_are_those_of_the_last_attempt_or_of_the_one_that_is_named(recorder: Recorder) -> None:
    recorder.run()
    for attempt in (1, 2):
        recorder.task("load", attempt=attempt)
        recorder.log("load", b"attempt %d\n" % attempt, attempt=attempt)
    last = call("logs", "latest", "load")
    assert last.stdout == "attempt 2\n"
    assert last.stderr == (
        "load had 2 attempts; the last one is shown. "
        "To see another: upshift logs 20261121-aaaa load --attempt 1\n"
    )
    first = call("logs", "latest", "load", "--attempt", "1")
    assert (first.stdout, first.stderr) == ("attempt 1\n", "")
    assert (
        "load has no attempt 3\n  fix:   Its attempts: 1, 2."
        in call("logs", "latest", "load", "--attempt", "3", code=2).stderr
    )


def test_logs_of_a_mapped_step_say_which_task_had_other_attempts(recorder: Recorder) -> None:
    recorder.run()
    for index in range(4):
        for attempt in range(1, index + 1):
            recorder.task("train", index, attempt=attempt)
    said = call("logs", "latest", "train").stderr
    assert said.startswith("2 tasks had several attempts; the last one is shown. ")
    assert said.endswith("upshift logs 20261121-aaaa 'train[2]' --attempt 1\n")
    assert call("logs", "latest", "train[1]").stderr == ""


def test_logs_of_a_reused_task_are_those_of_the_original(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load")
    recorder.log("load", b"printed long ago\n")
    original = TaskId(run=recorder.id, step="load")
    recorder.id = "20261121-bbbb"
    recorder.run(id=recorder.id)
    recorder.reused("load", original, "same")
    assert call("logs", "latest", "load").stdout == "printed long ago\n"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("loda", "has no step 'loda'\n  fix:   Did you mean 'load'?"),
        ("load[0]", "has no task 'load[0]'\n  fix:   'load' is not a mapped step."),
        ("train[9]", "has no task 'train[9]'\n  fix:   Its tasks: train[0] to train[1]."),
    ],
)
def test_logs_of_what_is_not_there_say_what_is(recorder: Recorder, step: str, message: str) -> None:
    recorder.run()
    recorder.task("load")
    for index in range(2):
        recorder.task("train", index)
    assert message in call("logs", "latest", step, code=2).stderr


class Following:
    """``upshift logs -f``, and the engine of the run that it follows."""

    def __init__(self, recorder: Recorder, *args: str) -> None:
        self.recorder = recorder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "upshift", "logs", "latest", "-f", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def rest(self) -> tuple[bytes, bytes]:
        return self.process.communicate(timeout=30)

    def ends(self, status: str = "completed") -> None:
        self.recorder.catalog.update_run(self.recorder.id, status=status, ended=time.time())


@pytest.fixture
def running(recorder: Recorder) -> Recorder:
    recorder.run(status="running", ended=None)
    for step in ("load", "choose"):
        task = TaskId(run=recorder.id, step=step)
        row = AttemptRow(task=task, number=1, status="running", backend="local")
        recorder.catalog.record([TaskRow(task=task, status="running")], [row])
    return recorder


def test_following_shows_lines_as_they_come_and_ends_with_the_run(running: Recorder) -> None:
    running.log("load", b"before\n")
    with Lease(running.id, running.store.address):
        following = Following(running)
        assert following.line() == b"[load] before\n"
        running.log("load", b"after\nhalf a ")
        assert following.line() == b"[load] after\n"
        running.log("load", b"line\n")
        assert following.line() == b"[load] half a line\n"
        running.log("train", b"a step that starts later\n", 3)
        assert following.line() == b"[train[3]] a step that starts later\n"
        running.log("load", b"the end")
        following.ends()
        assert following.rest() == (b"[load] the end\n", b"")
    assert following.process.returncode == 0


def test_following_one_step_ends_with_the_step(running: Recorder) -> None:
    with Lease(running.id, running.store.address):
        following = Following(running, "load")
        running.log("choose", b"of another step\n")
        running.log("load", b"of this step\n")
        assert following.line() == b"of this step\n"
        running.task("load")
        assert following.rest() == (b"", b"")


def test_following_tells_where_the_next_attempt_of_a_task_begins(running: Recorder) -> None:
    running.log("load", b"of the first")
    with Lease(running.id, running.store.address):
        following = Following(running)
        running.log("choose", b"once\n")
        assert following.line() == b"[choose] once\n"
        running.log("load", b"of the second\n", attempt=2)
        assert following.line() == b"[load] of the first\n"
        assert following.line() == b"[load] of the second\n"
        following.ends()
        assert following.rest() == (b"", b"load: attempt 2\n")


def test_following_a_run_whose_engine_was_killed_ends_and_says_how_to_finish_it(running: Recorder) -> None:
    running.log("load", b"the last words\n")
    following = Following(running)
    out, err = following.rest()
    assert out == b"[load] the last words\n"
    assert err.decode() == (
        "Run 20261121-aaaa is not over, but its engine is gone. To finish it: upshift resume 20261121-aaaa\n"
    )


def test_a_run_whose_engine_was_killed_is_interrupted(running: Recorder) -> None:
    assert " interrupted " in call("runs").stdout
    (row,) = json.loads(call("runs", "--json").stdout)
    assert (row["status"], row["ended"]) == ("cancelled", None)
    shown = call("show", "latest").stdout
    assert shown.startswith("run 20261121-aaaa · digits · interrupted\n")
    assert "upshift resume 20261121-aaaa continues from the last completed step" in shown
    with Lease(running.id, running.store.address):
        assert " running " in call("runs").stdout
        assert json.loads(call("show", "latest", "--json").stdout)["status"] == "running"


def test_following_a_run_that_is_over_prints_it(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load")
    recorder.log("load", b"all of it\n")
    assert call("logs", "latest", "load", "-f").stdout == "all of it\n"


def test_a_pipeline_without_runs_is_told_from_one_whose_runs_are_filtered_away(recorder: Recorder) -> None:
    recorder.run()
    result = call("runs", "--pipeline", "digit", code=2)
    assert "there is no run of a pipeline 'digit'" in result.output
    assert "Did you mean 'digits'?" in result.output
    assert call("runs", "--pipeline", "digits", "--user", "nobody").stdout == "No runs.\n"
