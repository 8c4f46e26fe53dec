"""Dagster: outputs are kept as pickles; the default executor starts a fresh interpreter for each step, and
``BENCH_IN_PROCESS`` asks for the other one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import common
import numpy as np
from dagster import (
    DagsterInstance,
    DynamicOut,
    DynamicOutput,
    JobDefinition,
    build_reconstructable_job,
    execute_job,
    graph,
    in_process_executor,
    multi_or_in_process_executor,
    op,
)

EXECUTOR = in_process_executor if os.environ.get("BENCH_IN_PROCESS") else multi_or_in_process_executor


@op(config_schema={"start": int})
def first(context) -> int:
    return context.op_config["start"]


@op
def increment(x: int) -> int:
    return x + 1


@op
def tell(x: int) -> None:
    common.note("x", x)


@op(config_schema={"start": int, "tasks": int}, out=DynamicOut(int))
def numbers(context):
    for number in range(context.op_config["tasks"]):
        yield DynamicOutput(context.op_config["start"] + number, mapping_key=str(number))


@op
def tell_sum(numbers: list[int]) -> None:
    common.note("x", sum(numbers))


@op(config_schema={"size": int})
def produce(context) -> np.ndarray:
    return common.produce(context.op_config["size"])


@op
def consume(array: np.ndarray) -> None:
    common.consume(array)


def chain(length: int) -> JobDefinition:
    @graph
    def chain() -> None:
        value = first()
        for number in range(length):
            value = increment.alias(f"increment_{number}")(value)
        tell(value)

    return chain.to_job(executor_def=EXECUTOR)


def fan_out() -> JobDefinition:
    @graph
    def fan_out() -> None:
        tell_sum(numbers().map(increment).collect())

    return fan_out.to_job(executor_def=EXECUTOR)


def pass_on() -> JobDefinition:
    @graph
    def pass_on() -> None:
        consume(produce())

    return pass_on.to_job(executor_def=EXECUTOR)


def run(job: Callable[..., JobDefinition], *args: int, **config: dict[str, int]) -> None:
    """Run a job that can be made again in each step's interpreter."""
    ops = {name: {"config": values} for name, values in config.items()}
    here = str(Path(__file__).parent)
    again = build_reconstructable_job(
        "with_dagster", job.__name__, args, reconstructor_working_directory=here
    )
    assert execute_job(again, instance=DagsterInstance.get(), run_config={"ops": ops}).success


def run_chain(length: int, start: int) -> Callable[[], float]:
    run(chain, length, first={"start": start})
    return lambda: common.noted()["x"]


def run_fan_out(tasks: int, start: int) -> Callable[[], float]:
    run(fan_out, numbers={"start": start, "tasks": tasks})
    return lambda: common.noted()["x"]


def array(size: int) -> dict[str, float]:
    run(pass_on, produce={"size": size})
    return common.passed()


if __name__ == "__main__":
    common.main(
        chain=lambda length: common.chain(run_chain, length, caches=False),
        fan_out=lambda tasks: common.fan_out(run_fan_out, tasks),
        array=array,
    )
