"""What ``upshift runs`` and ``upshift show`` print, from records in a real store and catalog."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import attrs
import pytest

from recorder import LONG, STARTED, Recorder
from upshift.model.spec import Failure, TaskId
from upshift.model.spec.task import UNCACHED
from upshift.report.terminal import Page, cells
from upshift.report.terminal.catalog import runs_table
from upshift.report.terminal.show import show_run, steps_table
from upshift.runs.catalog.rows import RunRow, TaskRow
from upshift.runs.history.as_json import run_as_json
from upshift.runtime.storage.artifacts import save


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_a_run_has_a_header(recorder: Recorder) -> None:
    text = show_run(recorder.run()).splitlines()
    assert text[0] == "run 20261121-aaaa · digits · completed"
    assert text[1].split() == ["target", "local"]
    assert text[2].endswith("), took 1 min 33 s")
    assert text[3].split() == ["by", "ada"]
    assert text[4].split() == ["tags", "nightly"]
    assert text[5].split(maxsplit=1) == ["params", "lr=0.1, data=<bytes, 3 KB>, kind=Color.RED"]


def test_each_step_shows_the_four_records_side_by_side(recorder: Recorder) -> None:
    run = recorder.run()
    recorder.task("load", seconds=0.31, cpus=0.93)
    lines = steps_table(run, Page()).splitlines()
    assert lines[0].split() == ["step", "status", "time", "asked", "granted", "seen", "used"]
    assert lines[2].split() == [
        "load",
        "completed",
        "310",
        "ms",
        "–",
        "2",
        "CPU",
        "(0-1)",
        "2",
        "CPU",
        "0.93",
        "CPU",
        "mean",
    ]
    assert lines[3].split() == ["–", "4", "GB", "23.4", "GB", "812", "MB", "peak"]
    used = lines[0].index("used")
    assert lines[2][used:] == "0.93 CPU mean"
    assert lines[3][used:] == "812 MB peak"


def test_a_mapped_step_is_one_row_with_counts_and_ranges(recorder: Recorder) -> None:
    run = recorder.run()
    for index in range(12):
        recorder.task("train", index, seconds=1.1 + index / 5, cpus=1 + index / 20, why="`normalize` changed")
    lines = [line for line in steps_table(run, Page()).splitlines() if "train" in line or "changed" in line]
    assert lines[0].startswith("train ×12  ")
    assert "1.10–3.30 s" in lines[0]
    assert lines[0].endswith("1–1.55 CPU mean")
    assert lines[1].startswith("  `normalize` changed")


def test_tasks_shows_each_task_of_a_mapped_step(recorder: Recorder) -> None:
    run = recorder.run()
    for index in range(3):
        recorder.task("train", index)
    names = [line.split()[0] for line in show_run(run, tasks=True).splitlines() if line.startswith("train[")]
    assert names == ["train[0]", "train[1]", "train[2]"]


def test_a_grant_below_the_request_is_marked_and_explained(recorder: Recorder) -> None:
    run = recorder.run()
    recorder.task("train", 0)
    text = steps_table(run, Page())
    assert "1 × GPU  no GPU !" in text
    assert text.splitlines()[-1] == "! less than was asked for"


def test_a_reused_task_shows_why_and_the_records_of_the_original(recorder: Recorder) -> None:
    recorder.run()
    recorder.task("load", cpus=0.5)
    original = TaskId(run=recorder.id, step="load")
    recorder.id = "20261121-bbbb"
    run = recorder.run(id=recorder.id)
    recorder.reused("load", original, "same as in run 20261121-aaaa")
    text = steps_table(run, Page())
    assert "load            " in text
    assert "reused" in text
    assert "0.5 CPU mean" in text
    assert "same as in run" in text


def test_failures_stand_below_the_table_with_reason_traceback_and_remedy(recorder: Recorder) -> None:
    run = recorder.run(status="failed")
    recorder.task(
        "choose",
        attempt=2,
        failure=Failure(
            reason="user-error",
            message="ValueError: " + "all the same " * 12,
            traceback='Traceback (most recent call last):\n  File "p.py", line 3, in choose\nValueError: x',
            fix="Look at the scores.",
        ),
    )
    recorder.task("load", failure=Failure(reason="timeout", message="it took too long", where="p.py:7"))
    text = show_run(run)
    assert "choose failed (user-error)\n  ValueError: all the same all the same" in text
    assert '    Traceback (most recent call last):\n      File "p.py", line 3, in choose\n' in text
    assert "  fix:   Look at the scores." in text
    assert "load failed (timeout)\n  it took too long\n  where: p.py:7" in text


def test_earlier_attempts_are_listed_beneath_the_table(recorder: Recorder) -> None:
    run = recorder.run()
    failure = Failure(reason="user-error", message="ValueError: boom\nmore", where="ret.py:8")
    recorder.task("load", failure=failure)
    recorder.task("load", attempt=2, failure=Failure(reason="timeout", message="it took too long"))
    recorder.task("load", attempt=3)
    for attempt in (1, 2):
        recorder.task("train", 4, attempt=attempt, failure=failure if attempt == 1 else None)
    text = show_run(run)
    assert "  3 attempts" in text
    assert (
        "\n\nearlier attempts\n"
        "  load: attempt 1 failed (user-error): ValueError: boom (ret.py:8)\n"
        "  load: attempt 2 failed (timeout): it took too long\n"
        "  train[4]: attempt 1 failed (user-error): ValueError: boom (ret.py:8)"
    ) in text


def test_many_earlier_attempts_are_counted(recorder: Recorder) -> None:
    run = recorder.run()
    for attempt in range(1, 32):
        recorder.task("load", attempt=attempt, failure=Failure(reason="user-error", message="word " * 40))
    text = show_run(run, page=Page(width=80))
    assert "  … and 10 more: upshift show 20261121-aaaa --json" in text
    assert max(map(cells, text.splitlines())) <= 80


def test_only_the_first_failures_are_told_in_full(recorder: Recorder) -> None:
    run = recorder.run(status="failed")
    for index in range(25):
        recorder.task("train", index, failure=Failure(reason="user-error", message=f"no {index}"))
    text = show_run(run)
    assert text.count("failed (user-error)") == 10
    assert "… and 15 more failures: upshift show 20261121-aaaa --json" in text


def test_tasks_that_failed_in_one_place_are_told_together(recorder: Recorder) -> None:
    run = recorder.run(status="failed")
    for index in range(3):
        failure = Failure(reason="user-error", message=f"no {index}", where="train.py:7")
        recorder.task("train", index, failure=failure)
    text = show_run(run)
    assert "train[0] failed (user-error)\n  no 0\n" in text
    assert "  like:  train[1], train[2]" in text
    assert text.count("failed (user-error)") == 1


def test_outputs_have_name_type_and_size(recorder: Recorder) -> None:
    run = recorder.run()
    recorder.task("load", outputs={"output": save({"a": 1}, recorder.store)})
    for index in range(3):
        recorder.task("train", index, outputs={"output": save(b"x" * 5000, recorder.store)})
    lines = show_run(run).splitlines()[-4:]
    assert [line.split() for line in lines if "─" not in line] == [
        ["output", "type", "size"],
        ["load", "dict", "7", "B"],
        ["train", "3", "×", "bytes", "15", "KB"],
    ]


def test_outputs_of_a_flow_are_the_artifacts_that_each_step_set(recorder: Recorder) -> None:
    lines = show_run(recorder.flow()).splitlines()
    head = next(at for at, line in enumerate(lines) if line.split() == ["output", "type", "size"])
    assert [line.split()[:-2] for line in lines[head + 2 :]] == [
        ["start.name", "str"],
        ["start.data", "bytes"],
        ["start.output", "list"],
        ["train.score", "2", "×", "int"],
        ["join.score", "int"],  # which one of the joined has, and the other has not
        ["join.best", "int"],
        ["end.told", "dict"],
    ]


def test_states_that_are_gone_leave_the_rest_of_a_flow(recorder: Recorder) -> None:
    run = recorder.flow()
    run["start"].tasks[0].artifacts["output"] = attrs.evolve(
        run["start"].tasks[0].artifacts["output"], inline=None, digest="blake3:" + "0" * 64
    )
    text = show_run(run)
    assert "start.name" not in text
    assert "end.told" in text


def test_a_flow_that_reuses_nothing_does_not_say_so_of_each_step(recorder: Recorder) -> None:
    assert UNCACHED not in show_run(recorder.flow(), tasks=True)
    recorder.id = "20261121-bbbb"
    run = recorder.flow(cached=["train"])
    assert show_run(run).count(UNCACHED) == 4
    assert {task["cache_reason"] for step in run_as_json(run)["steps"] for task in step["tasks"]} == {
        UNCACHED
    }


@pytest.mark.parametrize("width", [80, 100, 120])
def test_it_fits_the_page(recorder: Recorder, width: int) -> None:
    run = recorder.run(status="failed", tags=("a-long-tag",) * 12)
    recorder.task("load", why="`a_function_with_a_long_name` in features/preparation.py changed, and more")
    for index in range(12_345 // 1000):
        recorder.task("train", index, seconds=200 + index, cpus=1 + index / 20)
    recorder.task("choose", failure=Failure(reason="user-error", message="word " * 100, fix="do " * 100))
    recorder.task(LONG, outputs={"output": save([1], recorder.store)})
    text = show_run(run, page=Page(width=width))
    assert max(map(cells, text.splitlines())) <= width
    assert LONG in text


def test_colours_change_nothing_but_the_colours(recorder: Recorder) -> None:
    run = recorder.run(status="failed")
    recorder.task("train", 0, why="no earlier run of it")
    recorder.task("choose", failure=Failure(reason="user-error", message="no", traceback="Traceback:\n  x"))
    painted = show_run(run, page=Page(colour=True))
    assert "\x1b[31mfailed\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == show_run(run)


def test_a_run_that_has_not_begun_shows_its_steps(recorder: Recorder) -> None:
    text = steps_table(recorder.run(status="running", ended=None), Page())
    assert [line.split()[:2] for line in text.splitlines()[2:5]] == [
        ["load", "pending"],
        ["train", "pending"],
        ["choose", "pending"],
    ]


def _rows(count: int, **fields: object) -> list[RunRow]:
    row = RunRow(
        id="r",
        pipeline="digits",
        status="completed",
        target="local",
        store="/s",
        started=STARTED,
        **fields,  # type: ignore[arg-type]
    )
    return [attrs.evolve(row, id=f"20261121-{i:04}") for i in range(count)]


def test_runs_are_listed_one_a_line() -> None:
    now = datetime.fromtimestamp(STARTED + 7200, timezone.utc)
    rows = _rows(2, ended=STARTED + 4.2, tags=("nightly", "gpu"))
    lines = runs_table(rows, now=now).splitlines()
    assert lines[0].split() == ["run", "pipeline", "status", "started", "took", "tags"]
    assert len(lines) == 4
    assert lines[2].startswith("20261121-0000  digits    completed  2026-11-21 ")
    assert lines[2].endswith("  2 hours ago  4.20 s  nightly, gpu")


def test_the_id_of_a_run_is_never_cut() -> None:
    rows = [attrs.evolve(row, pipeline="p" * 70, tags=("t" * 70,)) for row in _rows(3, ended=STARTED + 1)]
    text = runs_table(rows, page=Page(width=80))
    assert max(map(cells, text.splitlines())) <= 80
    assert all(row.id in text for row in rows)


@pytest.mark.parametrize("width", [20, 40])
def test_on_a_narrow_page_a_run_takes_several_lines(width: int) -> None:
    rows = _rows(2, ended=STARTED + 4.2, tags=("nightly", "gpu"))
    lines = runs_table(rows, page=Page(width=width)).splitlines()
    assert max(map(cells, lines)) <= width
    assert lines[0].split()[0] == rows[0].id
    told = " ".join(" ".join(lines).split())
    assert f"{rows[0].id} completed digits · 2026-11-21" in told
    assert "· 4.20 s · nightly, gpu" in told


def test_no_runs_is_said() -> None:
    assert runs_table([]) == "No runs."


def test_what_did_not_run_says_why(recorder: Recorder) -> None:
    run = recorder.run(status="failed")
    recorder.task("load", failure=Failure(reason="user-error", message="no"))
    cancelled = [TaskRow(task=TaskId(run=recorder.id, step="choose"), status="cancelled")]
    recorder.catalog.record(cancelled)
    text = " ".join(show_run(run).split())
    assert "train cancelled not run: load failed" in text  # it needs load, and has no tasks yet
    assert "choose cancelled not run: the run stopped when load failed" in text
    assert "not run" not in text.partition("train cancelled")[0]


def test_tasks_that_did_not_run_because_others_of_their_step_failed(recorder: Recorder) -> None:
    run = recorder.run(status="failed")
    recorder.task("load")
    recorder.task("train", 0, failure=Failure(reason="user-error", message="no"))
    waiting = [TaskRow(task=TaskId(run=recorder.id, step="train", index=1), status="cancelled")]
    recorder.catalog.record(waiting)
    text = " ".join(show_run(run, tasks=True).split())
    assert "train[0] failed 1.00 s user-error: no" in text
    assert "train[1] cancelled – not run: the run stopped when train failed" in text


def test_that_a_task_was_cancelled_is_said_once(recorder: Recorder) -> None:
    run = recorder.run(status="cancelled")
    recorder.task("load")
    stopped = Failure(reason="cancelled", message="it was stopped")
    recorder.task("train", 0, failure=stopped)
    assert "train[0] cancelled\n  it was stopped" in show_run(run)
    assert "cancelled: " not in show_run(run, tasks=True)
    assert "cancelled (" not in show_run(run, tasks=True)


def test_what_a_cancelled_run_did_not_reach_says_so(recorder: Recorder) -> None:
    run = recorder.run(status="cancelled")
    recorder.task("load")
    text = " ".join(show_run(run).split())
    assert text.count("not run: the run was cancelled") == 3


@pytest.mark.parametrize("width", [30, 40, 55])
def test_on_a_narrow_page_the_records_stand_below_each_other(recorder: Recorder, width: int) -> None:
    run = recorder.run()
    recorder.task("load", seconds=0.31, cpus=0.93)
    recorder.task("train", 0)
    lines = show_run(run, page=Page(width=width)).splitlines()
    assert max(map(cells, lines)) <= width
    start = lines.index("load")
    assert lines[start + 1] == "  completed in 310 ms"
    facts = [line.split(maxsplit=1) for line in lines[start + 2 :]]
    assert ["asked", "–"] in facts
    assert ["seen", "2 CPU, 23.4 GB"] in facts
    assert any(line.endswith("no GPU !") for line in lines)
    assert "! less than was asked for" in lines


def test_a_page_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Page.of_stdout().width == 100
    monkeypatch.setenv("COLUMNS", "40")
    assert Page.of_stdout() == Page(width=40, terminal=40)
    monkeypatch.setenv("COLUMNS", "400")
    assert (Page.of_stdout().width, Page.of_stdout().whole.width) == (120, 400)
