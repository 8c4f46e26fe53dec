"""What a user reads of a run where there is no terminal."""

from __future__ import annotations

import io

import pytest

from upshift.errors import UpshiftError
from upshift.images.base import Progress as ImageProgress
from upshift.model.spec import Failure, Hardware, MetricSummary, TaskId
from upshift.report import ImageChange, TaskChange
from upshift.report.terminal import cleaned
from upshift.report.terminal.progress import PlainProgress
from upshift.report.terminal.tally import image_of


class Told:
    """A plain progress whose clock the test turns, and what it wrote."""

    def __init__(self) -> None:
        self.now = 0.0
        self.err = io.StringIO()
        self.out = io.StringIO()
        self.progress = PlainProgress(self.err, self.out, clock=lambda: self.now)

    def change(self, step: str, status: str, index: int | None = None, **more: object) -> None:
        task = TaskId(run="r1", step=step, index=index)
        self.progress.task_changed(TaskChange(task=task, status=status, **more))  # type: ignore[arg-type]

    @property
    def lines(self) -> list[str]:
        return self.err.getvalue().splitlines()


@pytest.fixture
def told() -> Told:
    told = Told()
    told.progress.run_started("r1", "digits", "local", ["load", "train"])
    return told


def test_a_run_begins_and_ends_with_a_line(told: Told) -> None:
    told.progress.run_ended("r1", "completed", 42.31)
    assert told.lines == [
        "run r1: digits on local, 2 steps",
        "run r1: completed in 42.3 s · upshift show r1",
    ]


def test_a_step_has_a_line_when_it_starts_and_when_it_ends(told: Told) -> None:
    told.change("load", "running", attempt=1)
    told.now = 2.5
    told.change("load", "completed", attempt=1)
    assert told.lines[1:] == ["load: started", "load: completed in 2.50 s"]


def test_a_reused_step_says_so(told: Told) -> None:
    told.change("load", "completed", cached=True)
    assert told.lines[1:] == ["load: reused"]


def test_a_mapped_step_tells_how_far_it_is_every_few_seconds_only(told: Told) -> None:
    told.progress.step_sized("train", 1000)
    for index in range(1000):
        told.now += 0.012
        told.change("train", "running", index, attempt=1)
        told.change("train", "completed", index, attempt=1, cached=index < 3)
    assert told.lines[1:] == [
        "train: started, 1,000 tasks",
        "train: 417 of 1,000 tasks done after 5.00 s, about 7 s left",
        "train: 834 of 1,000 tasks done after 10.0 s, about 2 s left",
        "train: completed in 12.0 s: 1,000 tasks, 3 reused",
    ]


def test_a_step_mapped_over_nothing_is_over_at_once(told: Told) -> None:
    told.progress.step_sized("train", 0)
    assert told.lines[1:] == ["train: completed, no tasks"]


def test_a_list_of_one_item_is_a_mapped_step_all_the_same(told: Told) -> None:
    told.progress.step_sized("train", 1)
    told.change("train", "completed", 0, attempt=1)
    assert told.lines[1:] == ["train: completed: 1 task"]


def test_failures_are_told_in_full_then_briefly_then_counted(told: Told) -> None:
    failure = Failure(
        reason="user-error", message="ValueError: no", traceback="Traceback:\n  line", fix="Look."
    )
    told.progress.step_sized("train", 100)
    for index in range(100):
        told.change("train", "failed", index, attempt=1, seconds=0.5, failure=failure)
    assert told.lines[1:5] == [
        "train[0]: failed after 500 ms (user-error): ValueError: no",
        "    Traceback:",
        "      line",
        "    fix: Look.",
    ]
    assert sum("ValueError: no" in line for line in told.lines) == 20
    assert sum("Traceback" in line for line in told.lines) == 3
    assert told.lines[-1] == "train: failed: 100 tasks"


def test_a_failure_of_a_step_is_told_once_with_one_time(told: Told) -> None:
    failure = Failure(reason="user-error", message="ValueError: no")
    told.change("load", "running", attempt=1)
    told.now = 1.0
    told.change("load", "failed", attempt=1, seconds=0.5, failure=failure)
    told.change("train", "cancelled")
    assert told.lines[1:] == [
        "load: started",
        "load: failed after 500 ms (user-error): ValueError: no",
        "train: cancelled",
    ]


