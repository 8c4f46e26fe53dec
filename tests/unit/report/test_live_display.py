"""What a user sees of a run on a terminal."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from screen import Screen, on_terminal

PROLOGUE = """
from upshift.report import TaskChange
from upshift.report import make_progress
from upshift.model.spec import Failure, Hardware, TaskId

progress = make_progress()

def change(step, status, index=None, **more):
    progress.task_changed(TaskChange(task=TaskId(run="r1", step=step, index=index), status=status, **more))

def prints(step, text, index=None):
    progress.output(TaskId(run="r1", step=step, index=index), text)

def unfinished(step, text, index=None):
    progress.unfinished(TaskId(run="r1", step=step, index=index), text)

GRANTED = Hardware(cpu_count=2, memory=4_000_000_000, gpus=())
"""
ENV = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
ENV = {k: v for k, v in ENV.items() if k not in ("CI", "NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}


def show(code: str, *, width: int = 100, height: int = 30, **env: str) -> tuple[Screen, str]:
    """Run a script of progress calls on a terminal; the screen at its end, and the bytes that led there."""
    program = PROLOGUE + textwrap.dedent(code)
    status, written = on_terminal([sys.executable, "-c", program], {**ENV, **env}, width=width, height=height)
    screen = Screen(width)
    screen.feed(written)
    assert status == 0, screen.text
    return screen, written


def test_each_step_has_a_row_with_state_progress_time_and_hardware() -> None:
    screen, _ = show(
        """
        progress.run_started("r1", "digits", "local", ["load", "train", "choose"])
        change("load", "completed", cached=True)
        progress.step_sized("train", 4)
        for i in range(4):
            change("train", "running", i, attempt=1, granted=GRANTED)
            change("train", "completed", i, attempt=1, seconds=0.1)
        change("choose", "skipped", skipped="is_good gave False")
        progress.run_ended("r1", "completed", 3.25)
        """
    )
    head, load, train, choose, closing = screen.text.splitlines()
    assert head.startswith("digits on local · run r1 · ")
    assert load.split() == ["↺", "reused", "load"]
    assert re.fullmatch(r" +✓ completed +train +━{12} 4/4 +\d\.\d s +2 CPU · 4 GB · no GPU", train)
    assert choose.split() == ["↷", "skipped", "choose", "is_good", "gave", "False"]
    assert closing == "run r1: completed in 3.25 s · upshift show r1"


def test_what_steps_print_stands_above_the_table_and_survives_it() -> None:
    screen, _ = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", attempt=1)
        for i in range(50):
            prints("train", f"epoch {i}\\n")
        change("train", "completed", attempt=1)
        progress.run_ended("r1", "completed", 1.0)
        """,
        height=10,
    )
    lines = screen.text.splitlines()
    assert lines[:50] == [f"train │ epoch {i}" for i in range(50)]
    assert len(lines) == 53


def test_what_a_step_prints_does_not_disturb_the_table() -> None:
    screen, _ = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", attempt=1)
        prints("train", "up \\x1b[3Aand \\x1b[31mred\\x07\\n")
        progress.run_ended("r1", "completed", 1.0)
        """
    )
    assert screen.text.splitlines()[:1] == ["train │ up and red"]


def test_a_progress_bar_stands_below_the_table_until_its_line_has_ended() -> None:
    screen, written = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", 0, attempt=1)
        unfinished("train", " 50%|#    |\\ninner \\x1b[32m10%\\x1b[0m", 0)
        progress.close()
        """
    )
    assert screen.text.splitlines()[2:] == ["train[0] │  50%|#    |", "train[0] │ inner 10%"]
    assert "\x1b[32m10%" in written
    screen, _ = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", 0, attempt=1)
        unfinished("train", " 50%|#    |", 0)
        unfinished("train", "", 0)
        prints("train", "100%|##   |\\n", 0)
        progress.run_ended("r1", "completed", 1.0)
        """
    )
    first, _head, _row, closing = screen.text.splitlines()
    assert first == "train[0] │ 100%|##   |" and closing.startswith("run r1: completed")


def test_progress_bars_leave_room_for_the_steps() -> None:
    screen, _ = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        for i in range(30):
            change("train", "running", i, attempt=1)
            unfinished("train", f"{i}%", i)
        progress.close()
        """,
        height=12,
    )
    lines = screen.text.splitlines()
    assert lines[2:] == [*(f"train[{i}] │ {i}%" for i in range(3)), "  … 27 more unfinished lines"]
    assert len(lines) < 12


