"""What a step logs: kept whatever becomes of the step, shown by every command, the same in Python."""

from __future__ import annotations

import json
import math
import re

import pytest

import upshift
from project import Project

TRAIN = """
import upshift

@step
def train(lr: float = 0.1, epochs: int = 20) -> float:
    w = 4.0
    for epoch in range(epochs):
        w -= lr * 2 * w
        upshift.log(step=epoch, loss=w * w, lr=lr)
    return w

@pipeline
def training(lr: float = 0.1):
    return train(lr=lr)
"""


THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
"""In a module, it makes each step a fresh interpreter."""


def losses(task: int = 0, step: str = "train", run: str = "latest") -> list[object]:
    return list(upshift.get_run(run)[step].tasks[task].attempts[-1].metrics["loss"].values)


def test_metrics_are_shown_and_read(project: Project) -> None:
    done = project.run(TRAIN)
    assert re.search(r"^train: completed in \S+ \S+: loss 0\.002127, lr 0\.1 \(step 19\)$", done.err, re.M)
    attempt = project.attempt("train")
    whole = {"last": 0.1, "step": 19, "min": 0.1, "max": 0.1, "count": 20, "rank": 0, "ranks": 1}
    assert attempt["metrics"]["lr"] == whole
    shown = project.upshift("show", "latest").out
    assert re.search(r"^train +loss +0\.002127 +0\.002127 +10\.24 +20 +█[▁-█]{14}▁$", shown, re.M)
    metrics = upshift.get_run("latest")["train"].tasks[0].attempts[-1].metrics
    assert list(metrics) == ["loss", "lr"]
    loss = metrics["loss"]
    assert list(loss.steps) == list(range(20)) and loss.max == 4.0**2 * 0.8**2
    assert list(loss.times) == sorted(loss.times) and 0 <= loss.times[0] < 60


def test_what_is_no_finite_number_is_kept_and_json_stays_json(project: Project) -> None:
    project.run("""
    import upshift, numpy as np

    @step
    def train() -> None:
        for loss in (1.5, float("nan"), np.float32("inf"), -np.inf):
            upshift.log(loss=loss)

    @pipeline
    def p():
        train()
    """)
    first, second, third, fourth = losses()
    assert isinstance(second, float) and math.isnan(second)
    assert (first, third, fourth) == (1.5, math.inf, -math.inf)
    text = project.upshift("show", "latest", "--json").out
    shown = json.loads(text, parse_constant=pytest.fail)
    summary = shown["steps"][0]["tasks"][0]["attempts"][0]["metrics"]["loss"]
    numbers = {"last": "-Infinity", "step": None, "min": 1.5, "max": 1.5, "count": 4}
    assert summary == {**numbers, "rank": 0, "ranks": 1}
    assert re.search(r"^train +loss +-inf +1\.5 +1\.5 +4$", project.upshift("show", "latest").out, re.M)


@pytest.mark.parametrize("prologue", ["", THREAD])
def test_a_step_that_is_killed_right_after_a_call_keeps_it(project: Project, prologue: str) -> None:
    project.run(
        f"""
    {prologue}
    import os, signal, upshift

    @step
    def train() -> None:
        for i in range(5000):
            upshift.log(step=i, loss=i / 2)
        os.kill(os.getpid(), signal.SIGKILL)

    @pipeline
    def p():
        train()
    """,
        expect=1,
    )
    assert losses() == [i / 2 for i in range(5000)]
    summary = project.attempt("train")["metrics"]["loss"]
    assert (summary["last"], summary["step"], summary["count"]) == (2499.5, 4999, 5000)


def test_a_step_that_fails_and_each_of_its_attempts_keep_what_they_logged(project: Project) -> None:
    project.run(
        """
    import upshift

    @step(retries=Retry(times=1, delay=0))
    def train() -> None:
        upshift.log(step=1, loss=upshift.current.attempt)
        raise ValueError("no")

    @pipeline
    def p():
        train()
    """,
        expect=1,
    )
    attempts = upshift.get_run("latest")["train"].tasks[0].attempts
    assert [attempt.metrics["loss"].last for attempt in attempts] == [1, 2]


def test_a_wrong_value_fails_the_step_at_the_line_that_logs_it(project: Project) -> None:
    project.run(
        """
    import numpy as np, upshift

    @step
    def train() -> None:
        upshift.log(loss=np.zeros(3))

    @pipeline
    def p():
        train()
    """,
        expect=1,
    )
    error = project.attempt("train")["error"]
    assert "the metric 'loss' is of type ndarray and shape (3,)" in error["message"]
    assert error["where"] == "pipeline.py:7"


