"""More memory for the next attempt of a task that ran out of it: ``Retry(memory_factor=2)``."""

from __future__ import annotations

import math

import attrs

from upshift.config.resources import ResourceSettings
from upshift.config.sizes import format_size
from upshift.engine.places import Terms
from upshift.engine.schedule import Need


def with_more_memory(
    terms: Terms, request: ResourceSettings, *, reached: int, factor: float
) -> tuple[Terms, str]:
    """The terms of the next attempt, and what is different then, in words.

    Where the place has less than that the attempt gets what there is. That is no shortfall: nobody but
    this very rule has asked for so much.

    Parameters
    ----------
    terms, request
        Of the attempt that ran out of memory.
    reached
        Bytes that it had by then.
    factor
        So many times as much is asked for as before; of a step that asked for nothing, as it reached.
    """
    had = terms.granted.memory
    wanted = max(math.ceil((had or reached) * factor), reached)
    more = ResourceSettings(**(request.explicit() | {"memory": wanted}))
    offer = terms.place.backend.offer(more)
    short = next((shortfall for shortfall in offer.shortfalls if shortfall.field == "memory"), None)
    if short is not None and offer.granted is not None and offer.granted.memory is not None:
        more = ResourceSettings(**(request.explicit() | {"memory": offer.granted.memory}))
        offer = terms.place.backend.offer(more)
    granted = offer.granted
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
    raised = attrs.evolve(
        terms,
        request=more,
        granted=granted,
        need=Need.of(granted, offer.alternatives),
        # No backend is asked for an image. What else is short may be another thing than it was.
        shortfalls=(*lacks, *(shortfall for shortfall in terms.shortfalls if shortfall.field == "image")),
    )
    return raised, said
