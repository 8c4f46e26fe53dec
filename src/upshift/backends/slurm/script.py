"""The batch script of a job: pure, and the same for the same launch."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from upshift.backends.cluster import Launch
from upshift.model.settings.slurm import minutes_of

MIB = 1 << 20
ROOM = 300
"""Seconds beyond a step's own timeout and grace for what comes before and after it."""


def script_of(launch: Launch) -> str:
    """The script, for ``sbatch`` on its standard input."""
    options = "".join(f"#SBATCH {option}\n" for option in options_of(launch))
    # exec: signals reach the supervisor itself.
    return f"#!/bin/sh\n{options}\nexec {shlex.join(launch.command)}\n"


def options_of(launch: Launch) -> Iterator[str]:
    """What Slurm is asked for; each field of the request, and each setting, in a line of its own."""
    granted, said = launch.granted, launch.settings
    yield f"--job-name={launch.name}"
    yield f'--comment="{launch.comment}"'
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if said.get(name):
            yield f"--{name}={said[name]}"
    yield "--nodes=1"
    yield "--ntasks=1"
    if granted.cpu_count is not None:
        yield f"--cpus-per-task={math.ceil(granted.cpu_count)}"
    if granted.memory is not None:
        yield f"--mem={math.ceil(granted.memory / MIB)}M"
    if said.get("gres"):
        yield f"--gres={said['gres']}"
    elif granted.gpus:
        kinds = {device.model for device in granted.gpus}
        kind = kinds.pop() if len(kinds) == 1 else None
        yield "--gres=gpu:" + (f"{kind}:" if kind else "") + str(len(granted.gpus))
    if granted.disk is not None:
        yield f"--tmp={math.ceil(granted.disk / MIB)}M"
    minutes = time_of(launch)
    if minutes is not None:
        yield f"--time={minutes}"
    if said.get("exclusive"):
        yield "--exclusive"
    yield "--no-requeue"  # a step is tried again by what its retries say
    if launch.output is not None:
        name = launch.output.replace("%", "%%")  # sbatch(1), "FILENAME PATTERN"
        yield f'--output="{name}"'
    yield from said.get("extra", ())


def time_of(launch: Launch) -> int | None:
    """The time limit in minutes; None: what the partition says."""
    if launch.settings.get("time"):
        return minutes_of(launch.settings["time"])
    if launch.timeout is None:
        return None
    return math.ceil((launch.timeout + launch.grace + ROOM) / 60)
