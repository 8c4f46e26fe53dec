"""What a notebook shows of a run while it goes on, and of runs, steps and tasks afterwards."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.made_up import large
from upshift.errors import StoreError
from upshift.model.graph import Graph
from upshift.model.spec import Failure, TaskId
from upshift.report import TaskChange
from upshift.report.notebook import NotebookProgress, _metrics
from upshift.runs.history.runs import Run, RunList
from upshift.runs.history.values import Rows


def words(page: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL).split())


class Cell:
    """The output of a cell, and a run whose clock the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.blocks: list[Mapping[str, str]] = []
        self.more = threading.Condition()
        self.out = io.StringIO()
        self.progress = NotebookProgress(self._show, self.out, clock=lambda: self.now)
        self.progress.run_started("r1", "digits", "local", ["load", "train"])

    def _show(self, block: Mapping[str, str]) -> None:
        with self.more:
            self.blocks.append(block)
            self.more.notify_all()

    def change(self, step: str, status: str, index: int | None = None, **more: object) -> None:
        task = TaskId(run="r1", step=step, index=index)
        self.progress.task_changed(TaskChange(task=task, status=status, **more))  # type: ignore[arg-type]

    def wait_for(self, text: str) -> None:
        with self.more:
            assert self.more.wait_for(lambda: text in self.now_shown, timeout=60), self.now_shown

    @property
    def now_shown(self) -> str:
        return words(self.blocks[-1]["text/html"]) if self.blocks else ""


@pytest.fixture
def cell() -> Cell:
    return Cell()


def test_a_run_is_one_block_that_is_drawn_again(cell: Cell) -> None:
    assert cell.now_shown == "running digits 0 s 0 of 2 steps on local run r1"
    cell.change("load", "running", attempt=1)
    cell.wait_for("load: running")
    cell.change("load", "completed", attempt=1)
    cell.progress.step_sized("train", 4)
    cell.change("train", "running", 0, attempt=1)
    cell.wait_for("train: 0 of 4 tasks")
    for index in range(4):
        cell.change("train", "completed", index, cached=index > 1)
    cell.progress.run_ended("r1", "completed", 42.31)
    assert cell.now_shown == "completed digits 42.3 s 2 steps, 5 tasks, 2 reused on local run r1"
    assert cell.blocks[-1]["text/plain"] == (
        "digits completed · 42.3 s · 2 steps, 5 tasks, 2 reused · on local · run r1"
    )
    drawn = len(cell.blocks)
    cell.progress.close()
    assert len(cell.blocks) == drawn


def test_what_steps_print_stays_text(cell: Cell) -> None:
    cell.progress.output(TaskId(run="r1", step="load"), "one\ntwo\n")
    assert cell.out.getvalue() == "[load] one\n[load] two\n"


def test_notices_retries_and_failures_stay_when_the_run_is_over(cell: Cell) -> None:
    failure = Failure(reason="user-error", message="ValueError: <b>\nmore", where="In[2]:3")
    cell.progress.notice("gets 1 CPU", task=TaskId(run="r1", step="load"))
    cell.progress.notice("gets 1 CPU", task=TaskId(run="r1", step="load"))
    cell.change("train", "pending", 2, attempt=1, failure=failure, retry_in=0, retry=1, retries=3)
    for index in range(5):
        cell.change("train", "failed", index, attempt=2, failure=failure)
    cell.progress.run_ended("r1", "failed", 1.0)
    assert cell.now_shown.count("load: gets 1 CPU") == 1
    assert "train[2]: attempt 1 failed (user-error)" in cell.now_shown
    assert "train[0] failed (user-error): ValueError" in cell.now_shown
    assert "… and 2 more failures" in cell.now_shown
    assert "<b>" not in cell.blocks[-1]["text/html"].replace("<b><bdi>", "")


