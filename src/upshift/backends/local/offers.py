"""What a request gets on this machine: as much of it as there is, and a word on the rest."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from upshift.backends.base import Offer, Shortfall
from upshift.config.resources import ResourceSettings
from upshift.config.sizes import format_size
from upshift.spec import Device, Hardware
from upshift.store.serializers import scratch
from upshift.worker.devices import ENFORCED

if TYPE_CHECKING:
    from upshift.accelerators.base import Inventory
    from upshift.accelerators.matching import Match

SHARED_MEMORY = "/dev/shm"


def offer(request: ResourceSettings, here: Hardware, inventories: Sequence[Inventory]) -> Offer:
    """The request, as far as this machine goes.

    Parameters
    ----------
    request
        What is asked for.
    here
        CPUs and memory of this machine, or container.
    inventories
        Its accelerators; looked at where the request is about some.
    """
    short: list[Shortfall] = []
    cpus, memory = request.cpu_count, request.memory
    if cpus is not None and here.cpu_count is not None and cpus > here.cpu_count:
        short.append(
            Shortfall(
                field="cpu_count",
                asked=f"{cpus:g} CPUs",
                got=f"{here.cpu_count:g}",
                why=f"this machine has {here.cpu_count:g}",
            )
        )
        cpus = here.cpu_count
    if memory is not None and here.memory is not None and memory > here.memory:
        short.append(
            Shortfall(
                field="memory",
                asked=format_size(memory),
                got=format_size(here.memory),
                why=f"this machine has {format_size(here.memory)}",
            )
        )
        memory = here.memory
    found = None
    if request.gpu_count:
        from upshift.accelerators.matching import match  # what no task needs is not imported

        found = match(request, inventories)
    if found is not None and found.lack is not None:
        short.append(_too_few(request, found))
    if request.num_nodes is not None and request.num_nodes > 1:
        short.append(
            Shortfall(
                field="num_nodes", asked=f"{request.num_nodes} nodes", got="1", why="this is one machine"
            )
        )
    disk = _space(request.disk, "disk", str(scratch.place()), short)
    shared = _space(request.shared_memory, "shared memory", SHARED_MEMORY, short)
    sets = [tuple(map(_any_like, devices)) for devices in found.sets] if found is not None else [()]
    return Offer(
        granted=Hardware(
            cpu_count=cpus,
            memory=None if memory is None else math.floor(memory),
            gpus=None if request.gpu_count is None else sets[0],
            nodes=1,
            disk=disk,
            shared_memory=shared,
            details={"enforced_by": ENFORCED},
        ),
        alternatives=tuple(dict.fromkeys(sets[1:])),
        shortfalls=tuple(short),
    )


def _too_few(request: ResourceSettings, found: Match) -> Shortfall:
    assert found.lack is not None
    said = request.explicit()
    field = next((name for name in ("accelerator", "gpu_memory", "gpu_vendor") if name in said), "gpu_count")
    return Shortfall(
        field=field,
        asked=found.lack.asked,
        got=found.lack.got,
        why=found.lack.why,
    )


def _any_like(device: Device) -> Device:
    """A device of this model: which one it will be is known when the step starts."""
    return Device(
        vendor=device.vendor,
        model=device.model,
        kind=device.kind,
        memory=device.memory,
        compute_capability=device.compute_capability,
        partition=device.partition,
    )


def _space(asked: int | None, what: str, folder: str, short: list[Shortfall]) -> int | None:
    """What is granted of some space: it is looked at, and not kept for the step."""
    if asked is None:
        return None
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    found = os.statvfs(folder)
    # What is in shared memory now goes with the steps that put it there; files on a disk stay.
    free = found.f_frsize * (found.f_blocks if folder == SHARED_MEMORY else found.f_bavail)
    if free >= asked:
        return asked
    has = (
        f"{folder} is of {format_size(free)}"
        if folder == SHARED_MEMORY
        else f"{format_size(free)} are free in {folder}"
    )
    short.append(
        Shortfall(
            field=what.replace(" ", "_"),
            asked=f"{format_size(asked)} of {what}",
            got=format_size(free),
            why=has,
            fix=f"Mount {folder} larger (mount -o remount,size=…; docker run --shm-size …), or ask for less."
            if folder == SHARED_MEMORY
            else "Free some space, set UPSHIFT_HOME to a folder on a larger disk, or ask for less.",
        )
    )
    return free
