"""What a request gets in a container on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.base import Offer
from upshift.backends.docker.gpus import Handing
from upshift.backends.local import offers
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.images.containers.facts import limits
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec import Hardware
from upshift.model.spec.hardware import CGROUP, Shortfall, enforced

if TYPE_CHECKING:
    from upshift.runtime.accelerators.vendor import Inventory


def offer(
    request: ResourceSettings,
    here: Hardware,
    inventories: Sequence[Inventory],
    *,
    engine: ContainerEngine,
    facts: Mapping[str, Any],
    handing: Handing,
) -> Offer:
    """The request, as far as this machine and its container engine go.

    Parameters
    ----------
    request
        What is asked for.
    here
        CPUs and memory of this machine.
    inventories
        Its accelerators; looked at where the request is about some.
    engine, facts
        The engine, and what its ``info`` says.
    handing
        How devices come into a container.
    """
    # A container has shared memory of its own, as large as it is told to be.
    said = {name: value for name, value in request.explicit().items() if name != "shared_memory"}
    offered = offers.offer(ResourceSettings(**said), here, inventories)
    granted = offered.granted
    assert granted is not None  # this machine always gives something
    granted = attrs.evolve(granted, details={**granted.details, **enforced(CGROUP)})
    short = list(offered.shortfalls)
    for field in ("cpu_count", "memory"):
        if getattr(granted, field) is not None and field not in limits(facts):
            short.append(_unlimited(field, granted, engine))
            nothing: dict[str, Any] = {field: None}
            granted = attrs.evolve(granted, **nothing)
    if request.shared_memory is not None:
        most = granted.memory if granted.memory is not None else here.memory
        shared = request.shared_memory if most is None else min(request.shared_memory, most)
        if shared < request.shared_memory:
            short.append(
                Shortfall(
                    field="shared_memory",
                    asked=f"{format_size(request.shared_memory)} of shared memory",
                    got=format_size(shared),
                    why=f"it is part of the memory, of which there is {format_size(shared)}",
                    fix="Ask for more memory, or for less shared memory.",
                )
            )
        granted = attrs.evolve(granted, shared_memory=shared)
    problem = handing.problem({d.vendor for d in granted.gpus or () if d.vendor}) if granted.gpus else None
    if problem is not None:
        why, fix = problem
        count = len(granted.gpus or ())
        short.append(
            Shortfall(
                field="gpu_count", asked=f"{count} GPU{'s' * (count > 1)}", got="none", why=why, fix=fix
            )
        )
        return Offer(granted=attrs.evolve(granted, gpus=()), shortfalls=tuple(short))
    return Offer(granted=granted, alternatives=offered.alternatives, shortfalls=tuple(short))


def _unlimited(field: str, granted: Hardware, engine: ContainerEngine) -> Shortfall:
    value = getattr(granted, field)
    asked = f"{value:g} CPUs" if field == "cpu_count" else f"{format_size(value)} of memory"
    rootless = "Run it as root, or on a machine with cgroups of version 2." if engine.name == PODMAN else None
    return Shortfall(
        field=field,
        asked=asked,
        got="no limit",
        why=f"{engine.title} cannot limit it here",
        fix=rootless or "Give the kernel of this machine the cgroup controllers cpu and memory.",
    )
