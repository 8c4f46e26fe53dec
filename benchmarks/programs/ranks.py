"""Two processes of which one fails, or none goes on: how long it takes, as JSON.

``ranks.py failing`` counts from the exception to the end of the run, ``ranks.py hanging`` from the start of
the attempt to the end of the run.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import torch.distributed as dist

from upshift import RunFailed, pipeline, run_with_torchrun, step

TIMEOUT = 30


@run_with_torchrun(nproc_per_node=2)
@step
def fails() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        raise ValueError(time.time())
    dist.barrier()


@run_with_torchrun(nproc_per_node=2)
@step(timeout=TIMEOUT)
def hangs() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        threading.Event().wait()
    dist.barrier()


@pipeline
def failing() -> None:
    fails()


@pipeline
def hanging() -> None:
    hangs()


def main() -> None:
    kind = sys.argv[1]
    try:
        {"failing": failing, "hanging": hanging}[kind]()
    except RunFailed as failed:
        ended = time.time()
        attempt = failed.run.steps[0].tasks[0].attempts[-1]
    else:
        raise AssertionError("it went on to its end")
    error = attempt.error
    assert error is not None
    if kind == "failing":
        assert error.rank == 1, error
        began = float(error.message.partition("ValueError: ")[2])
    else:
        assert error.reason == "timeout", error
        assert {stack.rank for stack in attempt.stacks} == {0, 1}, attempt.stacks
        assert attempt.started is not None
        began = attempt.started.timestamp()
    print(json.dumps({"seconds": ended - began}))


if __name__ == "__main__":
    main()
