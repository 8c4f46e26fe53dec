"""Tasks that wait, with children that wait: what their supervisor uses meanwhile. Prints it as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from upshift import ResourceSettings, pipeline, step
from upshift.runtime.storage.series import read_series

SETTLE = 3.0
"""Seconds until every task has started, for each hundred tasks."""


def cpu_seconds(pid: int) -> float:
    """CPU time of the main thread of a process, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@step(settings={"resources": ResourceSettings(cpu_count=0.01)})
def watched(index: int, tasks: int, children: int, seconds: float) -> float:
    supervisor = parent(os.getppid())  # its child forks step processes
    for _ in range(children):
        if os.fork() == 0:
            signal.pause()
    time.sleep(1.0 + SETTLE * tasks / 100)
    before, began = cpu_seconds(supervisor), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(supervisor) - before) / (time.monotonic() - began)


@pipeline
def waiting(tasks: int, children: int, seconds: float) -> list[float]:
    return watched.map(index=list(range(tasks)), tasks=tasks, children=children, seconds=seconds)


def main() -> None:
    tasks, children, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    run = waiting(tasks, children, seconds)
    sizes = [
        path.stat().st_size / len(series)
        for task in run["watched"].tasks
        for path in [task.attempts[-1].series_path]
        if (series := read_series(path)) is not None
    ]
    print(json.dumps({"share": run.output[0], "bytes": sum(sizes) / len(sizes)}))


main()
