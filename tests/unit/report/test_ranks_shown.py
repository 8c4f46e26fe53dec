"""What people read of a step of several processes: while it runs, in ``show``, in Python, in the report."""

from __future__ import annotations

import html
import io
import re
import socket
from pathlib import Path

import attrs
import pytest

from made_up_gang import HANG, RAISED, finetuning, stacks_of
from upshift.engine.run import raise_unless_completed
from upshift.errors import RunFailed
from upshift.model.spec import Failure, Hardware, TaskId
from upshift.report import TaskChange
from upshift.report.human import elsewhere, many, on_rank
from upshift.report.page import report_page
from upshift.report.terminal.compare import compared, compared_json
from upshift.report.terminal.progress import PlainProgress
from upshift.report.terminal.show import show_run
from upshift.report.views.attempts import notable
from upshift.report.views.records import brief
from upshift.report.views.run import run_view
from upshift.runs.history.as_json import run_as_json
from upshift.runs.history.attempts import Attempt
from upshift.runs.history.runs import Run

GRANTED = Hardware(cpu_count=2, nodes=2, processes=4)


def attempt_of(run: Run) -> Attempt:
    return run["train"].tasks[0].attempts[-1]


def error_of(run: Run, failure: Failure) -> RunFailed:
    """The error of a run whose first failure is this one, in the first attempt of its training."""
    store, attempt = run._records.store, run._catalog.attempts(run.id, "train")[0]
    assert attempt.result is not None
    store.create_result(attempt.result)
    with pytest.raises(RunFailed) as error:
        raise_unless_completed(
            run, "failed", (attempt.task, failure, attempt.number), run._catalog, store, shown=True
        )
    return error.value


def test_how_many_processes_stand_among_the_records(tmp_path: Path) -> None:
    lines = show_run(finetuning(tmp_path)).splitlines()
    (row,) = [line for line in lines if "processes" in line]
    assert re.split(r" {2,}", row.strip()) == ["–", "4 processes", "4 processes", "–"]


def test_what_was_asked_for_is_known_while_they_run(tmp_path: Path) -> None:
    (row,) = [
        line for line in show_run(finetuning(tmp_path, running=True)).splitlines() if "processes" in line
    ]
    assert re.split(r" {2,}", row.strip()) == ["4 processes", "4 processes", "–", "–"]


def test_fewer_processes_than_asked_for_are_marked() -> None:
    from upshift.report.views.records import side_by_side

    asked, granted = (Hardware(processes=number) for number in (4, 1))
    rows = side_by_side([{"asked": asked, "granted": granted, "seen": None, "used": None}])
    assert rows == [("4 processes", "1 process !", "–", "–")]


def test_which_rank_failed_is_said_with_its_node(tmp_path: Path) -> None:
    text = show_run(finetuning(tmp_path, failure=RAISED))
    assert "train failed on rank 2, node gpu-b (user-error)\n  ValueError: batch 31 has no labels\n" in text
    assert on_rank(attrs.evolve(RAISED, node=socket.gethostname())) == " on rank 2"
    assert on_rank(Failure(reason="timeout", message="too long")) == ""


def test_where_ranks_waited_is_said_once(tmp_path: Path) -> None:
    places = "ranks 0, 1 and 3 wait in all_reduce (train.py:31), rank 2 is at data.py:9"
    assert f"  ranks: {places.removeprefix('ranks ')}" in show_run(finetuning(tmp_path / "1", failure=HANG))
    raised = Failure(reason="user-error", message="no", rank=2, traceback="…")
    assert elsewhere(raised, stacks_of(4)) == "ranks 0, 1 and 3 wait in all_reduce (train.py:31)"
    told = attrs.evolve(HANG, message=f"{HANG.message}: {places}")
    assert " ".join(show_run(finetuning(tmp_path / "2", failure=told)).split()).count(places) == 1


def test_metrics_are_those_of_the_first_rank_or_of_each(tmp_path: Path) -> None:
    run = finetuning(tmp_path, failure=RAISED)
    assert re.search(r"^train +loss \(rank 0 of 4\) +0\.046 +0\.046 +2\.3 +50$", show_run(run), re.M)
    assert re.search(r"^ +tokens \(rank 1\) +81,920 ", show_run(run), re.M)
    each = show_run(run, tasks=True)
    assert re.findall(r" loss \(rank (\d)\) +(\S+) ", each) == [
        (str(rank), f"{0.046 + rank / 50:.4g}") for rank in range(4)
    ]
    assert "Samples (rank 1)" in each


