"""What a step used, what it needs, and what runs now; with GPUs that a stand-in for NVML plays."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nvml import GIB, FakeNvml, Gpu
from project import UPSHIFT, Project
from upshift.runtime.storage.series import read_series

HEADER = """\
import glob, json, os, time
from upshift import ResourceSettings, Retry, gpu_profile, pipeline, step

def sampled(column, value):
    # Work until the step's own series has this value in a column.
    while True:
        for path in glob.glob(os.environ["UPSHIFT_HOME"] + "/store/runs/*/tasks/*/*.series"):
            names = []
            for line in open(path):
                row = json.loads(line)
                if isinstance(row, dict):
                    names = row["columns"]
                elif column in names and row[names.index(column)] == value:
                    return
"""


def test_gpus_are_in_the_record_and_in_the_series(project: Project, fake_nvml: Any) -> None:
    gpus = [Gpu(busy=75, used=20 * GIB, power=500.0, temperature=66), Gpu(busy=25, power=100.0)]
    fake = fake_nvml(gpus)
    project.write(
        """
@gpu_profile(interval=0.1)
@step(settings={"resources": ResourceSettings(gpu_count=2)})
def train() -> None:
    sampled("gpu.1.busy", 25)

@pipeline
def example():
    return train()
""",
        header=HEADER,
    )
    project.upshift("run", "pipeline.py", env=fake.environment())
    used = project.attempt("train")["used"]
    first, second = used["gpus"]
    assert [first["uuid"], second["uuid"]] == fake.uuids
    assert (first["busy_mean"], first["busy_peak"], second["busy_mean"]) == (75, 75, 25)
    assert (first["power_mean"], first["temperature_peak"]) == (500, 66)
    assert first["memory_peak"] == 20 * GIB and first["energy"] > 0
    assert (used["gpu_mean"], used["gpu_idle"], used["interval"]) == (1.0, 0.0, 0.1)
    assert used["gpu_driver"] == "570.86.15"
    (path,) = project.home.glob("store/runs/*/tasks/train/*.series")
    series = read_series(path)
    assert series is not None
    assert [gpu["uuid"] for gpu in series.gpus] == fake.uuids and series.gpus[0]["driver"] == "570.86.15"
    assert set(series.columns["gpu.0.busy"]) - {None} == {75}
    shown = project.upshift("show", "latest").out
    assert "1 GPU mean" in shown


def test_a_step_whose_gpus_stand_idle_is_stopped_and_told_why(project: Project, fake_nvml: Any) -> None:
    project.write(
        """
@gpu_profile(interval=0.1)
@step(settings={"resources": ResourceSettings(gpu_count=1)}, gpu_idle_timeout=0.5)
def train() -> None:
    while True:
        pass

@pipeline
def example():
    return train()
""",
        header=HEADER,
    )
    told = project.upshift("run", "pipeline.py", env=fake_nvml([Gpu(busy=0)]).environment(), expect=1).text
    attempt = project.attempt("train")
    assert attempt["reason"] == "hang"
    assert "its GPU was idle for" in told and "gpu_idle_timeout is 0.5 s" in told
    assert "Where such a pause is in order, set a longer gpu_idle_timeout." in told
    assert attempt["used"]["gpu_idle"] == 1.0


def test_a_step_whose_gpu_is_busy_is_left_alone(project: Project, fake_nvml: Any) -> None:
    project.write(
        """
@gpu_profile(interval=0.1)
@step(settings={"resources": ResourceSettings(gpu_count=1)}, gpu_idle_timeout=0.2)
def train() -> None:
    sampled("gpu.0.busy", 50)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        pass

@pipeline
def example():
    return train()
""",
        header=HEADER,
    )
    project.upshift("run", "pipeline.py", env=fake_nvml([Gpu(busy=50)]).environment())


WITHOUT = """
@gpu_profile(interval=0.1)
@step(gpu_idle_timeout=60)
def train() -> None:
    sampled("read", 0)

@pipeline
def example():
    return train()
