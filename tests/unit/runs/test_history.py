"""What users can rely on when they look at a run, and at its JSON."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from upshift.config import ResourceSettings
from upshift.errors import NotFound, StoreError
from upshift.model.configuration import Configuration
from upshift.model.graph import Collection, Constant, FromStep, Graph, Node, StepDefinition
from upshift.model.spec import (
    Code,
    Device,
    EntryPoint,
    Failure,
    Hardware,
    TaskId,
    TaskResult,
    TaskSpec,
    encode,
    to_json,
)
from upshift.report.terminal.show import show_run
from upshift.runs.catalog import rebuild
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import open_catalog, standing
from upshift.runs.catalog.rebuild import record_ending
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runs.history.as_json import row_as_json, run_as_json
from upshift.runs.history.records import step_status
from upshift.runs.history.runs import Run, get_run, list_runs
from upshift.runs.lease import Lease
from upshift.runtime.storage.artifacts import save
from upshift.runtime.storage.store import Store, open_store

STARTED = datetime(2026, 1, 2, 3, 4, 5, 678000, timezone.utc)
ASKED = Hardware(cpu_count=2, memory=10**9)
USED = Hardware(cpu_count=0.5, memory=100, gpus=(Device(vendor="nvidia"),), details={"peak_memory": 120})


class Recorder:
    """Records runs as an engine does."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(str(folder / "store"))
        self.configuration = Configuration()
        self.catalog: Catalog = open_catalog(self.configuration)

    def start(self, id: str, graph: Graph, status: str = "completed", **fields: Any) -> str:
        row = RunRow(
            id=id,
            pipeline=graph.pipeline,
            status=status,
            target="local",
            store=self.store.address,
            started=STARTED.timestamp(),
            ended=None if status == "running" else STARTED.timestamp() + 2.5,
            params={name: encode(artifact) for name, artifact in graph.params.items()},
            **fields,
        )
        self.catalog.add_run(row)
        self.store.write_record(id, "run.json", to_json(row))
        self.store.write_record(id, "graph.json", to_json(graph))
        return id

    def complete(self, run: str, step: str, index: int | None = None, **outputs: object) -> TaskId:
        task = TaskId(run=run, step=step, index=index)
        result = TaskResult(
            task=task,
            attempt=1,
            status="completed",
            outputs={name: save(value, self.store) for name, value in outputs.items()},
            started=STARTED.timestamp(),
            ended=STARTED.timestamp() + 1,
            node="laptop",
            backend="local",
            asked=ASKED,
            granted=ASKED,
            seen=Hardware(cpu_count=2),
            used=USED,
            key=f"key of {step}",
        )
        self.store.create_result(result)
        attempt = AttemptRow(task=task, number=1, status="completed", backend="local", result=result)
        self.catalog.record(
            [TaskRow(task=task, status="completed", cache_reason="never ran before")], [attempt]
        )
        return task

    def mark(self, run: str, step: str, status: str, index: int | None = None) -> None:
        self.catalog.record([TaskRow(task=TaskId(run=run, step=step, index=index), status=status)])


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def graph_of(recorder: Recorder) -> Graph:
    """``load`` gives two outputs, ``train`` is mapped, ``report`` comes last."""
    definition = StepDefinition(entry=EntryPoint(module="m", qualname="f"))
    return Graph(
        pipeline="digits",
        steps={
            "load": StepDefinition(entry=EntryPoint(module="m", qualname="f"), outputs=("data", "labels")),
            "train": definition,
            "report": definition,
        },
        nodes=(
            Node(name="load", step="load"),
            Node(name="train", step="train", over=("fold",)),
            Node(name="report", step="report"),
        ),
        output=Collection(
            form="dict",
            keys=("scores", "report", "labels", "lr"),
            items=(
                FromStep(node="train"),
                FromStep(node="report"),
                Collection(form="tuple", items=(FromStep(node="load", output="labels"),)),
                Constant(artifact=save(0.5, recorder.store)),
            ),
        ),
        params={"lr": save(0.5, recorder.store), "shape": save((2, 3), recorder.store)},
    )


@pytest.fixture
def run(recorder: Recorder) -> Run:
    id = recorder.start("run1", graph_of(recorder), user="ada", tags=("a",))
    recorder.complete(id, "load", data=[1, 2], labels="xy")
    for index in (1, 0, 2):
        recorder.complete(id, "train", index, output=index * 10)
    recorder.complete(id, "report", output=None)
    return get_run("run1", recorder.configuration)


