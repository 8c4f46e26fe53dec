"""The batch script of a job: pure, and the same for the same launch."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Collection, Iterator

from upshift.backends.scheduler import Launch
from upshift.backends.slurm.containers import Containers
from upshift.model.settings.slurm import minutes_of

MIB = 1 << 20
ROOM = 300
"""Seconds beyond a step's own timeout and grace for what comes before and after it."""


LEAVING = 60
"""Seconds that the supervisors of an attempt are given to end once one of them has."""


def script_of(launch: Launch, containers: Containers | None = None) -> str:
    """The script, for ``sbatch`` on its standard input; a step with an image runs in a container."""
    options = "".join(f"#SBATCH {option}\n" for option in options_of(launch))
    inside = containers if launch.image is not None else None
    before = "" if inside is None else inside.before(launch)
    command = shlex.join(launch.command) if inside is None else inside.command(launch)
    starter = [*_on_all_nodes(launch, *(inside.of_srun(launch) if inside else ()))]
    if starter and inside is not None and inside.differs:  # which devices it has, each node knows of its own
        before, command = "", shlex.join(["sh", "-c", f"{before}exec {command}"])
    if starter:
        command = f"{shlex.join(starter)} {command}"
    element = ' "$SLURM_ARRAY_TASK_ID"' if launch.elements else ""
    # exec: signals reach the supervisor itself, or srun, which hands them on to all of them.
    return f"#!/bin/sh\n{options}\n{before}exec {command}{element}\n"


def options_of(launch: Launch) -> Iterator[str]:
    """What Slurm is asked for; each field of the request, and each setting, in a line of its own."""
    granted, said = launch.granted, launch.settings
    yield f"--job-name={launch.name}"
    yield f'--comment="{launch.comment}"'
    if launch.elements:
        yield f"--array={ranges(launch.elements)}"
    for name in ("partition", "account", "qos", "constraint", "reservation"):
        if said.get(name):
            yield f"--{name}={said[name]}"
    nodes = granted.nodes or 1
    yield f"--nodes={nodes}"
    yield f"--ntasks={nodes}"
    if nodes > 1:
        yield "--ntasks-per-node=1"
    if granted.details.get("avoids"):
        yield f"--exclude={','.join(granted.details['avoids'])}"
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
        if "://" in launch.command[-1]:  # a node that does not see this folder writes to its own /tmp
            name = os.path.basename(name)
            yield f'--chdir="{os.path.dirname(launch.output)}"'
        if launch.elements:
            name = f"{name.removesuffix('.out')}.%a.out"
        yield f'--output="{name}"'
    yield from said.get("extra", ())


def _on_all_nodes(launch: Launch, *more: str) -> Iterator[str]:
    """What starts a supervisor on each of several nodes: what ends one of them, the others find out.

    Where srun has ``more`` to do, it starts one on a single node, too.
    """
    granted = launch.granted
    nodes = granted.nodes or 1
    if nodes == 1 and not more:
        return
    yield from ("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    if granted.cpu_count is not None:  # srun(1): it does not follow from that of sbatch since 22.05
        yield f"--cpus-per-task={math.ceil(granted.cpu_count)}"
    # Whatever a site has set: the processes are pinned, and their failures told, by the supervisors.
    yield from ("--cpu-bind=none", "--mpi=none", "--input=none", "--export=ALL", "--kill-on-bad-exit=0")
    yield f"--wait={LEAVING}"
    yield from more


def time_of(launch: Launch) -> int | None:
    """The time limit in minutes; None: what the partition says."""
    if launch.settings.get("time"):
        return minutes_of(launch.settings["time"])
    if launch.timeout is None:
        return None
    return math.ceil((launch.timeout + launch.grace + ROOM) / 60)


def ranges(elements: Collection[int]) -> str:
    """Numbers of an array's elements as Slurm writes them: ``0-7,9``."""
    found: list[list[int]] = []
    for number in sorted(elements):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
