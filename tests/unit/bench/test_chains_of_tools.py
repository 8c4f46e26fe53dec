"""What all tools' programs share: a step costs what a longer chain takes more than a short one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.peers.places import PROGRAMS


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(PROGRAMS))
    import common

    yield common
    del sys.modules["common"]


class Tool:
    """Takes 5 s for a run, and for each step 2 s, or 0.5 s if it has seen it; its first run takes 100 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: set[int] = set()
        self.first = 100.0

    def perf_counter(self) -> float:
        return self.now

    def run(self, length: int, start: int) -> Callable[[], int]:
        self.now += 5 + self.first
        self.first = 0.0
        for number in range(start, start + length):
            self.now += 0.5 if number in self.seen else 2
            self.seen.add(number)
        return lambda: start + length


def test_fixed_costs_and_the_first_run_do_not_count(
    common: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = Tool()
    monkeypatch.setattr(common, "time", tool)
    assert common.chain(tool.run, 10, caches=True) == {"step": 2.0, "hit": 0.5}


def test_a_tool_without_a_cache_has_no_hits(common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool()
    monkeypatch.setattr(common, "time", tool)
    assert common.chain(tool.run, 10, caches=False) == {"step": 2.0}


def test_a_wrong_result_is_no_figure(common: ModuleType) -> None:
    with pytest.raises(AssertionError, match="instead of"):
        common.chain(lambda length, start: lambda: start, 10, caches=False)
    with pytest.raises(AssertionError, match="instead of"):
        common.fan_out(lambda tasks, start: lambda: 0, 10)


def test_the_rate_is_that_of_the_whole_run(common: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Tool()
    monkeypatch.setattr(common, "time", tool)

    def run(tasks: int, start: int) -> Callable[[], int]:
        tool.run(tasks, start)
        return lambda: sum(range(start + 1, start + 1 + tasks))

    assert common.fan_out(run, 10) == {"rate": 10 / 25}


def test_the_consumer_must_see_what_the_producer_made(common: ModuleType) -> None:
    array = common.produce(800)
    common.consume(array)
    assert common.passed()["pass"] >= 0
    common.consume(array + 1)
    with pytest.raises(AssertionError, match="another array"):
        common.passed()
