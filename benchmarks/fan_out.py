"""Fan-out of 10,000 trivial tasks."""

from __future__ import annotations

import statistics

from benchmarks.harness import Effort, Report, Row, fresh_home, program

SIZES = {100: 5, 1_000: 3, 10_000: 1}
"""Tasks, and how often that many are run."""


def measure(effort: Effort) -> Report:
    """Rate, memory of the engine, files, and whether the time per task stays flat."""
    sizes = {100: 2, 1_000: 1} if effort.quick else SIZES
    found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for round_number in range(max(sizes.values())):
        for size, rounds in sizes.items():
            if round_number < rounds:
                with fresh_home() as home:
                    found[size].append(program("fan_out", str(size), home=home))
    middle = {
        size: {key: statistics.median(r[key] for r in results) for key in results[0]}
        for size, results in found.items()
    }
    largest = max(sizes)
    last = middle[largest]
    rates = [r["forks_per_second"] for results in found.values() for r in results]
    rows = [
        Row(what="floor: bare forks, one a core at a time", value=statistics.median(rates), unit="forks/s"),
        Row(
            what=f"{largest:,} tasks",
            value=largest / last["seconds"],
            unit="tasks/s",
            target=250,
            at_least=True,
        ),
        Row(what="peak memory of the engine", value=last["peak"] / 1e6, unit="MB", target=200),
        *(
            Row(what=f"time per task of {size:,}", value=1000 * m["seconds"] / size, unit="ms")
            for size, m in middle.items()
        ),
        Row(
            what=f"time per task of {largest:,} ÷ of 1,000",
            value=(last["seconds"] / largest) / (middle[1_000]["seconds"] / 1_000),
            unit="×",
            target=1.2,
        ),
        Row(what="files kept per task", value=last["files"] / largest, unit="files"),
    ]
    return Report(
        title=f"Fan-out of {largest:,} trivial tasks",
        how="Each size runs in a fresh process with an empty home ("
        + ", ".join(f"{size:,} tasks: {rounds} ×" for size, rounds in sizes.items())
        + "; medians). Seconds are those of the whole run, so that small ones carry its fixed cost. Peak "
        "memory is ru_maxrss of the process that runs the engine.",
        rows=rows,
    )
