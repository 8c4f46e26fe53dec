"""The example that `make demo` runs: real data, real models, every record there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import upshift
from prepared import Prepared
from project import Outcome, Project

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits" / "pipeline.py"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, prepared: Prepared) -> Project:
    base = tmp_path_factory.mktemp("digits")
    libraries = [
        f"sklearn.{name}" for name in ("datasets", "ensemble", "model_selection", "neighbors", "svm")
    ]
    return Project(base / "project", base / "home", prepared, libraries)


@pytest.fixture(scope="module")
def first_run(example: Project) -> Outcome:
    return example.upshift("run", str(EXAMPLE))


@pytest.fixture(scope="module")
def shown(example: Project, first_run: Outcome) -> dict[str, Any]:
    return example.show()


@pytest.fixture
def finished(
    example: Project, first_run: Outcome, upshift_home: Path, monkeypatch: pytest.MonkeyPatch
) -> upshift.Run:
    monkeypatch.setenv("UPSHIFT_HOME", str(example.home))
    return upshift.list_runs(pipeline="digits")[-1]


def test_the_best_model_reads_held_out_digits(finished: upshift.Run) -> None:
    assert finished.status == "completed"
    assert 0.97 < finished.output <= 1.0


def test_the_saved_model_works_outside_the_run(finished: upshift.Run) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    model = finished["fit"].output
    assert model.score(digits.data, digits.target) > 0.98


def test_one_task_for_each_model_in_the_order_they_were_given(finished: upshift.Run) -> None:
    scores = finished["score"].output
    assert [task.index for task in finished["score"].tasks] == list(range(len(scores)))
    assert len(scores) == 9
    assert all(0.5 < score < 1 for score in scores)


def test_what_a_step_printed_is_shown_on_stdout_and_progress_on_stderr(first_run: Outcome) -> None:
    assert "digits it has never seen" in first_run.out
    assert "digits it has never seen" not in first_run.err
    assert "evaluate" in first_run.err


def test_every_attempt_keeps_what_was_asked_granted_seen_and_used(shown: dict[str, Any]) -> None:
    attempts = [a for s in shown["steps"] for t in s["tasks"] for a in t["attempts"]]
    assert len(attempts) == 14
    for attempt in attempts:
        assert attempt["status"] == "completed"
        assert attempt["reason"] is None
        for record in ("asked", "granted", "seen", "used"):
            assert {"cpu_count", "memory", "gpus", "nodes"} <= set(attempt[record])
        assert attempt["used"]["memory"] is not None
        assert attempt["used"]["cpu_count"] > 0


def test_the_records_hold_the_request(shown: dict[str, Any]) -> None:
    (fit,) = (s for s in shown["steps"] if s["name"] == "fit")
    attempt = fit["tasks"][0]["attempts"][0]
    assert attempt["asked"]["cpu_count"] == 1
    assert attempt["asked"]["memory"] == 500_000_000
    assert attempt["granted"]["cpu_count"] == 1
    assert attempt["granted"]["memory"] == 500_000_000


def test_show_prints_a_table_with_every_step_and_the_four_records(
    example: Project, first_run: Outcome
) -> None:
    table = example.upshift("show", "latest").out
    for word in ("load", "split", "score", "choose", "fit", "evaluate", "asked", "granted", "seen", "used"):
        assert word in table


def test_a_second_run_reuses_every_result_and_gives_the_same(example: Project, finished: upshift.Run) -> None:
    example.upshift("run", str(EXAMPLE))
    again = upshift.get_run("latest")
    assert again.id != finished.id
    assert all(task.cached for step in again.steps for task in step.tasks)
    assert again.output == finished.output


def test_another_parameter_runs_what_it_changes(example: Project, first_run: Outcome) -> None:
    example.upshift("run", str(EXAMPLE), "--param", "folds=3")
    cached = {s["name"]: all(t["cached"] for t in s["tasks"]) for s in example.show()["steps"]}
    assert cached["load"]
    assert cached["split"]
    assert not cached["score"]


def test_it_runs_as_a_plain_python_program(example: Project, first_run: Outcome) -> None:
    printed = example.python(str(EXAMPLE)).out
    assert "accuracy 0.9" in printed