"""


def test_what_cannot_be_applied_without_a_gpu_is_said(project: Project) -> None:
    project.write(WITHOUT, header=HEADER)
    shown = project.call(["sh", "-c", f"{UPSHIFT} run pipeline.py 2>&1"]).out
    assert shown.index("train: started") < shown.index("[train] upshift: gpu_idle_timeout has nothing")
    told = project.upshift("logs", "latest", "train").out
    assert "gpu_idle_timeout has nothing to watch: the step was granted no GPU" in told
    assert "@gpu_profile: the step was granted no GPU; the profile has its CPUs and memory" in told
    used = project.attempt("train")["used"]
    assert used["samples"] >= 1 and used["interval"] == 0.1


def test_a_retry_asks_for_more_memory_and_says_so(project: Project) -> None:
    code = """
@step(settings={"resources": ResourceSettings(memory="150MB")}, retries=Retry(times=2, memory_factor=3))
def hungry() -> int:
    return len(bytearray(300_000_000))

@pipeline
def example():
    return hungry()
"""
    told = project.run(code).text
    assert "the step asked for 150 MB of memory, and reached" in told
    assert "trying again with 450 MB of memory (1 of 2)" in told
    (task,) = project.tasks("hungry")
    assert [attempt["asked"]["memory"] for attempt in task["attempts"]] == [150_000_000, 450_000_000]
    assert [attempt["granted"]["memory"] for attempt in task["attempts"]] == [150_000_000, 450_000_000]


RUNNING = """
@gpu_profile(interval=0.1)
@step(settings={"resources": ResourceSettings(cpu_count=1, memory="1GB")})
def train() -> str:
    sampled("read", 0)
    with open("ready", "w") as ready:
        ready.write("sampled")
    return open("go").read()

@pipeline
def example():
    return train()
"""


@pytest.fixture
def running(project: Project) -> Any:
    """A run whose only step has been sampled, and goes on until somebody writes to the pipe ``go``."""
    project.write(RUNNING, header=HEADER)
    ready, go = project.fifo("ready"), project.fifo("go")
    process = project.start("run", "pipeline.py")
    assert ready.read_text() == "sampled"
    yield project
    go.write_text("done")
    assert process.wait(60) == 0
    process.communicate()


def test_top_shows_what_runs_and_nothing_else(running: Project) -> None:
    (one,) = json.loads(running.upshift("top", "--json").out)["running"]
    assert (one["step"], one["index"], one["attempt"]) == ("train", None, 1)
    assert one["granted"]["memory"] == 1_000_000_000
    assert one["cpu"] is not None and one["seconds"] > 0
    text = running.upshift("top").out
    assert "1 step of 1 run" in text and "of 1 GB" in text and one["run"] in text
    narrow = running.upshift("top", "--once", env={"COLUMNS": "40"}).out
    assert max(map(len, narrow.splitlines())) <= 40 and "train" in narrow


def test_top_on_a_terminal_goes_on_until_q_is_typed(running: Project) -> None:
    ours, theirs = pty.openpty()
    environment = running.environment({"TERM": "xterm", "COLUMNS": "80", "LINES": "24"})
    process = subprocess.Popen(
        [UPSHIFT, "top"], cwd=running.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    screen = b""
    while screen.count(b"\x1b[H") < 2 or b"train" not in screen:
        screen += os.read(ours, 65536)
    os.write(ours, b"q")
    while not screen.endswith(b"\x1b[?1049l"):
        screen += os.read(ours, 65536)
    assert process.wait(30) == 0
    os.close(ours)


def test_top_where_nothing_runs(project: Project) -> None:
    assert project.upshift("top").out.startswith("nothing runs · ")
    assert json.loads(project.upshift("top", "--json").out) == {"running": [], "devices": []}


def test_top_names_the_devices_that_nobody_has(project: Project, fake_nvml: Any) -> None:
    fake: FakeNvml = fake_nvml(2)
    devices = json.loads(project.upshift("top", "--json", env=fake.environment()).out)["devices"]
    assert [device["uuid"] for device in devices] == fake.uuids
    assert all(device["holder"] is None for device in devices)
    assert "free" in project.upshift("top", env=fake.environment()).out


def test_the_series_of_a_run_whose_step_was_stopped_is_read_from_python(running: Project) -> None:
    import upshift

    attempt = upshift.get_run("latest")["train"].tasks[0].attempts[-1]
    assert isinstance(attempt.series_path, Path)
    series = read_series(attempt.series_path)
    assert series is not None and len(series) >= 1
