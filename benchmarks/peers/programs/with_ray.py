"""Ray: tasks in worker processes that are used again, values in shared memory; nothing is kept or reused."""

from __future__ import annotations

from collections.abc import Callable

import common
import numpy as np
import ray


@ray.remote
def increment(x: int) -> int:
    return x + 1


@ray.remote
def produce(size: int) -> np.ndarray:
    return common.produce(size)


@ray.remote
def consume(array: np.ndarray) -> None:
    common.consume(array)


def run_chain(length: int, start: int) -> Callable[[], int]:
    value = start
    for _ in range(length):
        value = increment.remote(value)
    result = ray.get(value)
    return lambda: result


def run_fan_out(tasks: int, start: int) -> Callable[[], int]:
    values = ray.get([increment.remote(start + number) for number in range(tasks)])
    return lambda: sum(values)


def array(size: int) -> dict[str, float]:
    ray.get(consume.remote(produce.remote(size)))
    return common.passed()


if __name__ == "__main__":
    ray.init()
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=False),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