def test_threads_and_forks_of_the_step_log_too(project: Project) -> None:
    project.run("""
    import multiprocessing, os, threading, upshift

    def work(name: str) -> None:
        for i in range(300):
            upshift.log({name: i}, step=i)

    @step
    def train() -> int:
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=work, args=(f"child {n}",)) for n in range(3)]
        workers += [threading.Thread(target=work, args=(f"thread {n}",)) for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        work("own")
        assert all(getattr(worker, "exitcode", 0) == 0 for worker in workers)
        return len(b"x" * 100)

    @pipeline
    def p():
        train()
    """)
    metrics = upshift.get_run("latest")["train"].tasks[0].attempts[-1].metrics
    assert len(metrics) == 7
    assert all(list(curve.values) == list(range(300)) for curve in metrics.values())


def test_a_thread_that_goes_on_does_not_tear_a_long_outcome(project: Project) -> None:
    project.run("""
    import threading, upshift

    def on() -> None:
        while True:
            upshift.log(x=1.0)

    @step
    def train() -> tuple[list, dict]:
        threading.Thread(target=on, daemon=True).start()
        return list(range(600)), {str(i): "x" * 20 for i in range(40)}

    @pipeline
    def p():
        train()
    """)
    assert project.attempt("train")["status"] == "completed"
    assert upshift.get_run("latest")["train"].output[0] == list(range(600))


def test_metrics_of_a_reused_task_are_those_of_the_run_that_did_the_work(project: Project) -> None:
    project.run(TRAIN)
    before = losses()
    again = project.upshift("run", "pipeline.py").err
    assert "train: reused" in again
    assert project.tasks("train")[0]["cached"] and losses() == before
    assert project.attempt("train")["metrics"]["loss"]["count"] == 20
    first = upshift.list_runs()[-1].id
    project.upshift("gc", "--run", first)
    assert losses() == before


def test_metrics_go_with_the_run_that_is_removed(project: Project) -> None:
    project.run(TRAIN)
    (path,) = (project.home / "store").glob("runs/*/tasks/train/*.metrics")
    run = upshift.get_run("latest").id
    project.upshift("gc", "--run", run)
    assert not path.exists()


def test_mapped_tasks_have_metrics_of_their_own(project: Project) -> None:
    done = project.run("""
    import upshift

    @step
    def train(fold: int) -> int:
        upshift.log(loss=fold * 1.5, phase="done")
        return fold

    @pipeline
    def p():
        return train.map([1, 2, 3])
    """)
    assert re.search(r"^train: completed in .*: 3 tasks, best loss 1\.5 \[0\] \(1\.5–4\.5\)$", done.err, re.M)
    assert [losses(task) for task in range(3)] == [[1.5], [3.0], [4.5]]
    shown = project.upshift("show", "latest").out
    assert re.search(r"^train ×3 +loss +1\.5–4\.5 +1\.5 \[0\] +1\.5 +4\.5 +3$", shown, re.M)
    assert re.search(r"^ +phase +done +– +– +3$", shown, re.M)
    beside = project.upshift("compare", "latest", "latest").out
    assert re.search(r"^  loss +1\.5–4\.5 +1\.5–4\.5$", beside, re.M)
    tasks = project.upshift("show", "latest", "--tasks").out
    assert re.search(r"^train\[1\] +2 +3 +done +\d+ ms$", tasks, re.M)


def test_a_text_that_holds_a_secret_is_masked_and_a_number_is_not(project: Project) -> None:
    project.write("""
    import os, upshift

    @step(secrets={"TOKEN": "env:TOKEN"})
    def train() -> None:
        token = os.environ["TOKEN"]
        upshift.log({"note": f"with {token}", "n": 24681357, token: 1.0, "plain": "text"}, step=24681357)

    @pipeline
    def p():
        train()
    """)
    project.upshift("run", "pipeline.py", env={"TOKEN": "24681357"})
    metrics = upshift.get_run("latest")["train"].tasks[0].attempts[-1].metrics
    assert {name: curve.last for name, curve in metrics.items()} == {
        "note": "with ***",
        "n": 24681357,
        "***": 1.0,
        "plain": "text",
    }


def test_a_million_calls_in_small(project: Project) -> None:
    """Fifty thousand: bytes for each, and points in order; the time is in the benchmarks."""
    project.run("""
    import upshift

    @step
    def train() -> None:
        for i in range(50_000):
            upshift.log(step=i, loss=i / 4)
            if i % 2:
                upshift.log(step=i, lr=0.5)

    @pipeline
    def p():
        train()
    """)
    assert losses() == [i / 4 for i in range(50_000)]
    (path,) = (project.home / "store").glob("runs/*/tasks/train/*.metrics")
    assert path.stat().st_size < 75_000 * 32
    assert path.read_bytes().count(b"names") == 2
    (result,) = (project.home / "store").glob("runs/*/tasks/train/*.result.json")
    assert result.stat().st_size < 3000