def test_a_step_took_as_long_as_its_attempt_did_whenever_its_end_was_told(told: Told) -> None:
    told.change("load", "running", attempt=1)
    told.now = 3.0
    told.change("load", "completed", attempt=1, seconds=2.0)
    assert told.lines[1:] == ["load: started", "load: completed in 2.00 s"]


def test_an_attempt_that_is_repeated_does_not_end_the_step(told: Told) -> None:
    failure = Failure(reason="preempted", message="the node went away")
    told.change("load", "running", attempt=1)
    told.change("load", "pending", attempt=1, seconds=1.0, failure=failure, retry_in=0.0, retry=1, retries=3)
    told.change("load", "running", attempt=2)
    told.change("load", "completed", attempt=2)
    assert told.lines[1:] == [
        "load: started",
        "load: attempt 1 failed (preempted): the node went away; trying again (1 of 3)",
        "load: completed in 0 ms",
    ]


def test_an_attempt_that_is_repeated_later_says_when_and_where_it_failed(told: Told) -> None:
    failure = Failure(reason="user-error", message="ValueError: boom\nmore", where="ret.py:8", traceback="…")
    more = {"failure": failure, "retry_in": 2.0, "retry": 1, "retries": 3}
    told.change("load", "pending", attempt=1, **more)
    told.change("train", "pending", 2, attempt=1, **more)
    tail = "attempt 1 failed (user-error): ValueError: boom (ret.py:8); trying again in 2 s (1 of 3)"
    assert told.lines[1:] == [f"load: {tail}", f"train[2]: {tail}"]


def test_a_place_that_the_message_names_is_not_told_again(told: Told) -> None:
    for number, place in enumerate(("(hr.py:9)", "(hr.py:91)"), start=1):
        failure = Failure(reason="hang", message=f"ranks 0 and 1 sleep {place}", where="hr.py:9")
        told.change("load", "pending", attempt=number, failure=failure, retry_in=0.0, retry=number, retries=3)
    assert told.lines[1:] == [
        "load: attempt 1 failed (hang): ranks 0 and 1 sleep (hr.py:9); trying again (1 of 3)",
        "load: attempt 2 failed (hang): ranks 0 and 1 sleep (hr.py:91) (hr.py:9); trying again (2 of 3)",
    ]


def test_attempts_that_are_repeated_are_not_told_without_end(told: Told) -> None:
    failure = Failure(reason="user-error", message="ValueError: boom")
    for index in range(100):
        told.change("train", "pending", index, attempt=1, failure=failure, retry_in=1.0, retry=1, retries=1)
    assert sum("ValueError: boom" in line for line in told.lines) == 20
    assert told.lines[-1] == "train: further attempts that failed are not shown here"


def test_the_same_notice_of_a_step_is_given_once(told: Told) -> None:
    for index in range(3):
        told.progress.notice("waits for 4 CPUs", task=TaskId(run="r1", step="train", index=index))
    told.progress.notice("waits for 4 CPUs", task=TaskId(run="r1", step="load"))
    told.progress.notice("of the whole run")
    assert told.lines[1:] == ["train: waits for 4 CPUs", "load: waits for 4 CPUs", "of the whole run"]


def test_what_a_step_prints_goes_to_stdout_with_its_name(told: Told) -> None:
    told.progress.output(TaskId(run="r1", step="load"), "one\n\ntwo\n")
    told.progress.output(TaskId(run="r1", step="train", index=3), "three\n")
    assert told.out.getvalue() == "[load] one\n[load] \n[load] two\n[train[3]] three\n"
    assert len(told.lines) == 1


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_run_goes_on_when_its_reader_has_gone() -> None:
    err = io.StringIO()
    progress = PlainProgress(err, Broken())
    progress.output(TaskId(run="r1", step="load"), "one\n")
    progress.run_ended("r1", "completed", 1.0)
    assert "completed" in err.getvalue()