def test_progress_bars_and_metrics_are_shown_without_what_moves_a_cursor(cell: Cell) -> None:
    train = TaskId(run="r1", step="train")
    cell.change("train", "running", attempt=1)
    cell.progress.unfinished(train, "\x1b[32m50%\x1b[0m\x1b[2K|#####")
    cell.wait_for("train │ 50%|#####")
    cell.progress.logged(train, {"loss": 0.25}, 3)
    cell.wait_for("train: loss 0.25 (step 3)")
    cell.progress.step_sized("load", 2)
    cell.change("load", "running", 1, attempt=1)
    cell.progress.logged(TaskId(run="r1", step="load", index=1), {"rows": 7}, None)
    cell.wait_for("load: 0 of 2 tasks, [1] rows 7")
    cell.progress.unfinished(train, "")
    cell.progress.run_ended("r1", "cancelled", 1.0)
    assert "\x1b" not in "".join(block["text/html"] for block in cell.blocks)
    assert "│" not in cell.now_shown


def test_a_run_that_ends_without_a_word_leaves_its_block_in_order(cell: Cell) -> None:
    cell.change("load", "running", attempt=1)
    cell.progress.close()
    assert "load: running" not in cell.now_shown
    assert "digits" in cell.now_shown


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return large(tmp_path_factory.mktemp("large"), tasks=30, seconds=60)


def test_a_run_shows_its_times_metrics_steps_and_graph(run: Run) -> None:
    page = str(run._repr_html_())
    for text in ("completed large 1 min 05 s", "score ×30", f"run {run.id}", "score[3] failed", "30/30"):
        assert text in words(page)
    assert page.count("<svg width=") >= 1 and 'class="edge' in page
    assert re.findall(r"<script|<link|<a |\bid=|url\(|@import|src=", page) == []


def test_steps_tasks_and_attempts_show_themselves(run: Run) -> None:
    score = run["score"]
    assert "score" in words(str(score._repr_html_())) and "… and 10 more" in words(str(score._repr_html_()))
    assert words(str(score.tasks[3]._repr_html_())).startswith("failed score[3] 17.4 s first run")
    assert "asked granted seen used" in words(str(score.tasks[3]._repr_html_()))
    assert "score[3], attempt" in words(str(score.tasks[3].attempts[-1]._repr_html_()))
    assert words(str(run.steps._repr_html_())).startswith("step status tasks")


def test_lists_are_tables_in_a_terminal_as_well(run: Run) -> None:
    heads, *rows = repr(run.steps).splitlines()
    assert heads.split()[:3] == ["step", "status", "tasks"]
    assert [row.split()[:3] for row in rows] == [
        ["train", "completed", "1"],
        ["score", "failed", "30"],
        ["report", "completed", "1"],
    ]
    heads, *rows, more = repr(run["score"].tasks).splitlines()
    assert (len(rows), more) == (20, "… and 10 more")
    assert all(len(row) <= 80 for row in rows)
    assert repr(RunList()) == "[]"


def test_columns_that_say_the_same_in_each_row_make_room_for_others() -> None:
    class Wide(Rows[int]):
        def rows(self) -> list[dict[str, Any]]:
            return [{"task": f"t{i}", "inputs.text": "x" * 60, "metrics.loss": i / 4} for i in self]

    heads, *rows = repr(Wide([1, 2])).splitlines()
    assert heads.split() == ["task", "metrics.loss", "…"]
    assert [row.split() for row in rows] == [["t1", "0.25", "…"], ["t2", "0.5", "…"]]
    assert "inputs.text" in repr(Wide([1]))[:40]


def test_what_the_store_lost_is_not_drawn_and_still_has_a_line(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Run) -> Graph:
        raise StoreError("gone")

    monkeypatch.setattr(Run, "graph", property(lost))
    assert run._repr_html_() is None
    assert repr(run).startswith("<Run ")


def test_the_best_of_a_mapped_step_is_told_with_the_ends() -> None:
    assert _metrics({"loss": [0.5, 0.25, None], "width": [1, 2], "note": "x", "done": [3, 3]}) == {
        "loss": "best 0.25 (0.25 to 0.5)",
        "width": "1 to 2",
        "note": "x",
        "done": "3",
    }
