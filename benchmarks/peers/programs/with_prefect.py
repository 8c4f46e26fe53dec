"""Prefect: tasks in this process, and the server that it starts by itself; ``BENCH_KEEP`` asks that results
are kept, and used again by input."""

from __future__ import annotations

import os
from collections.abc import Callable

import common
import numpy as np
from prefect import flow, task
from prefect.cache_policies import INPUTS

KEEP = bool(os.environ.get("BENCH_KEEP"))
OPTIONS = {"persist_result": True, "cache_policy": INPUTS} if KEEP else {}


@task(**OPTIONS)
def increment(x: int) -> int:
    return x + 1


@flow
def chain(length: int, start: int) -> int:
    value = start
    for _ in range(length):
        value = increment(value)
    return value


@flow
def fan_out(tasks: int, start: int) -> list[int]:
    return increment.map(range(start, start + tasks)).result()


@task(**OPTIONS)
def produce(size: int) -> np.ndarray:
    return common.produce(size)


@task
def consume(array: np.ndarray) -> None:
    common.consume(array)


@flow
def pass_on(size: int) -> None:
    consume(produce(size))


def run_chain(length: int, start: int) -> Callable[[], int]:
    value = chain(length, start)
    return lambda: value


def run_fan_out(tasks: int, start: int) -> Callable[[], int]:
    values = fan_out(tasks, start)
    return lambda: sum(values)


def array(size: int) -> dict[str, float]:
    pass_on(size)
    return common.passed()


if __name__ == "__main__":
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=KEEP),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
