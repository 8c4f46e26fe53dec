"""A chain of trivial steps. Prints the seconds of chains of 1 and of N steps, and the floors, as JSON."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

if os.environ.get("BENCH_HEAVY"):  # not an argument: a fresh interpreter that imports this sees it too
    import pandas
    import sklearn.ensemble  # noqa: F401

    pandas.DataFrame({"a": [1]})

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import floors
from upshift import pipeline, step


@step
def increment(x: int) -> int:
    return x + 1


@pipeline
def chain(length: int, start: int) -> int:
    value = start
    for _ in range(length):
        value = increment(value)
    return value


def timed(length: int, start: int) -> float:
    began = time.perf_counter()
    run = chain(length=length, start=start)
    took = time.perf_counter() - began
    assert run.output == start + length
    return took


def main() -> None:
    length, rounds = int(sys.argv[1]), int(sys.argv[2])
    steps, hits, forks = [], [], []
    for number in range(rounds):
        # Far apart, so that no round finds what another one has computed.
        short, long = 10_000_000 * number, 10_000_000 * number + 5_000_000
        steps.append((timed(length, long) - timed(1, short)) / (length - 1))
        hits.append((timed(length, long) - timed(1, short)) / (length - 1))
        forks.append(floors.fork_seconds())
    print(
        json.dumps(
            {
                "step": statistics.median(steps),
                "hit": statistics.median(hits),
                "fork": statistics.median(forks),
                "commit": floors.commit_seconds(),
                "rename": floors.rename_seconds(),
            }
        )
    )


if __name__ == "__main__":
    main()
