"""What is sampled while a step runs, against what the step knows of itself."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from upshift.model.spec import TaskResult
from upshift.runtime.storage.series import Series, read_series

SOURCE = """
import os, signal, sys, time

def sampled(series, count):
    # Work until so many further samples have been written.
    before = None
    while True:
        try:
            with open(series) as file:
                lines = len(file.readlines())
        except FileNotFoundError:
            lines = 0
        before = lines if before is None else before
        if lines > before + count:
            return

def work(seconds):
    while time.process_time() < seconds:
        pass

def burn(series):
    work(0.2)
    sampled(series, 5)
    return time.process_time()

def write(series, path):
    with open(path, "wb") as file:
        file.write(bytes(8_000_000))
        os.fsync(file.fileno())
    sampled(series, 2)

def hold(series):
    data = bytearray(os.urandom(1000)) * 50_000
    sampled(series, 3)
    return len(data)

def nobody_waits_for_children(series):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            work(0.5)
            sampled(series, len(open(series).readlines()) + 2 if os.path.exists(series) else 2)
            os._exit(0)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass

def die(series):
    sampled(series, 3)
    work(0.2)
    os.kill(os.getpid(), signal.SIGKILL)

def leave(series):
    sampled(series, 1)
    work(0.1)
    os._exit(3)
"""


@pytest.fixture
def sampled(bench) -> Any:  # type: ignore[no-untyped-def]
    """Runs a function of the source that is told where its own series is, ten samples a second."""
    bench.write(textwrap.dedent(SOURCE))

    def run(function: str, **inputs: object) -> tuple[TaskResult, Series | None]:
        number = bench._count + 1
        task = bench.spec(function).task
        path = bench.store.series_path(task, 1).with_name(f"{number + 1}.1.series")
        result = bench.run(function, inputs={"series": str(path), **inputs}, profile=0.1)
        assert result.task.index == number + 1
        return result, read_series(path)

    return run


def test_cpu_time_is_what_the_step_itself_has_used(bench, sampled) -> None:  # type: ignore[no-untyped-def]
    result, series = sampled("burn")
    own = bench.output(result)
    used = result.used.details
    assert own * 0.9 - 0.01 <= used["cpu_seconds"] <= own + 0.5  # the kernel counts in hundredths of a second
    assert (
        used["samples"] >= 5 and used["interval"] == 0.1 and used["series"] == f"{result.task.index}.1.series"
    )
    assert series is not None and abs(series.started - result.started) < 60
    times = series.columns["time"]
    assert list(times) == sorted(times) and times[0] > 0.05
    assert max(series.columns["cpu"]) > 0.1
    assert used["cpu_peak"] >= used["cpu_mean"]


def test_memory_is_what_the_step_holds(sampled) -> None:  # type: ignore[no-untyped-def]
    result, series = sampled("hold")
    assert series is not None
    assert 50_000_000 <= max(series.columns["memory"]) < 80_000_000
    assert result.used.details["memory_peak"] >= 50_000_000
    assert result.used.details["memory_mean"] > 30_000_000


def test_what_goes_to_disk_is_counted(sampled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result, series = sampled("write", path=str(tmp_path / "file"))
    written = result.used.details["disk_written"]
    assert written == 0 or 8_000_000 <= written < 20_000_000, "to a file in memory nothing is written"
    assert series is not None and {"read", "written"} <= series.columns.keys()


def test_time_of_children_that_nobody_waits_for_is_not_lost(sampled) -> None:  # type: ignore[no-untyped-def]
    result, _ = sampled("nobody_waits_for_children")
    assert result.status == "completed", result.failure
    assert result.used.details["cpu_seconds"] >= 0.9


def test_the_series_of_a_step_that_is_killed_is_there(sampled) -> None:  # type: ignore[no-untyped-def]
    result, series = sampled("die")
    assert result.failure is not None and "SIGKILL" in result.failure.message
    assert series is not None and len(series) >= 3
    assert result.used.details["cpu_seconds"] > 0.1 and result.used.details["samples"] >= 3


def test_a_process_that_leaves_without_a_word_has_a_record(sampled) -> None:  # type: ignore[no-untyped-def]
    result, series = sampled("leave")
    assert series is not None and result.used.details["cpu_seconds"] > 0.05


def test_a_clock_that_jumps_distorts_nothing(bench, sampled, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    # The fork server is forked from this process and has this clock, which goes back a year at a time.
    import time

    real, jumps = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() - next(jumps) * 31_536_000)
    result, series = sampled("burn")
    assert series is not None
    gaps = [b - a for a, b in zip(series.columns["time"], series.columns["time"][1:], strict=False)]
    assert min(gaps) > 0 and 0 < result.used.details["seconds"] < 60
    assert 0 <= result.ended - result.started < 60
