"""A chain of trivial steps that notes when each of them passes which place. Prints the marks as JSON.

The places are functions of Upshift's that are wrapped here, before the fork server is forked from this
process: so the engine, the fork server and the step processes all write to one file, in one order, on
one clock (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from upshift import pipeline, step
from upshift.backends.local.backend import LocalBackend
from upshift.runs.catalog.catalog import Catalog
from upshift.runtime.step import step as step_process
from upshift.runtime.storage.store import Store
from upshift.runtime.supervisor.attempt import SupervisedAttempt
from upshift.runtime.supervisor.supervisor import Supervisor
from upshift.runtime.supervisor.zygote import Zygote

_marks = os.memfd_create("marks")  # shared by every process that is forked from here
fcntl.fcntl(_marks, fcntl.F_SETFL, os.O_APPEND)  # else two of them may write to the same place


def mark(name: str) -> None:
    os.write(_marks, f"{name} {time.monotonic_ns()}\n".encode())


def watch(owner: Any, name: str, place: str) -> None:
    """Note when this function is called, and when it returns."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        mark(f"{place}<")
        try:
            return original(*args, **kwargs)
        finally:
            mark(f"{place}>")

    setattr(owner, name, watched)


@step
def increment(x: int) -> int:
    mark("call<")
    x += 1
    mark("call>")
    return x


@pipeline
def chain(length: int) -> int:
    value = 0
    for _ in range(length):
        value = increment(value)
    return value


def main() -> None:
    for owner, name, place in (
        (Store, "write_spec", "spec"),
        (Supervisor, "start", "start"),
        (Zygote, "_be_step", "order"),
        (step_process, "run", "step"),
        (step_process, "_save", "save"),
        (SupervisedAttempt, "_finish", "finish"),
        (Store, "create_result", "result"),
        (LocalBackend, "_hear", "hear"),
        (Catalog, "record", "commit"),
    ):
        watch(owner, name, place)
    chain(length=int(sys.argv[1]))
    size = os.fstat(_marks).st_size
    lines = os.pread(_marks, size, 0).decode().splitlines()
    print(json.dumps({"marks": [[name, int(at)] for name, _, at in (line.partition(" ") for line in lines)]}))


if __name__ == "__main__":
    main()