def test_a_run_gives_what_was_recorded(run: Run) -> None:
    assert (run.id, run.pipeline, run.status, run.target) == ("run1", "digits", "completed", "local")
    assert (run.user, run.tags, run.params) == ("ada", ("a",), {"lr": 0.5, "shape": (2, 3)})
    assert run.started == STARTED
    assert run.ended is not None
    assert (run.ended - run.started).total_seconds() == 2.5
    assert [step.name for step in run.steps] == ["load", "train", "report"]


def test_the_output_of_a_run_is_what_the_pipeline_returned(run: Run) -> None:
    assert run.output == {"scores": [0, 10, 20], "report": None, "labels": ("xy",), "lr": 0.5}


def test_a_step_gives_a_value_a_tuple_or_a_list(run: Run) -> None:
    assert run["report"].output is None
    assert run["load"].output == ([1, 2], "xy")
    assert run["train"].output == [0, 10, 20]
    assert run["train"].tasks[2].output == 20
    assert dict(run["load"].outputs) == {"data": [1, 2], "labels": "xy"}
    assert run["train"].outputs["output"] == [0, 10, 20]


def test_a_value_is_loaded_once(run: Run) -> None:
    assert run["load"].outputs["data"] is run["load"].outputs["data"]


def test_the_four_records_of_an_attempt_are_at_hand(run: Run) -> None:
    attempt = run["train"].tasks[0].attempts[-1]
    assert (attempt.asked, attempt.granted, attempt.used) == (ASKED, ASKED, USED)
    assert attempt.seen == Hardware(cpu_count=2)
    assert (attempt.number, attempt.status, attempt.node) == (1, "completed", "laptop")
    assert attempt.started == STARTED
    assert attempt.error is None
    assert attempt.log == ""


def test_the_log_of_an_attempt_is_text_whatever_was_printed(run: Run, recorder: Recorder) -> None:
    path = recorder.store.log_path(TaskId(run="run1", step="report"), 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"l\xc3\xa4uft\n\xff\n")
    assert run["report"].tasks[0].attempts[0].log == "läuft\n\ufffd\n"


def test_a_misspelt_name_is_answered_with_the_nearest(run: Run) -> None:
    with pytest.raises(NotFound, match="run run1 has no step 'trian'") as step:
        run["trian"]
    assert "Did you mean 'train'? Known: load, report, train." in str(step.value)
    with pytest.raises(NotFound, match="step 'load' has no output 'dta'") as output:
        run["load"].outputs["dta"]
    assert "Did you mean 'data'?" in str(output.value)
    assert "train" in run
    assert "trian" not in run
    assert "dta" not in run["load"].outputs
    assert run["load"].outputs.get("dta", 3) == 3


def test_a_skipped_step_says_so(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder))
    recorder.mark(id, "report", "skipped")
    run = get_run(id, recorder.configuration)
    assert run["report"].status == "skipped"
    with pytest.raises(NotFound, match="step 'report' has no output: it was skipped"):
        run["report"].output  # noqa: B018


def test_a_failed_step_says_why_and_where(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder), status="failed")
    task = TaskId(run=id, step="train", index=1)
    recorder.complete(id, "train", 0, output=1)
    failure = Failure(
        reason="user-error", message="ValueError: no", traceback="Traceback …", where="p.py:3", fix="Yes."
    )
    result = TaskResult(task=task, attempt=2, status="failed", failure=failure)
    recorder.catalog.record(
        [TaskRow(task=task, status="failed")],
        [AttemptRow(task=task, number=2, status="failed", backend="local", result=result)],
    )
    run = get_run(id, recorder.configuration)
    assert run["train"].status == "failed"
    for failing in (lambda: run["train"].output, lambda: run.output):
        with pytest.raises(NotFound) as error:
            failing()
        assert str(error.value) == (
            "task 'train[1]' has no output: it failed\n"
            "  where: p.py:3\n  why:   ValueError: no\n  fix:   Yes."
        )
    attempt = run["train"].tasks[1].attempts[0]
    assert (attempt.reason, attempt.error) == ("user-error", failure)
    assert run_as_json(run)["steps"][1]["tasks"][1]["attempts"][0]["error"] == {
        "message": "ValueError: no",
        "traceback": "Traceback …",
        "where": "p.py:3",
        "fix": "Yes.",
        "rank": None,
        "node": None,
    }


