"""Upshift: each step in a process of its own, inputs and outputs kept, reuse is on."""

from __future__ import annotations

from collections.abc import Callable

import common
import numpy as np

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


@pipeline
def fan_out(tasks: int, start: int) -> list[int]:
    return increment.map(x=list(range(start, start + tasks)))


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
    return lambda: run.output


def run_fan_out(tasks: int, start: int) -> Callable[[], int]:
    run = fan_out(tasks=tasks, start=start)
    return lambda: sum(run.output)


def array(size: int) -> dict[str, float]:
    pass_on(size=size)
    return common.passed()


if __name__ == "__main__":
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=True),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
