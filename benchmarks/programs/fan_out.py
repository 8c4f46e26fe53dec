"""Many trivial tasks. Prints seconds, peak memory of the engine, files, and the floor, as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import floors
from upshift import pipeline, step


@step
def increment(x: int) -> int:
    return x + 1


@pipeline
def fan_out(tasks: int) -> list[int]:
    return increment.map(x=list(range(tasks)))


def main() -> None:
    tasks = int(sys.argv[1])
    rate = floors.forks_per_second(at_once=os.cpu_count() or 1)
    began = time.perf_counter()
    run = fan_out(tasks=tasks)
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    files = sum(len(names) for _, _, names in os.walk(os.environ["UPSHIFT_HOME"]))
    assert run.status == "completed"
    print(json.dumps({"seconds": took, "peak": peak, "files": files, "forks_per_second": rate}))


if __name__ == "__main__":
    main()