def test_a_step_that_is_not_over_says_so(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder), status="running")
    recorder.complete(id, "train", 0, output=1)
    recorder.mark(id, "train", "running", 1)
    with Lease(id, recorder.store.address):
        run = get_run(id, recorder.configuration)
    assert run.ended is None
    assert [step.status for step in run.steps] == ["pending", "running", "pending"]
    with pytest.raises(NotFound, match="step 'load' has no output yet: it is pending"):
        run["load"].output  # noqa: B018
    with pytest.raises(NotFound, match="step 'train' has no output yet: it is running"):
        run["train"].output  # noqa: B018
    assert run["train"].tasks[0].output == 1


def test_a_run_whose_engine_is_gone_is_interrupted(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder), status="running")
    recorder.complete(id, "train", 0, output=1)
    recorder.mark(id, "train", "running", 1)
    attempt = AttemptRow(
        task=TaskId(run=id, step="train", index=1), number=1, status="running", backend="local"
    )
    recorder.catalog.record([], [attempt])
    run = get_run(id, recorder.configuration)
    assert (run.status, run.interrupted, run.ended) == ("cancelled", True, None)
    assert [step.status for step in run.steps] == ["cancelled"] * 3
    assert [task.status for task in run["train"].tasks] == ["completed", "cancelled"]
    assert run["train"].tasks[1].attempts[0].status == "cancelled"
    shown = run_as_json(run)
    assert (shown["status"], shown["ended"]) == ("cancelled", None)
    assert "running" not in json.dumps(shown)
    assert row_as_json(run.row)["status"] == "cancelled"
    assert repr(run).startswith("<Run run1 of digits: interrupted")
    [listed] = list_runs(configuration=recorder.configuration)
    assert (listed.status, listed.interrupted) == ("cancelled", True)
    text = show_run(run)
    assert text.startswith("run run1 · digits · interrupted\n")
    assert "upshift resume run1 continues from the last completed step" in text
    assert "not run: the run was interrupted" in " ".join(text.split())


def test_what_was_read_of_a_run_just_before_it_ended_is_read_again(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder), status="running")
    before = recorder.catalog.run(id)
    recorder.catalog.update_run(id, status="completed", ended=5.0)
    [now] = standing([before], recorder.catalog)
    assert (now.status, now.ended) == ("completed", 5.0)


def test_a_run_on_another_machine_is_believed_to_run(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder), status="running")
    assert get_run(id, recorder.configuration).status == "cancelled"
    lease = recorder.store.root / "leases" / id / "1"
    lease.parent.mkdir(parents=True)
    lease.write_text('{"pid": 1, "host": "elsewhere", "boot": "its-own", "locks": true}')
    assert get_run(id, recorder.configuration).status == "running"


def test_a_step_mapped_over_nothing_gives_an_empty_list(recorder: Recorder) -> None:
    run = get_run(recorder.start("run1", graph_of(recorder)), recorder.configuration)
    assert run["train"].status == "completed"
    assert run["train"].output == []


def test_a_reused_task_gives_the_earlier_result_and_its_reason(recorder: Recorder) -> None:
    graph = graph_of(recorder)
    origin = recorder.complete(recorder.start("early", graph), "report", output={"a": 1})
    id = recorder.start("late", graph)
    task = TaskId(run=id, step="report")
    reused = TaskRow(
        task=task,
        status="completed",
        cached=True,
        cache_reason="nothing changed",
        origin=("early", "report", None, 1),
    )
    recorder.catalog.record([reused])
    run = get_run(id, recorder.configuration)
    assert run["report"].output == {"a": 1}
    seen = run["report"].tasks[0]
    assert (seen.cached, seen.cache_reason, seen.origin) == (True, "nothing changed", origin)
    [attempt] = seen.attempts
    assert (attempt.run, attempt.number, attempt.used) == ("early", 1, USED)
    shown = run_as_json(run)["steps"][2]["tasks"][0]
    assert (shown["cached"], shown["cache_reason"]) == (True, "nothing changed")
    assert shown["origin"] == {"run": "early", "step": "report", "index": None}
    assert [(a["run"], a["used"]) for a in shown["attempts"]] == [("early", USED.as_json())]
    assert shown["outputs"][0]["digest"] == run["report"].tasks[0].artifacts["output"].digest


