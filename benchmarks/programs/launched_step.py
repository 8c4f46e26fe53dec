"""The training of ``launched.py`` as a step of two processes."""

from __future__ import annotations

import launched  # type: ignore[import-not-found]  # it is beside this file

from upshift import ResourceSettings, pipeline, run_with_accelerate, step


@run_with_accelerate(cpu=True, num_processes=2)
@step(settings={"resources": ResourceSettings(cpu_count=2)})
def train(batches: int) -> float:
    return float(launched.train(batches))


@pipeline
def training(batches: int = 600) -> float:
    return train(batches=batches)
