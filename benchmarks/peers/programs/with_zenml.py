"""ZenML: the default stack, which runs steps one after the other in this process; caching is on."""

from __future__ import annotations

from collections.abc import Callable

import common
import numpy as np
from zenml import pipeline, step


@step
def increment(x: int) -> int:
    return x + 1


@pipeline
def chain(length: int, start: int) -> int:
    value = start
    for _ in range(length):
        value = increment(value)
    return value


@pipeline
def fan_out(tasks: int, start: int) -> None:
    for number in range(tasks):
        increment(start + number)


@step
def produce(size: int) -> np.ndarray:
    return common.produce(size)


@step
def consume(array: np.ndarray) -> None:
    common.consume(array)


@pipeline
def pass_on(size: int) -> None:
    consume(produce(size))


def run_chain(length: int, start: int) -> Callable[[], int]:
    run = chain(length=length, start=start)
    last = "increment" if length == 1 else f"increment_{length}"
    return lambda: run.steps[last].output.load()


def run_fan_out(tasks: int, start: int) -> Callable[[], int]:
    run = fan_out(tasks=tasks, start=start)
    return lambda: sum(s.output.load() for s in run.steps.values())


def array(size: int) -> dict[str, float]:
    pass_on(size=size)
    return common.passed()


if __name__ == "__main__":
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=True),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