def reused(recorder: Recorder, *attempts: AttemptRow, number: int = 1) -> Run:
    """A run with one task, reused from the attempt of this number of run ``early``."""
    id = recorder.start("late", graph_of(recorder))
    row = TaskRow(
        task=TaskId(run=id, step="report"),
        status="completed",
        cached=True,
        origin=("early", "report", None, number),
    )
    recorder.catalog.record([row], attempts)
    return get_run(id, recorder.configuration)


def test_a_reused_task_gives_every_attempt_that_led_to_its_result_and_none_after(recorder: Recorder) -> None:
    early = TaskId(run="early", step="report")
    tries = [
        AttemptRow(task=early, number=number, status=status, backend="local")
        for number, status in enumerate(("failed", "completed", "running"), start=1)
    ]
    mine = AttemptRow(
        task=TaskId(run="late", step="report"), number=1, status="failed", backend="local", reason="timeout"
    )
    found = reused(recorder, *tries, mine, number=2)["report"].tasks[0].attempts
    assert [(a.run, a.number, a.status) for a in found] == [
        ("late", 1, "failed"),
        ("early", 1, "failed"),
        ("early", 2, "completed"),
    ]


def test_a_reused_task_whose_origin_is_known_to_the_store_only(recorder: Recorder) -> None:
    recorder.store.create_result(
        TaskResult(task=TaskId(run="early", step="report"), attempt=1, status="completed", used=USED)
    )
    [attempt] = reused(recorder)["report"].tasks[0].attempts
    assert (attempt.run, attempt.used) == ("early", USED)


def test_a_reused_task_whose_origin_was_deleted_has_no_attempts(recorder: Recorder) -> None:
    run = reused(recorder)
    task = run["report"].tasks[0]
    assert (task.attempts, task.artifacts) == ([], {})
    shown = run_as_json(run)["steps"][2]["tasks"][0]
    assert (shown["attempts"], shown["outputs"], shown["origin"]["run"]) == ([], [], "early")
    assert "reused" in show_run(run)


def test_what_an_attempt_without_a_result_asked_for_is_known(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder), status="running")
    task = TaskId(run=id, step="report")
    spec = TaskSpec(
        task=task,
        attempt=1,
        pipeline="digits",
        entry=EntryPoint(module="m", qualname="f"),
        code=Code(project="/p"),
        store=recorder.store.address,
        request=ResourceSettings(cpu_count=2, memory="1GB"),
        granted=Hardware(cpu_count=1),
    )
    recorder.store.write_spec(spec)
    lost = Failure(reason="out-of-memory", message="The kernel killed it.")
    recorder.catalog.record(
        [TaskRow(task=task, status="failed")],
        [AttemptRow(task=task, number=1, status="failed", backend="local", failure=lost)],
    )
    attempt = get_run(id, recorder.configuration)["report"].tasks[0].attempts[0]
    assert (attempt.asked, attempt.granted) == (ASKED, Hardware(cpu_count=1))
    assert (attempt.seen, attempt.used, attempt.reason) == (None, None, "out-of-memory")


def test_runs_are_listed_newest_first_and_by_tag(recorder: Recorder) -> None:
    for number, id in enumerate(("a", "b", "c")):
        row = RunRow(
            id=id,
            pipeline="p",
            status="completed",
            target="local",
            store=recorder.store.address,
            started=float(number),
            tags=("odd",) if number % 2 else (),
        )
        recorder.catalog.add_run(row)
    assert [run.id for run in list_runs()] == ["c", "b", "a"]
    assert [run.id for run in list_runs(tag="odd")] == ["b"]
    assert [run.id for run in list_runs(pipeline="p", limit=1)] == ["c"]
    assert get_run("latest").id == "c"


def test_show_json_has_exactly_this_shape(run: Run) -> None:
    shown = run_as_json(run)
    assert list(shown) == [
        "id",
        "pipeline",
        "status",
        "target",
        "started",
        "ended",
        "params",
        "steps",
        "images",
    ]
    assert (shown["started"], shown["ended"]) == ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:08.178Z")
    assert shown["params"]["lr"] == 0.5
    assert shown["params"]["shape"] == [2, 3]
    step = shown["steps"][1]
    assert (list(step), step["name"], step["status"]) == (["name", "status", "tasks"], "train", "completed")
    task = step["tasks"][1]
    more = ("outputs", "attempts", "origin")
    assert list(task) == ["index", "status", "cached", "cache_reason", "inputs", *more]
    assert task["inputs"] == {}
    assert (task["index"], task["cached"], task["cache_reason"]) == (1, False, "never ran before")
    [output] = task["outputs"]
    assert list(output) == ["name", "type", "digest", "bytes"]
    assert (output["name"], output["type"], output["bytes"]) == ("output", "int", 2)
    [attempt] = task["attempts"]
    keys = (
        "number status reason target backend node image started ended error asked granted seen used metrics"
    )
    more = "metrics_by_rank cards gaps stacks checkpoints run"
    assert list(attempt) == [*keys.split(), *more.split()]
    assert attempt["asked"] == ASKED.as_json()
    assert attempt["used"]["peak_memory"] == 120
    assert (attempt["error"], attempt["reason"], attempt["backend"]) == (None, None, "local")
    assert json.loads(json.dumps(shown)) == shown


