"""A step that grows beyond its own request is stopped here, as a cluster would stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from upshift.runtime.supervisor import node_runtime

SOURCE = """
import subprocess, sys, time
def jump(size):
    data = bytearray(size)
    return len(data)
def child(size):
    subprocess.run([sys.executable, "-c", f"import time; x = bytearray({size}); time.sleep(1)"], check=True)
def within(size):
    return len(bytearray(size))
def mapped(data):
    return float(data.sum())
"""


@pytest.fixture(params=["cgroup", "watchdog"])
def limited(request, bench, monkeypatch):  # type: ignore[no-untyped-def]
    if request.param == "watchdog":
        monkeypatch.setenv(node_runtime.DISABLE, "1")
    bench.write(SOURCE)
    bench.kind = request.param
    return bench


@pytest.mark.parametrize("function", ["jump", "child"])
def test_growing_in_one_jump_is_out_of_memory_with_limit_and_remedy(limited, function: str) -> None:  # type: ignore[no-untyped-def]
    result = limited.run(function, request={"memory": "100MB"}, inputs={"size": 400_000_000})
    if limited.kind == "cgroup" and result.granted.details["memory_limit"] == "watchdog":
        pytest.fail("this machine lets nobody make a memory cgroup, and the test needs one")
    assert result.status == "failed"
    assert result.failure.reason == "out-of-memory"
    assert "asked for 100 MB of memory" in result.failure.message
    assert "Ask for more" in result.failure.fix
    assert result.granted.details["memory_limit"] == limited.kind


def test_a_step_within_its_limit_completes(limited) -> None:  # type: ignore[no-untyped-def]
    result = limited.run("within", request={"memory": "100MB"}, inputs={"size": 50_000_000})
    assert limited.output(result) == 50_000_000
    assert 45_000_000 <= result.used.memory < 80_000_000


def test_mapped_inputs_do_not_count(limited) -> None:  # type: ignore[no-untyped-def]
    import numpy as np

    result = limited.run(
        "mapped", request={"memory": "100MB"}, inputs={"data": np.ones(40_000_000, dtype=np.float64)}
    )
    assert limited.output(result) == 40_000_000.0


def test_looks_that_take_long_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(node_runtime.DISABLE, "1")
    now, delays = [100.0], []

    def walk(pids: Iterable[int]) -> int:
        now[0] += 3.0
        return 10

    class Patient:
        def after(self, seconds: float, call: Callable[[], None]) -> None:
            delays.append(seconds)

    monkeypatch.setattr(node_runtime.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(node_runtime.proc, "tree", lambda pid: [1, 2])
    monkeypatch.setattr(node_runtime.proc, "proportional", walk)
    for each in (10, 60):
        monkeypatch.setattr(node_runtime.proc, "unreclaimable", lambda pid, each=each: each)
        node_runtime.MemoryLimit(100).watch(Patient(), {1: 0}, pytest.fail)  # type: ignore[arg-type]
    assert delays == [node_runtime.WATCH, 3.0 * node_runtime.REST]
