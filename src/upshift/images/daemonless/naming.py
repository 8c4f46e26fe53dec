"""What images are called in a registry: :func:`repository_of`, and the tag by which they are found again."""

from __future__ import annotations

from upshift.errors import ImageError
from upshift.images.base import Destination, Ingredients
from upshift.images.reference import Reference

DEFAULT_REPOSITORY = "upshift"
"""Where images go whose settings name no ``target_repository``."""

TAG_PREFIX = "upshift-"
"""Of the tags that Upshift finds its images by."""


def tag_of(digest: str) -> str:
    """The tag of an image with this digest of its recipe (``sha256:…``)."""
    return TAG_PREFIX + digest.partition(":")[2]


def repository_of(ingredients: Ingredients, destination: Destination) -> Reference:
    """Where in a registry an image goes; without a tag that means anything.

    ``target_repository`` is below the registry of the target, unless it begins with a registry itself.

    Raises
    ------
    ImageError
        There is no registry, or the names do not make one.
    """
    named = ingredients.repository or DEFAULT_REPOSITORY
    first, slash, _ = named.partition("/")
    if slash and (any(mark in first for mark in ".:") or first == "localhost"):
        return Reference.parse(named)
    if destination.registry is None:
        raise ImageError(
            "there is no registry to put the image into",
            why="The target names none, and target_repository does not begin with one.",
            fix='Give the target one: registry = "registry.example.org/ml".',
        )
    prefix = destination.registry.rstrip("/")
    return Reference.parse(f"{prefix}/{named}")