def test_runs_json_has_exactly_this_shape(run: Run) -> None:
    assert row_as_json(run.row) == {
        "id": "run1",
        "pipeline": "digits",
        "status": "completed",
        "target": "local",
        "user": "ada",
        "tags": ["a"],
        "started": "2026-01-02T03:04:05.678Z",
        "ended": "2026-01-02T03:04:08.178Z",
    }


def test_views_show_themselves_in_a_line_and_in_notebooks(run: Run) -> None:
    assert repr(run) == "<Run run1 of digits: completed in 2.5 s on local>"
    assert repr(run["train"]) == "<Step train: completed, 3 tasks>"
    assert repr(run["train"].tasks[0]) == "<Task train[0]: completed>"
    assert repr(run["report"].tasks[0].attempts[0]) == "<Attempt 1 of report: completed>"
    assert repr(run["load"].outputs) == "<outputs of step 'load': data, labels>"
    page = run._repr_html_()
    assert page.count("<tr>") == 4
    assert re.search(r"<bdi>train</bdi></td>.*completed.*>3</bdi></td>", page)


def test_html_is_escaped(recorder: Recorder) -> None:
    graph = Graph(pipeline="<b>", output=None)
    run = get_run(recorder.start("run1", graph), recorder.configuration)
    assert "&lt;b&gt;" in run._repr_html_()
    assert "<bdi><b>" not in run._repr_html_()
    assert run.output is None


@pytest.mark.parametrize(
    ("tasks", "run", "status"),
    [
        ({}, "running", "pending"),
        ({}, "pending", "pending"),
        ({}, "completed", "completed"),
        ({}, "failed", "cancelled"),
        ({}, "cancelled", "cancelled"),
        ({"completed": 9, "failed": 1, "running": 2}, "running", "failed"),
        ({"completed": 1, "running": 1, "pending": 1}, "running", "running"),
        ({"pending": 2}, "running", "pending"),
        ({"pending": 2, "completed": 1}, "running", "running"),
        ({"pending": 2, "completed": 1}, "failed", "cancelled"),
        ({"cancelled": 1, "completed": 5}, "cancelled", "cancelled"),
        ({"skipped": 2}, "completed", "skipped"),
        ({"skipped": 2, "completed": 1}, "completed", "completed"),
    ],
)
def test_the_status_of_a_step_follows_from_its_tasks(tasks: dict[str, int], run: str, status: str) -> None:
    assert step_status(tasks, run) == status


def test_a_run_whose_records_are_gone_says_so(recorder: Recorder) -> None:
    id = recorder.start("run1", graph_of(recorder))
    (recorder.store.root / "runs" / id / "graph.json").unlink()
    with pytest.raises(StoreError, match="run run1 has no graph in the store"):
        get_run(id, recorder.configuration).steps  # noqa: B018


def test_a_damaged_catalog_is_rebuilt_from_the_store(run: Run, recorder: Recorder) -> None:
    recorder.catalog.record([TaskRow(task=TaskId(run="run1", step="report"), status="skipped")])
    record_ending(run.row, recorder.catalog, recorder.store)
    before = run_as_json(get_run("run1", recorder.configuration))
    recorder.catalog.close()
    recorder.catalog.place.write_bytes(b"no database" * 500)

    aside = rebuild.put_aside_if_damaged(recorder.catalog)
    assert rebuild.rebuild(recorder.catalog, [recorder.store]).runs == 1

    assert aside == recorder.catalog.place.with_name("catalog.db.old")
    assert aside.read_bytes().startswith(b"no database")
    again = get_run("latest", recorder.configuration)
    assert again["train"].output == [0, 10, 20]
    assert again["report"].status == "skipped"
    assert again.row == run.row
    assert run_as_json(again) == before
    assert recorder.catalog.find_results("key of train")[0][0].step == "train"