def test_characters_that_the_stream_does_not_know_are_escaped() -> None:
    raw = io.BytesIO()
    progress = PlainProgress(io.StringIO(), io.TextIOWrapper(raw, encoding="ascii"))
    progress.output(TaskId(run="r1", step="load"), "café\n")
    assert raw.getvalue() == b"[load] caf\\xe9\n"


def test_metrics_are_told_every_few_seconds_and_at_the_end(told: Told) -> None:
    train = TaskId(run="r1", step="train")
    told.change("train", "running", attempt=1)
    for second in range(12):
        told.now = float(second)
        told.progress.logged(train, {"loss": 1 / (second + 1), "phase": "warm-up"}, second)
    metrics = {"loss": MetricSummary(last=0.05, step=12, count=13)}
    told.change("train", "completed", attempt=1, metrics=metrics)
    assert told.lines[1:] == [
        "train: started",
        "train: loss 0.1667, phase warm-up (step 5)",
        "train: loss 0.09091, phase warm-up (step 10)",
        "train: completed in 11.0 s: loss 0.05 (step 12)",
    ]


def test_further_lines_of_a_message_are_not_taken_for_lines_of_upshift(told: Told) -> None:
    failure = Failure(reason="user-error", message="ValueError: one\ntwo", where="train.py:3")
    told.change("train", "failed", attempt=1, failure=failure)
    assert told.lines[-3:] == [
        "train: failed (user-error): ValueError: one",
        "    two",
        "    where: train.py:3",
    ]
    assert str(UpshiftError("one\ntwo", fix="Stop.")) == "one\n    two\n  fix:   Stop."


def test_of_several_processes_it_is_said_which_other_than_the_first_has_logged(told: Told) -> None:
    told.change("train", "running", attempt=1)
    early = MetricSummary(last=2.2, step=9, rank=2, ranks=1)
    told.change(
        "train", "completed", attempt=1, metrics={"speed": early, "loss": MetricSummary(last=0.2, step=4)}
    )
    assert told.lines[-1].endswith(": speed (rank 2) 2.2, loss 0.2 (step 4)")


def test_of_a_mapped_step_the_best_value_so_far_is_told_with_its_task(told: Told) -> None:
    told.progress.step_sized("train", 4)
    for index, (loss, size) in enumerate([(0.5, 3), (0.25, 9), (2.0, 1), (1.0, 2)]):
        told.change("train", "running", index, attempt=1)
        told.now += 3.0
        metrics = {"size": MetricSummary(last=size), "loss": MetricSummary(last=loss)}
        told.change("train", "completed", index, attempt=1, metrics=metrics)
    assert told.lines[1:] == [
        "train: started, 4 tasks",
        "train: 2 of 4 tasks done after 6.00 s, about 6 s left, best loss 0.25 [1] (0.25–0.5)",
        "train: completed in 12.0 s: 4 tasks, best loss 0.25 [1] (0.25–2)",
    ]


def test_metrics_of_single_tasks_of_a_mapped_step_are_not_told(told: Told) -> None:
    told.progress.step_sized("train", 2)
    told.change("train", "running", 0, attempt=1)
    for second in range(4):
        told.now = float(second)
        told.progress.logged(TaskId(run="r1", step="train", index=0), {"loss": 0.5}, None)
    told.now = 20.0
    told.progress.logged(TaskId(run="r1", step="train", index=0), {"loss": 0.5}, None)
    assert told.lines[1:] == ["train: started, 2 tasks"]


def test_after_a_step_a_line_says_what_it_needs(told: Told) -> None:
    lazy = Hardware(details={"seconds": 60.0, "cpu_mean": 1.0, "cpu_peak": 1.0})
    records = {"asked": Hardware(cpu_count=8), "granted": Hardware(cpu_count=8), "used": lazy}
    told.change("load", "running", attempt=1)
    told.change("load", "completed", attempt=1, seconds=60.0, **records)
    assert told.lines[-2:] == ["load: completed in 1 min 00 s", "load: asked 8 CPUs, used 1.0: one thread"]
    told.progress.step_sized("train", 2)
    told.change("train", "running", 0, attempt=1)
    told.change("train", "completed", 0, attempt=1, **records)
    assert not any("CPUs" in line for line in told.lines[4:]), "not all of its tasks are over"
    told.change("train", "completed", 1, attempt=1, **records)
    assert told.lines[-1] == "train: asked 8 CPUs, used 1.0: one thread (train[0]; so did 2 of 2 tasks)"


