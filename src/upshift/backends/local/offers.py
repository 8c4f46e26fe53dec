"""What a request gets on this machine, as much of it as there is; and how tasks wait for its accelerators."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.base import Offer
from upshift.backends.registry import invalid_option
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import SPAN_FORMS, format_size, parse_span
from upshift.model.spec import Device, Hardware
from upshift.model.spec.hardware import SUPERVISOR, Model, Shortfall, enforced
from upshift.runtime.confine import host_facts
from upshift.runtime.storage import home_folders
from upshift.runtime.supervisor.device_queue import WAIT

if TYPE_CHECKING:
    from upshift.runtime.accelerators.matching import Match
    from upshift.runtime.accelerators.vendor import Inventory

SHARED_MEMORY = "/dev/shm"


class ThisMachine:
    """This machine, or the container that this process is in: what it has for steps."""

    def __init__(self) -> None:
        facts = host_facts()
        self.name: str = facts["host"]
        self.memory: int | None = facts["memory"]  # bytes; None: not known
        self._found: Sequence[Inventory] | None = None

    @property
    def hardware(self) -> Hardware:
        """The CPUs that this process may use, memory, and accelerators; None before they were looked for."""
        gpus = None if self._found is None else tuple(d for found in self._found for d in found.devices)
        return Hardware(cpu_count=len(os.sched_getaffinity(0)), memory=self.memory, gpus=gpus, nodes=1)

    @property
    def inventories(self) -> Sequence[Inventory]:
        """The accelerators of each vendor; empty before they were looked for."""
        return self._found or ()

    def look_for(self, request: ResourceSettings) -> None:
        """Look for accelerators, once, if a request is about some: that may take seconds."""
        if request.gpu_count and self._found is None:
            from upshift.runtime.accelerators.agent import discover

            self._found = discover(slow=_say)


def _say(words: str) -> None:
    """Before the run, and what shows it, has started."""
    sys.stderr.write(f"{words}\n")


def offer(
    request: ResourceSettings,  # what is asked for
    here: Hardware,  # CPUs and memory of this machine, or container
    inventories: Sequence[Inventory],  # its accelerators; looked at where the request is about some
    *,
    nodes: int = 1,  # how many nodes are rehearsed on it, at most
    lost: int = 0,  # how many of these a step has lost that goes on with fewer
) -> Offer:
    """The request, as far as this machine goes. Nodes that are rehearsed on it share it in equal parts."""
    short: list[Shortfall] = []
    count = min(request.most_nodes, nodes)
    if request.is_elastic and count >= request.least_nodes:
        count = max(min(count, nodes - lost), request.least_nodes)
    here = _part(here, count)
    has = "this machine has" if count == 1 else f"each of {count} nodes on this machine has"
    granted: list[Any] = []
    for field, unit, shown in (("cpu_count", " CPUs", "{:g}".format), ("memory", "", format_size)):
        asked, there = getattr(request, field), getattr(here, field)
        if asked is not None and there is not None and asked > there:
            got = shown(there)
            short.append(Shortfall(field=field, asked=f"{shown(asked)}{unit}", got=got, why=f"{has} {got}"))
            asked = there
        granted.append(asked)
    cpus, memory = granted
    found = None
    if request.gpu_count:
        from upshift.runtime.accelerators.matching import match  # what no task needs is not imported

        found = match(request, inventories)
    if found is not None and found.lack is not None:
        short.append(_too_few(request, found))
    if request.least_nodes > count:
        short.append(
            Shortfall(
                field="num_nodes",
                asked=f"{request.least_nodes} nodes",
                got=str(count),
                why="this is one machine" if nodes == 1 else f"its target rehearses {nodes} nodes",
                fix=f"A target of it with options = {{ nodes = {request.least_nodes} }} rehearses them here.",
            )
        )
    disk = _space(request.disk, "disk", str(home_folders.place()), short)
    shared = _space(request.shared_memory, "shared memory", SHARED_MEMORY, short)
    sets: list[tuple[Device, ...]] = [()]
    if found is not None:
        sets = [tuple(map(_any_like, devices)) for devices in found.sets]
    if count > 1:
        sets = _shared(sets, inventories, count, short)
    return Offer(
        granted=Hardware(
            cpu_count=cpus,
            memory=None if memory is None else math.floor(memory),
            gpus=None if request.gpu_count is None else sets[0],
            nodes=count,
            disk=disk,
            shared_memory=shared,
            details=enforced(SUPERVISOR),
        ),
        alternatives=tuple(dict.fromkeys(sets[1:])),
        shortfalls=tuple(short),
    )


def _part(here: Hardware, count: int) -> Hardware:
    """What one of so many nodes on this machine has of its CPUs and memory."""
    if count == 1:
        return here
    return attrs.evolve(
        here,
        cpu_count=None if here.cpu_count is None else max(1, here.cpu_count // count),
        memory=None if here.memory is None else here.memory // count,
    )


def _shared(
    sets: list[tuple[Device, ...]], inventories: Sequence[Inventory], count: int, short: list[Shortfall]
) -> list[tuple[Device, ...]]:
    """What each of so many nodes gets of these devices, if all get the same."""
    there = Counter(device.sort for inventory in inventories for device in inventory.devices)
    found = []
    for devices in sets:
        taken: Counter[Model] = Counter()
        chosen = []
        for device in devices:
            taken[device.sort] += 1
            if taken[device.sort] <= there[device.sort] // count:
                chosen.append(device)
        found.append(tuple(chosen))
    if len(found[0]) < len(sets[0]):
        short.append(
            Shortfall(
                field="gpu_count",
                asked=f"{len(sets[0])} GPUs on each of {count} nodes",
                got=f"{len(found[0])} on each" if found[0] else "none",
                why="the nodes are on one machine, and share its GPUs",
            )
        )
    return found


def _too_few(request: ResourceSettings, found: Match) -> Shortfall:
    assert found.lack is not None
    said = request.explicit()
    field = next((name for name in ("accelerator", "gpu_memory", "gpu_vendor") if name in said), "gpu_count")
    return Shortfall(field=field, asked=found.lack.asked, got=found.lack.got, why=found.lack.why)


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
    got = format_size(free)
    why = f"{got} are free in {folder}"
    fix = "Free some space, set UPSHIFT_HOME to a folder on a larger disk, or ask for less."
    if folder == SHARED_MEMORY:
        why = f"{folder} is of {got}"
        fix = f"Mount {folder} larger (mount -o remount,size=…; docker run --shm-size …), or ask for less."
    field = what.replace(" ", "_")
    short.append(Shortfall(field=field, asked=f"{format_size(asked)} of {what}", got=got, why=why, fix=fix))
    return free


MANNERS = ("device_wait", "busy_devices")
"""Options that backends of this machine have for its accelerators."""


def manners(target: Target) -> tuple[float, bool]:
    """``device_wait`` in seconds, and whether ``busy_devices`` are used. Raises ``ConfigError``."""
    options = target.options
    wait, busy = options.get("device_wait"), options.get("busy_devices", "wait")
    try:
        seconds = WAIT if wait is None else parse_span(str(wait))
    except ValueError:
        raise invalid_option(target, "device_wait", f"Write {SPAN_FORMS}.") from None
    if busy not in ("wait", "use"):
        raise invalid_option(
            target,
            "busy_devices",
            'Write "wait", until other programs have let go of a device, or "use", to work beside them.',
        )
    return seconds, busy == "use"