def test_python_has_every_rank(tmp_path: Path) -> None:
    attempt = attempt_of(finetuning(tmp_path / "1", failure=RAISED))
    assert attempt.processes == 4
    assert [rank.status for rank in attempt.ranks] == ["stopped", "stopped", "failed", "stopped"]
    third = attempt.ranks[2]
    assert (third.node, third.host, third.local_rank, third.pid) == (1, "gpu-b", 0, 4002)
    assert third.device == "GPU-00000002-0000"
    assert third.log.splitlines() == ["rank 2: epoch 0", "rank 2: epoch 1", "rank 2: epoch 2"]
    assert third.metrics["loss"].last == pytest.approx(0.086)
    assert third.stack is None
    assert attempt.metrics["loss"].rank == 0 and attempt.metrics["tokens"].rank == 1
    hung = attempt_of(finetuning(tmp_path / "2", failure=HANG))
    assert [rank.stack and rank.stack.waits for rank in hung.ranks] == [
        "all_reduce",
        "all_reduce",
        None,
        "all_reduce",
    ]


def test_ranks_are_known_by_number_while_they_run(tmp_path: Path) -> None:
    ranks = attempt_of(finetuning(tmp_path, running=True)).ranks
    assert [(rank.rank, rank.status, rank.pid) for rank in ranks] == [(n, "running", None) for n in range(4)]
    assert ranks[3].log.startswith("rank 3: epoch 0")


def test_an_ordinary_step_has_no_ranks(tmp_path: Path) -> None:
    run = finetuning(tmp_path)
    attempt = run["load"].tasks[0].attempts[-1]
    assert (attempt.ranks, attempt.stacks, attempt.processes) == ([], (), None)
    made = run_as_json(run)["steps"][0]["tasks"][0]["attempts"][0]
    assert made["metrics_by_rank"] == {}


def test_json_has_rank_node_and_stacks(tmp_path: Path) -> None:
    shown = run_as_json(finetuning(tmp_path / "1", failure=RAISED))["steps"][1]["tasks"][0]["attempts"][0]
    assert (shown["error"]["rank"], shown["error"]["node"]) == (2, "gpu-b")
    assert [rank["pid"] for rank in shown["seen"]["ranks"]] == [4000, 4001, 4002, 4003]
    assert (shown["metrics"]["loss"]["rank"], shown["metrics"]["loss"]["ranks"]) == (0, 4)
    assert {rank: sorted(of) for rank, of in shown["metrics_by_rank"].items()} == {
        "0": ["loss"],
        "1": ["loss", "tokens"],
        "2": ["loss"],
        "3": ["loss"],
    }
    assert shown["metrics_by_rank"]["1"]["tokens"] == {
        "last": 81_920,
        "step": None,
        "min": 81_920,
        "max": 81_920,
        "count": 1,
    }
    assert [card["rank"] for card in shown["cards"]] == [0, 1]
    hung = run_as_json(finetuning(tmp_path / "2", failure=HANG))["steps"][1]["tasks"][0]["attempts"][0]
    assert [(each["rank"], each["waits"], each["where"]) for each in hung["stacks"]][1:3] == [
        (1, "all_reduce", "train.py:31"),
        (2, None, "data.py:9"),
    ]
    assert 'File "data.py", line 9' in hung["stacks"][2]["text"]


def test_runs_beside_each_other_tell_of_processes_where_they_differ(tmp_path: Path) -> None:
    two, four = finetuning(tmp_path / "1", world_size=2), finetuning(tmp_path / "2", world_size=4)
    (row,) = [line for line in compared([two, four]).splitlines() if "processes" in line]
    assert row.split() == ["processes", "2", "4"]
    assert "processes" not in compared([four, four])
    steps = compared_json([two, four])["steps"]
    assert [[run["tasks"][0]["processes"] for run in step["runs"]] for step in steps] == [
        [None, None],
        [2, 4],
    ]


def test_while_it_runs_it_is_said_how_many_there_are() -> None:
    assert many(GRANTED) == "4 processes on 2 nodes"
    assert many(Hardware(nodes=1, processes=1)) == "1 process"
    assert many(Hardware(nodes=2)) == "" == many(None)
    assert brief(GRANTED) == "4 processes on 2 nodes · 2 CPU"