def test_of_a_reused_step_nothing_is_said(told: Told) -> None:
    lazy = Hardware(details={"seconds": 60.0, "cpu_mean": 1.0, "cpu_peak": 1.0})
    told.change("load", "completed", cached=True, asked=Hardware(cpu_count=8), used=lazy)
    assert told.lines[1:] == ["load: reused"]


def making(stage: str, text: str, **bytes_: int) -> ImageChange:
    now = ImageProgress(stage=stage, text=text, **bytes_)
    return ImageChange(steps=("train", "score"), status="making", progress=now)


def test_an_image_has_a_line_for_each_stage_and_on_a_long_one_now_and_then(told: Told) -> None:
    told.progress.image_changed(making("install", "2 requirements"))
    for done in range(0, 120_000_000, 1_000_000):
        told.now += 0.125
        told.progress.image_changed(making("push", "layer 1 of 2", done=done, total=120_000_000))
    told.progress.image_changed(
        ImageChange(steps=("train", "score"), status="made", name="r.example.org/ml/x:1", seconds=12.3)
    )
    assert told.lines[1:] == [
        "image of train, score: installing · 2 requirements",
        "image of train, score: pushing · layer 1 of 2: 0 B of 120 MB",
        "image of train, score: pushing · layer 1 of 2: 40 MB of 120 MB",
        "image of train, score: pushing · layer 1 of 2: 80 MB of 120 MB",
        "image of train, score: made in 12.3 s: r.example.org/ml/x:1",
    ]


def test_most_of_a_digest_and_of_a_long_command_is_left_out(told: Told) -> None:
    told.progress.image_changed(making("push", "r/x:upshift-" + "a" * 64))
    told.progress.image_changed(making("build", "RUN " + "x" * 200))
    assert told.lines[1:] == [
        "image of train, score: pushing · r/x:upshift-aaaaaaaaaaaa…",
        "image of train, score: RUN " + "x" * 155 + "…",
    ]


def test_what_was_just_said_of_an_image_is_not_said_again_for_a_while(told: Told) -> None:
    for _ in range(700):
        told.progress.image_changed(making("build", "Step 2/4 : RUN true"))
        told.now += 0.125
    assert told.lines[1:] == ["image of train, score: Step 2/4 : RUN true"] * 2


def test_two_images_that_are_made_at_once_do_not_silence_each_other(told: Told) -> None:
    for steps in (("a",), ("b",), ("a",), ("b",)):
        told.progress.image_changed(
            ImageChange(steps=steps, status="making", progress=ImageProgress(stage="build", text="Step 1/3"))
        )
    told.progress.image_changed(ImageChange(steps=("a",), status="failed", seconds=3.0))
    assert told.lines[1:] == [
        "image of a: Step 1/3",
        "image of b: Step 1/3",
        "image of a: failed after 3.00 s",
    ]


def test_an_image_is_called_by_its_first_steps() -> None:
    assert image_of(["a", "b", "c", "d", "e"]) == "image of a, b, c and 2 more"


def test_texts_keep_their_colours_and_lose_all_else_that_a_terminal_obeys() -> None:
    assert cleaned("a\tb\n\x1b[1;31mred\x1b[0m \u2713 é") == "a\tb\n\x1b[1;31mred\x1b[0m \u2713 é"
    for command in (
        "\x1b]0;t\x07",
        "\x1b]52;c;aGk=\x1b\\",
        "\x1b[2J",
        "\x1b[?1049h",
        "\x1b[>4;1m",
        "\x1bc",
        "\r",
        "\x07",
        "\x9b",
    ):
        assert cleaned(f"one{command}two") == "onetwo"
    assert cleaned("one\x1b]0;never ended\ntwo\x1b[") == "one\ntwo"
    assert "\x1b" not in cleaned("\x1b\x1b[2J[2J").replace("\x1b[0m", "")
