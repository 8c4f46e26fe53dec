"""More memory for the next attempt of a task that ran out of it: ``Retry(memory_factor=2)``."""

from __future__ import annotations

import math

import attrs

from upshift.engine.offers import Offered, offered
from upshift.engine.places import Terms
from upshift.engine.schedule import Need
from upshift.model.graph import StepDefinition
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size


def with_more_memory(
    terms: Terms, definition: StepDefinition, *, reached: int, factor: float, project: str | None = None
) -> tuple[Terms, str]:
    """The terms of the next attempt, and what is different then, in words.

    Where the place has less than that the attempt gets what there is. That is no shortfall: nobody but
    this very rule has asked for so much.
    """
    request, backend = terms.request or definition.settings.resources, terms.place.backend

    def asking_for(memory: int) -> tuple[ResourceSettings, Offered]:
        more = ResourceSettings(**(request.explicit() | {"memory": memory}))
        return more, offered(backend.offer(more), definition, backend, request=more, project=project)

    had = terms.granted.memory
    wanted = max(math.ceil((had or reached) * factor), reached)
    more, found = asking_for(wanted)
    short = next((one for one in found.offer.shortfalls if one.field == "memory"), None)
    if short is not None and found.offer.granted is not None and found.offer.granted.memory is not None:
        more, found = asking_for(found.offer.granted.memory)
    offer, granted = found.offer, found.offer.granted
    lacks = [shortfall for shortfall in offer.shortfalls if shortfall.field != "memory"]
    if terms.strict and lacks:  # the attempt before had it: space on a disk, for one
        return (
            terms,
            f"no more memory than it had: asked {lacks[0].asked}, gets {lacks[0].got}: {lacks[0].why}",
        )
    if granted is None or granted.memory is None or granted.memory <= (had or 0):
        why = f": {short.why}" if short is not None else ""
        return terms, f"no more memory than it had{why}"
    said = f"{format_size(granted.memory)} of memory"
    if short is not None:
        said += f", not {format_size(wanted)}: {short.why}"
    known = {shortfall.field for shortfall in terms.shortfalls}
    said += "".join(f"; asked {s.asked}, gets {s.got}: {s.why}" for s in lacks if s.field not in known)
    raised = attrs.evolve(
        terms,
        request=more,
        granted=granted,
        need=Need.of(granted, offer.alternatives, launch=found.launch),
        shortfalls=tuple(lacks),
        launch=found.launch,
        remarks=found.remarks,
    )
    return raised, said
