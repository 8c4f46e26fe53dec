"""A flow beside the same work in functions. Prints seconds of each, as JSON."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import upshift
from upshift import FlowSpec, Parameter, pipeline, step


@step
def increment(x: int) -> int:
    return x + 1


@pipeline(cache=False)
def mapped(tasks: int) -> list[int]:
    return increment.map(x=list(range(tasks)))


class Foreach(FlowSpec):
    tasks = Parameter("tasks", default=1)

    @step
    def start(self):
        self.items = list(range(self.tasks))
        self.next(self.increment, foreach="items")

    @step
    def increment(self):
        self.x = self.input + 1
        self.next(self.join)

    @step
    def join(self, inputs):
        self.results = [one.x for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass


CHAIN = """
import os
from upshift import FlowSpec, step

class Chain(FlowSpec):
    @step
    def start(self):
        self.x = 0
        self.next(self.step_1)
{steps}
    @step
    def end(self):
        if not os.path.exists("mended"):
            raise ValueError("not mended")
"""
STEP = """
    @step
    def step_{number}(self):
        self.x += 1
        self.next(self.{following})
"""


def seconds(flow: Any, arguments: Mapping[str, object]) -> float:
    began = time.perf_counter()
    run = flow.run(arguments)
    took = time.perf_counter() - began
    assert run.status == "completed"
    return took


def chain(length: int) -> Any:
    """A flow of so many steps, all of which but the last one complete at first."""
    from upshift.authoring.loading import load_pipeline

    names = [f"step_{number}" for number in range(1, length - 1)]
    following = [*names[1:], "end"]
    steps = "".join(STEP.format(number=n + 1, following=name) for n, name in enumerate(following))
    file = Path(f"chain_{length}.py")
    file.write_text(CHAIN.format(steps=steps))
    return load_pipeline(str(file))


def main() -> None:
    tasks, length, rounds = map(int, sys.argv[1:])
    os.chdir(os.environ["UPSHIFT_HOME"])
    found: dict[str, list[float]] = {name: [] for name in ("map", "foreach", "step", "resume")}
    short, long = chain(3), chain(length)
    for _ in range(rounds):
        found["map"].append(seconds(mapped, {"tasks": tasks}))
        found["foreach"].append(seconds(Foreach.__upshift_pipeline__, {"tasks": tasks}))
        Path("mended").unlink(missing_ok=True)
        try:
            long.run({})
        except upshift.RunFailed as error:
            failed = error.run
        Path("mended").touch()
        began = time.perf_counter()
        upshift.resume(failed.id)
        found["resume"].append(time.perf_counter() - began)
        found["step"].append((seconds(long, {}) - seconds(short, {})) / (length - 3))
    print(json.dumps({name: statistics.median(values) for name, values in found.items()}))


if __name__ == "__main__":
    main()