def test_plain_lines_tell_how_many_started_and_which_rank_failed() -> None:
    err = io.StringIO()
    progress = PlainProgress(err, io.StringIO())
    task = TaskId(run="r1", step="train")
    progress.run_started("r1", "finetuning", "local", ["train"])
    progress.task_changed(TaskChange(task=task, status="running", attempt=1, granted=GRANTED))
    again = TaskChange(
        task=task, status="pending", attempt=1, failure=RAISED, retry_in=2.0, retry=1, retries=1
    )
    progress.task_changed(again)
    progress.task_changed(TaskChange(task=task, status="failed", attempt=2, failure=RAISED, seconds=3.0))
    _, started, retried, failed, *_ = err.getvalue().splitlines()
    assert started == "train: started, 4 processes on 2 nodes"
    assert retried.startswith("train: attempt 1 failed on rank 2, node gpu-b (user-error): ValueError: ")
    assert failed.startswith("train: attempt 2 failed on rank 2, node gpu-b after 3.00 s (user-error): ")


def test_processes_of_a_mapped_step_are_those_of_each_task() -> None:
    err = io.StringIO()
    progress = PlainProgress(err, io.StringIO())
    progress.run_started("r1", "finetuning", "local", ["train"])
    progress.step_sized("train", 3)
    task = TaskId(run="r1", step="train", index=0)
    progress.task_changed(TaskChange(task=task, status="running", attempt=1, granted=GRANTED))
    assert err.getvalue().splitlines()[1] == "train: started, 3 tasks, 4 processes on 2 nodes each"


def test_the_error_of_a_run_names_the_rank_and_how_to_see_what_it_printed(tmp_path: Path) -> None:
    run = finetuning(tmp_path, failure=RAISED)
    error = error_of(run, RAISED)
    assert str(error).startswith("step train failed on rank 2, node gpu-b (user-error): ValueError: ")
    assert f"upshift logs {run.id} train shows what it printed (that rank alone: --rank 2)" in str(error)


def test_where_each_rank_was_is_shown_on_the_terminal_call_by_call(tmp_path: Path) -> None:
    run = finetuning(tmp_path / "1", failure=HANG)
    command = f"upshift show {run.id} --stacks"
    assert command in show_run(run) and "line 31 in train" not in show_run(run)
    _, _, stacks = show_run(run, stacks=True).partition("\nstacks\n")
    waiting, _, busy = stacks.partition("  train: rank 2 is at data.py:9\n")
    assert waiting.startswith("  train: ranks 0, 1 and 3 wait in all_reduce (train.py:31)\n    Thread 0x1 ")
    assert waiting.count('      File "train.py", line 31 in train\n') == 1
    assert 'File "data.py", line 9 in next_batch' in busy
    for failure, told in ((HANG, True), (RAISED, False)):
        assert (command in str(error_of(run, failure))) == told
    raised = finetuning(tmp_path / "2", failure=RAISED)
    assert "--stacks" not in show_run(raised) and "no stacks: " in show_run(raised, stacks=True)


def test_the_failures_of_a_page_have_the_stacks(tmp_path: Path) -> None:
    page = report_page(finetuning(tmp_path, failure=HANG))
    _, _, failures = page.partition('<section id="failures"')
    failures, _, _ = failures.partition("</section>")
    assert failures.count("<details ") == 2 and "ranks 0, 1 and 3 wait in all_reduce" in failures
    assert html.unescape(failures).count('File "train.py", line 31 in train') == 1


def test_of_many_ranks_those_are_in_full_that_differ(tmp_path: Path) -> None:
    ranks = attempt_of(finetuning(tmp_path / "1", world_size=40, failure=HANG)).ranks
    shown = [rank.rank for rank in notable(ranks)]
    assert len(shown) == 16 and shown[:3] == [0, 1, 2]
    failed = attempt_of(
        finetuning(tmp_path / "2", world_size=40, failure=attrs.evolve(RAISED, rank=39))
    ).ranks
    assert [rank.rank for rank in notable(failed)][-1] == 39


def test_a_page_of_many_ranks_says_how_many_are_left_out(tmp_path: Path) -> None:
    run = finetuning(tmp_path, world_size=40, failure=HANG)
    page = report_page(run)
    assert f"… and 24 more ranks: upshift logs {run.id} --rank N" in re.sub(r"<[^>]*>", "", page)
    assert "40 ranks" in page


def test_what_ranks_print_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    run = finetuning(tmp_path, failure=HANG)
    path = next(Path(run.row.store).rglob("0.1.rank1.log"))
    path.write_text("</script><script>window.broken = 1</script>")
    page = report_page(Run(run.row, run._records.catalog))
    assert "<script>window.broken" not in page
    assert "window.broken" in page


def test_single_values_of_ranks_say_whose_they_are(tmp_path: Path) -> None:
    (metrics,) = run_view(finetuning(tmp_path)).metrics
    assert metrics.values is not None
    assert [[cell.text for cell in row] for row in metrics.values.rows] == [["tokens", "81,920 (rank 1)"]]
