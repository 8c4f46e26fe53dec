"""Metaflow: ``python FLOW.py run``, each step in a process of its own, outputs kept; nothing is reused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import common

BEGIN = """
import sys
sys.path.insert(0, {here!r})
import common
from metaflow import FlowSpec, step

class Flow(FlowSpec):
    @step
    def start(self):
        {start}

"""
END = """
    @step
    def end(self):
        {end}

if __name__ == "__main__":
    Flow()
"""
INCREMENT = """
    @step
    def increment_{number}(self):
        self.x += 1
        self.next(self.{following})
"""
FAN_OUT = """
    @step
    def increment(self):
        self.x = self.input + 1
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = sum(i.x for i in inputs)
        self.next(self.end)
"""


def run(start: str, middle: str, end: str) -> None:
    """Run a flow; it is a class in a file, so that each length of a chain is a file of its own."""
    file = Path("flow.py")
    here = str(Path(__file__).parent)
    file.write_text(BEGIN.format(here=here, start=start) + middle + END.format(end=end))
    subprocess.run([sys.executable, str(file), "run"], check=True)


def run_chain(length: int, start: int) -> Callable[[], float]:
    names = [f"increment_{number}" for number in range(length)]
    middle = "".join(
        INCREMENT.format(number=number, following=following)
        for number, following in enumerate([*names[1:], "end"])
    )
    run(f"self.x = {start}; self.next(self.{names[0]})", middle, "common.note('x', self.x)")
    return lambda: common.noted()["x"]


def run_fan_out(tasks: int, start: int) -> Callable[[], float]:
    numbers = f"self.numbers = list(range({start}, {start + tasks}))"
    run(f"{numbers}; self.next(self.increment, foreach='numbers')", FAN_OUT, "common.note('x', self.total)")
    return lambda: common.noted()["x"]


def array(size: int) -> dict[str, float]:
    run(f"self.array = common.produce({size}); self.next(self.end)", "", "common.consume(self.array)")
    return common.passed()


if __name__ == "__main__":
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=False),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
