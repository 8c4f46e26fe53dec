"""Processes of a launch are near their devices, where a machine has several NUMA nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

import trees
from upshift.runtime.launch.ranks import cpu_numbers, cpus_near, listed_cpus, numa_nodes, shares_of_cpus
from upshift.runtime.supervisor.node_runtime import CpuSet

TWO = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}


def test_nodes_are_read_from_sysfs(tmp_path: Path) -> None:
    assert numa_nodes(tmp_path) == {}
    trees.numa(tmp_path, {0: "0-1,4", 1: "2-3,5", 2: ""}, {})  # the last one has memory alone
    assert numa_nodes(tmp_path) == {0: {0, 1, 4}, 1: {2, 3, 5}, 2: frozenset()}


@pytest.mark.parametrize(
    ("cpus", "devices", "expected"),
    [
        (range(8), [0, 0, 1, 1], ["0-3", "0-3", "4-7", "4-7"]),
        (range(8), [1, 0], ["4-7", "0-3"]),
        ([0, 1, 6], [0, 1], ["0-1", "6"]),  # those that the step is granted
        (range(8), [1, None], ["4-7", "0-7"]),  # of one it is not known
        (range(8), [7, 1], ["0-7", "4-7"]),  # a node that has no CPUs
        (range(4), [0, 1], ["0-3", "0-3"]),  # all of those granted are on one node
        (range(8), [None, None], ["0-3", "4-7"]),  # on CPUs: in order
        (range(8), [None] * 3, ["0-3", "4-7", "4-7"]),
        ([0, 1, 2, 4], [None] * 4, ["0-2", "0-2", "0-2", "4"]),
        (range(8), [None], ["0-7"]),  # a node would be idle
    ],
)
def test_each_process_gets_the_cpus_near_its_device(
    cpus: range, devices: list[int | None], expected: list[str]
) -> None:
    assert [listed_cpus(share) for share in shares_of_cpus(cpus, TWO, devices)] == expected


@pytest.mark.parametrize("known", [{}, {0: frozenset(range(8))}])
def test_with_one_node_all_processes_have_all_cpus(known: dict[int, frozenset[int]]) -> None:
    assert shares_of_cpus(range(8), known, [0, None]) == [tuple(range(8))] * 2
    assert cpus_near([0, 0], known) == []


def test_lists_of_cpus_are_written_as_the_kernel_does() -> None:
    assert listed_cpus([9, 0, 1, 2, 5]) == "0-2,5,9"
    assert cpu_numbers("0-2,5,9") == [0, 1, 2, 5, 9]
    assert listed_cpus([]) == ""


def test_the_cpus_of_a_step_are_those_near_its_devices_as_long_as_they_are_as_free_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    cpus = CpuSet()
    near = cpus_near([1], TWO)
    first = cpus.take(2, near)
    assert first == (4, 5)
    assert cpus.take(3, near) == (0, 6, 7)  # a CPU that is free is better than one that is near
    assert cpus.take(2, cpus_near([0, 1], TWO)) == (1, 2)
    cpus.give_back(first)
    assert cpus.take(2, cpus_near([0, 1], TWO)) == (3, 4)
