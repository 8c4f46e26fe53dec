"""Upshift among the requirements of an image: the running version is used, with what its extras need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires

from upshift.images.pep508 import parsed, written

UPSHIFT = "upshift"


def needed_by(extras: frozenset[str]) -> list[str]:
    """What the extras of the running Upshift need."""
    if not extras:
        return []
    try:
        needed = requires(UPSHIFT) or []
    except PackageNotFoundError:
        return []
    found = []
    for text in needed:
        requirement = parsed(text)
        if requirement is None or requirement.marker is None:
            continue
        if any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ) and not requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            found.append(written(requirement))
    return found
