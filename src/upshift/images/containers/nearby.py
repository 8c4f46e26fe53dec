"""What a container engine has under a name like one that is not there: :func:`advice`."""

from __future__ import annotations

from difflib import get_close_matches

from upshift.errors import ImageError
from upshift.images.containers.engine import ContainerEngine
from upshift.images.reference import Reference

_ALIKE = 0.8
"""How alike names are of which one may be meant: a letter too many, not another version."""


def advice(engine: ContainerEngine, wanted: Reference, *, unreachable: bool) -> str | None:
    """How to go on without the registry of an image; None: there is no way.

    Parameters
    ----------
    engine
        What may have it under another name.
    wanted
        The image.
    unreachable
        Whether the registry gave no answer here: the engine may have another way to it.
    """
    alike = get_close_matches(str(wanted), _names(engine), n=1, cutoff=_ALIKE)
    if alike:
        return f"Did you mean {alike[0]}, which {engine.title} has?"
    if unreachable:
        return f"Or see whether {engine.title} gets it, which is used then: {engine.name} pull {wanted}"
    return None


def _names(engine: ContainerEngine) -> list[str]:
    listed = engine.run(["images", "--format", "{{.Repository}}:{{.Tag}}"], check=False).stdout.split()
    found = []
    for name in listed:
        if "<none>" not in name:
            try:
                found.append(str(Reference.parse(name.removeprefix("localhost/"))))
            except ImageError:  # an engine's own words for it
                continue
    return found