def test_a_function_that_is_called_directly_prints(project: Project) -> None:
    project.write(TRAIN)
    done = project.python("-c", "import pipeline; pipeline.train(epochs=2)")
    assert done.out == "loss 10.24, lr 0.1 (step 0)\nloss 6.554, lr 0.1 (step 1)\n"


def test_a_step_that_is_debugged_or_replayed_prints(project: Project) -> None:
    project.write(TRAIN)
    done = project.upshift("run", "pipeline.py", "--debug", "train")
    assert "loss 10.24, lr 0.1 (step 0)\n" in done.out
    assert project.attempt("train")["metrics"] == {}
    project.upshift("run", "pipeline.py", "--no-cache")
    replayed = project.upshift("replay", "latest", "train")
    assert "loss 10.24, lr 0.1 (step 0)\n" in replayed.out


def test_what_a_running_step_has_logged_is_there_already(project: Project) -> None:
    gate = project.fifo("gate")
    project.write("""
    import upshift

    @step
    def train() -> None:
        upshift.log(step=1, loss=0.5)
        upshift.current.card.append("so far", title="Note")
        open("logged", "w").close()
        open("gate").read()

    @pipeline
    def p():
        train()
    """)
    project.fifo("logged")
    running = project.start("run", "pipeline.py")
    try:
        with open(project.folder / "logged"):
            pass
        # What the step says comes before what it opens; the supervisor may need a moment more.
        while not project.attempt("train")["metrics"]:
            assert running.poll() is None
        attempt = project.attempt("train")
        assert attempt["status"] == "running" and attempt["metrics"]["loss"]["last"] == 0.5
        while not project.attempt("train")["cards"]:
            assert running.poll() is None
        assert "Note" in project.upshift("show", "latest").out
    finally:
        with open(gate, "w"):
            pass
        running.communicate(timeout=60)
    assert running.returncode == 0


def test_runs_side_by_side(project: Project) -> None:
    project.write(
        TRAIN.replace("return train(lr=lr)", "check(train(lr=lr))").replace(
            "@pipeline", "@step\ndef check(w: float) -> None:\n    assert w < 3\n\n@pipeline"
        )
    )
    project.upshift("run", "pipeline.py")
    project.upshift("run", "pipeline.py", "-p", "lr=0.001", "--tag", "slow", expect=1)
    slow, fast = (run.id for run in upshift.list_runs())
    shown = project.upshift("compare", fast, slow).out
    for line in (
        rf"run +{fast} +{slow}",
        r"tags +– +slow",
        r"status +completed +failed",
        r"parameters that differ",
        r"  lr +0\.1 +0\.001",
        r"train +\d.* \d.*",
        r"  loss +0\.002127  █[▁-█]{14}▁ +14\.77 +█[▁-█]{14}▁",
        r"  lr +0\.1 +0\.001",
        r"check +\d.* +failed, .*",
    ):
        assert re.search(rf"^{line}$", shown, re.M), (line, shown)
    found = json.loads(project.upshift("compare", fast, slow, "--json").out)
    assert [run["id"] for run in found["runs"]] == [fast, slow]
    assert found["params"] == [{"name": "lr", "values": ["0.1", "0.001"]}]
    train = found["steps"][0]
    assert train["name"] == "train"
    assert [step["tasks"][0]["metrics"]["lr"]["last"] for step in train["runs"]] == [0.1, 0.001]


def test_comparing_takes_runs_and_several_of_them(project: Project) -> None:
    project.run(TRAIN)
    assert "there is one run to compare" in project.upshift("compare", "latest", expect=2).err
    assert (
        "no run has an id that starts with 'zz" in project.upshift("compare", "latest", "zzz", expect=2).err
    )
    assert "there is no run to compare" in project.upshift("compare", expect=2).err
    assert "there is one run to compare" in project.upshift("compare", "--last", "5", expect=2).err
    assert "Add --last N" in project.upshift("compare", "--pipeline", "training", expect=2).err
    same = project.upshift("compare", "latest", "latest").out
    assert "the same parameters" in same


def test_runs_of_different_pipelines_have_steps_of_their_own(project: Project) -> None:
    project.run(TRAIN)
    project.write(
        "@step\ndef other() -> int:\n    return 1\n\n@pipeline\ndef q():\n    other()\n", "other.py"
    )
    project.upshift("run", "other.py")
    second, first = (run.id for run in upshift.list_runs())
    shown = project.upshift("compare", "--last", "2", env={"COLUMNS": "50"}).out
    assert shown.index(first) < shown.index(second)
    assert shown.count("status") == 2  # below each other
    assert re.search(r"^pipeline +q$", shown, re.M) and re.search(r"^other +–$", shown, re.M)
