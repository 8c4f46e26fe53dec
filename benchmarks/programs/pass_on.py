"""An array from one step to the next. Prints what both steps and the floors need, as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from blake3 import blake3

from upshift import pipeline, step
from upshift.runs.history.steps import Step


def random_array(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**63, size=size // 8, dtype=np.int64)


@step
def produce(size: int, seed: int) -> tuple[Annotated[np.ndarray, "array"], Annotated[float, "returned"]]:
    array = random_array(size, seed)
    return array, time.time()


@step
def consume(array: np.ndarray) -> tuple[Annotated[float, "called"], Annotated[int, "check"]]:
    called = time.time()
    return called, int(array[0]) ^ int(array[-1]) ^ int(array.max())


@pipeline
def pass_on(size: int, seed: int) -> tuple[float, int]:
    array, _ = produce(size, seed)
    called, check = consume(array)
    return called, check


def peak_memory(step: Step) -> int:
    used = step.tasks[0].attempts[-1].used
    assert used is not None
    assert used.memory is not None
    return used.memory


def main() -> None:
    size, seed = int(sys.argv[1]), int(sys.argv[2])
    array = random_array(size, seed)
    file = Path(os.environ["UPSHIFT_HOME"], "floor.npy")
    file.parent.mkdir(parents=True, exist_ok=True)

    began = time.perf_counter()
    np.save(file, array)
    saved = time.perf_counter() - began
    began = time.perf_counter()
    blake3(array.data.cast("B")).digest()
    hashed = time.perf_counter() - began
    check = int(array[0]) ^ int(array[-1]) ^ int(array.max())
    file.unlink()
    del array

    run = pass_on(size=size, seed=seed)
    called, seen = run.output
    assert seen == check
    returned: Any = run["produce"].outputs["returned"]
    print(
        json.dumps(
            {
                "save": saved,
                "hash": hashed,
                "pass": called - returned,
                "producer": peak_memory(run["produce"]),
                "consumer": peak_memory(run["consume"]),
            }
        )
    )


if __name__ == "__main__":
    main()