def test_the_bar_of_a_fan_out_that_was_stopped_is_not_full() -> None:
    screen, written = show(
        """
        progress.run_started("r1", "digits", "local", ["train"])
        progress.step_sized("train", 12)
        for i in range(4):
            change("train", "running", i, attempt=1)
        for i in range(3):
            change("train", "completed", i, attempt=1, seconds=0.1)
        for i in range(3, 12):
            change("train", "cancelled", i)
        progress.run_ended("r1", "cancelled", 3.25)
        """
    )
    assert re.search(r"■ cancelled +train +━{12} 3/12 ", screen.text)
    assert "\x1b[32m━━━\x1b[0m\x1b[2m━━━━━━━━━\x1b[0m 3/12" in written


def test_a_failure_is_shown_with_the_users_traceback_and_the_remedy() -> None:
    screen, _ = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", attempt=1)
        failure = Failure(
            reason="out-of-memory",
            message="it grew beyond 1 GB",
            traceback="Traceback:\\n  here",
            fix="Ask for more.",
        )
        change("train", "failed", attempt=1, seconds=2.0, failure=failure, retry_in=5.0, retry=1, retries=2)
        change("train", "running", attempt=2)
        change("train", "failed", attempt=2, seconds=2.0, failure=failure)
        progress.run_ended("r1", "failed", 9.0)
        """
    )
    assert screen.text.splitlines()[:5] == [
        "train: attempt 1 failed (out-of-memory): it grew beyond 1 GB; trying again in 5 s (1 of 2)",
        "train: attempt 2 failed after 2.00 s (out-of-memory): it grew beyond 1 GB",
        "    Traceback:",
        "      here",
        "    fix: Ask for more.",
    ]
    assert "✗ failed" in screen.text


def test_a_notice_is_said_once_and_stays_beside_its_step_while_that_is_not_over() -> None:
    screen, _ = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        for i in range(3):
            progress.notice("asked 8 GPUs, granted none", task=TaskId(run="r1", step="train", index=i))
        progress.run_ended("r1", "failed", 9.0)
        """
    )
    first, _head, row, _closing = screen.text.splitlines()
    assert first == "train: asked 8 GPUs, granted none"
    assert row.split(maxsplit=3) == ["·", "pending", "train", "asked 8 GPUs, granted none"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_nothing_wraps_on_a_terminal_of_any_width(width: int) -> None:
    screen, _ = show(
        """
        names = ["a_step_with_quite_a_long_name_that_goes_on_and_on", "b"]
        progress.run_started("20261121-032610-abcdef", "a_pipeline_with_a_long_name", "cluster", names)
        progress.step_sized(names[0], 10_000)
        change(names[0], "running", 1, granted=GRANTED)
        progress.notice("waits for 4 CPUs", task=TaskId(run="r1", step="b"))
        progress.close()
        """,
        width=width,
    )
    assert "▶ running" in screen.text


def test_a_run_with_more_steps_than_lines_shows_what_runs_and_sums_up_the_rest() -> None:
    screen, _ = show(
        """
        names = [f"step{i}" for i in range(100)]
        progress.run_started("r1", "p", "local", names)
        for name in names[:60]:
            change(name, "running", attempt=1)
            change(name, "completed", attempt=1)
        change("step60", "running", attempt=1)
        progress.close()
        """,
        height=10,
    )
    lines = screen.text.splitlines()
    assert len(lines) < 10
    assert any("▶ running" in line and "step60" in line for line in lines)
    assert re.fullmatch(r"  … \d+ more steps: 60 completed, \d+ pending", lines[-1])


def test_what_steps_print_goes_to_stdout_where_that_is_no_terminal(tmp_path: Path) -> None:
    program = PROLOGUE + textwrap.dedent(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", 3, attempt=1)
        prints("train", "one\\ntwo\\n", 3)
        progress.run_ended("r1", "completed", 1.0)
        """
    )
    with open(tmp_path / "out", "w") as out:
        status, written = on_terminal([sys.executable, "-c", program], ENV, stdout=out.fileno())
    assert status == 0
    assert (tmp_path / "out").read_text() == "[train[3]] one\n[train[3]] two\n"
    assert "two" not in written
    assert "upshift show r1" in written


def test_colours_are_shown_unless_the_user_refuses_them() -> None:
    code = """
        progress.run_started("r1", "p", "local", ["s"])
        progress.notice("look")
        progress.run_ended("r1", "failed", 1)
    """
    assert "\x1b[31mfailed" in show(code)[1]
    assert not re.search(r"\x1b\[3\dm", show(code, NO_COLOR="1")[1])


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"CI": "true"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_terminal_that_cannot_show_it_gets_plain_lines(env: dict[str, str]) -> None:
    code = 'progress.run_started("r1", "p", "local", ["s"]); progress.run_ended("r1", "completed", 1)'
    screen, written = show(code, **env)
    assert "\x1b" not in written
    assert screen.text.splitlines()[0] == "run r1: p on local, 1 step"


def test_output_that_no_terminal_could_show_in_time_is_left_out_and_counted() -> None:
    screen, written = show(
        """
        progress.run_started("r1", "p", "local", ["train"])
        change("train", "running", attempt=1)
        for i in range(40):
            prints("train", ("x" * 90 + "\\n") * 3000)
        progress.run_ended("r1", "completed", 1.0)
        """
    )
    shown = written.count("x" * 90)
    left_out = re.findall(r"… ([\d,]+) lines are left out; upshift logs r1 has them", screen.text)
    assert left_out
    assert shown + sum(int(n.replace(",", "")) for n in left_out) == 120_000


def test_the_display_starts_no_thread_before_the_first_task_runs() -> None:
    screen, _ = show(
        """
        import threading
        progress.run_started("r1", "p", "local", ["load", "train"])
        change("load", "completed", cached=True)
        progress.notice("said", task=TaskId(run="r1", step="train"))
        before = threading.active_count()
        change("train", "running", attempt=1)
        during = threading.active_count()
        progress.run_ended("r1", "completed", 1.0)
        print("threads", before, during, threading.active_count())
        """
    )
    assert screen.text.splitlines()[-1] == "threads 1 2 1"


def test_the_newest_metrics_stand_beside_a_step_while_it_runs_and_after() -> None:
    screen, _ = show(
        """
        from upshift.model.spec import MetricSummary
        progress.run_started("r1", "digits", "local", ["load", "train", "folds"])
        change("train", "running", attempt=1, granted=GRANTED)
        progress.logged(TaskId(run="r1", step="train"), {"loss": 0.23149, "phase": "warm\\x1b[2Jup"}, 120)
        progress.step_sized("folds", 4)
        change("folds", "running", 3, attempt=1)
        progress.logged(TaskId(run="r1", step="folds", index=3), {"loss": float("nan")}, None)
        change("load", "running", attempt=1)
        change("load", "completed", attempt=1, metrics={"rows": MetricSummary(last=1797, step=None)})
        progress.close()
        """
    )
    _, load, train, folds = screen.text.splitlines()
    assert re.search(r"completed +load +\S+ s +rows 1,797$", load)
    assert re.search(r"running +train +\S+ s +loss 0\.2315, phase warm\?\[2Jup \(step 120\)  2 CPU", train)
    assert re.search(r"running +folds .* \[3\] loss NaN$", folds)


def test_an_image_that_is_made_has_a_line_below_the_table_and_one_above_once_it_is_made() -> None:
    code = """
        from upshift.images.base import Progress as Making
        from upshift.report import ImageChange

        def image(status, text=None, **more):
            now = None if text is None else Making(stage="build", text=text)
            progress.image_changed(ImageChange(steps=("train",), status=status, progress=now, **more))

        progress.run_started("r1", "p", "docker", ["train"])
        image("making", "Step 2/4 : RUN \\x1b[2Jpip install six")
        change("train", "pending")
        """
    screen, _ = show(code + "\n        progress.close()\n")
    assert re.search(r"▶ image of train \d\.\d s  Step 2/4 : RUN pip install six", screen.text)
    screen, _ = show(
        code
        + """
        image("made", name="upshift:train", seconds=2.0)
        change("train", "running", attempt=1)
        progress.run_ended("r1", "completed", 3.0)
        """
    )
    assert screen.text.splitlines()[0] == "image of train: made in 2.00 s: upshift:train"
    assert "▶ image of train" not in screen.text
