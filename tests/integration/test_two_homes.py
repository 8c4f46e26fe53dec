"""Two homes with one store: as two people, or two machines, that share a folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from project import Project

WAITING = """
from pathlib import Path

@step
def data() -> int:
    with open("ran", "a") as file:
        file.write("data ")
    return 5

@step
def slow(x: int) -> int:
    with open("ran", "a") as file:
        file.write("slow ")
    Path("ready").open("w").write("now")
    Path("go").open().read()
    return x + 1

@pipeline
def waiting():
    return slow(data())
"""


@pytest.fixture
def homes(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Project, Project]:
    monkeypatch.setenv("UPSHIFT_STORE", str(tmp_path / "shared"))
    second = project.with_home(tmp_path / "second-home")
    second.upshift("runs")  # its catalog is there before the run is
    return project, second


def run_of(tmp_path: Path) -> str:
    (run,) = os.listdir(tmp_path / "shared" / "runs")
    return run


def test_a_run_is_seen_and_owned_and_cancelled_from_another_home(
    homes: tuple[Project, Project], tmp_path: Path
) -> None:
    first, second = homes
    first.write(WAITING)
    ready = first.fifo("ready")
    first.fifo("go")
    engine = first.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = run_of(tmp_path)
    assert second.show(run)["status"] == "running"
    refused = second.upshift("resume", run, expect=2)
    assert f"another engine owns run {run}" in refused.err
    assert f"process {engine.pid} on" in refused.err
    assert second.upshift("cancel", run).out == f"run {run} is being cancelled\n"
    _, err = engine.communicate()
    assert engine.returncode == 130, err
    assert second.show(run)["status"] == first.show(run)["status"] == "cancelled"
    assert second.upshift("cancel", run).out == f"run {run} has ended already: cancelled\n"
    assert os.listdir(tmp_path / "shared" / "leases") == []


def test_an_engine_whose_socket_cannot_be_reached_is_asked_through_the_store(
    homes: tuple[Project, Project], tmp_path: Path
) -> None:
    first, second = homes
    first.write(WAITING)
    ready = first.fifo("ready")
    first.fifo("go")
    engine = first.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = run_of(tmp_path)
    (first.home / "engines" / f"{run}.sock").unlink()
    assert f"run {run} is asked to stop: its engine on" in second.upshift("cancel", run).out
    engine.communicate()
    assert engine.returncode == 130


def test_a_run_whose_engine_was_killed_is_resumed_from_another_home_and_repeats_nothing(
    homes: tuple[Project, Project], tmp_path: Path
) -> None:
    first, second = homes
    first.write(WAITING)
    ready, go = first.fifo("ready"), first.fifo("go")
    engine = first.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = run_of(tmp_path)
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    resumed = second.start("resume", run)
    go.write_text("on")  # the task of the killed engine is still at it
    _, err = resumed.communicate()
    assert resumed.returncode == 0, err
    assert (first.folder / "ran").read_text() == "data slow "
    for home in (first, second):
        shown = home.show(run)
        assert shown["status"] == "completed"
        assert [task["status"] for step in shown["steps"] for task in step["tasks"]] == ["completed"] * 2
    assert "already complete" in first.upshift("resume", run).err


def test_what_a_killed_engine_left_running_is_stopped_from_another_home(
    homes: tuple[Project, Project], tmp_path: Path
) -> None:
    first, second = homes
    first.write(WAITING)
    ready = first.fifo("ready")
    first.fifo("go")
    engine = first.start("run", "pipeline.py")
    assert ready.read_text() == "now"
    run = run_of(tmp_path)
    os.kill(engine.pid, signal.SIGKILL)
    engine.communicate()
    said = second.upshift("cancel", run).out
    assert said.startswith(f"run {run} is cancelled: no engine was at work on it any more")
    assert said.endswith("1 of its tasks still ran and were stopped\n")
    assert first.show(run)["status"] == "cancelled"
