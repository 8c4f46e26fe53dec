"""A container engine with images that never existed, and a builder that makes more of them in no time."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import Any, cast

import attrs

from upshift.errors import UpshiftError
from upshift.images.base import (
    Contents,
    Finding,
    Image,
    Ingredients,
    Lock,
    LockedPackage,
    Parent,
    Progress,
    Recipe,
    Reference,
    Tell,
)
from upshift.images.building.builder import Destination, FoundImage


def made_up_parent(name: str = "python:3.11-slim", *, number: int = 1, **fields: Any) -> Parent:
    """What an engine says of an image with Python."""
    known: dict[str, Any] = {
        "reference": Reference.parse(name),
        "digest": f"sha256:{number:064d}",
        "platform": "linux/amd64",
        "environment": {"PYTHON_VERSION": "3.11.7", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        "in_engine": True,
    }
    return Parent(**known | fields)


class MadeUpEngine:
    """Stands for a :class:`~upshift.images.containers.engine.ContainerEngine`."""

    name, version, platform, buildkit = "docker", "20.10.24", "linux/amd64", False
    title = "Docker 20.10.24"

    def __init__(self, *parents: Parent) -> None:
        self.images = {str(parent.reference): parent for parent in parents}
        self.asked: list[str] = []

    def inspect(self, reference: Reference | str) -> Parent | None:
        self.asked.append(str(reference))
        return self.images.get(str(reference))

    def run(self, args: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Nothing can be started in it; it lists what it has."""
        if args[0] == "images":
            return subprocess.CompletedProcess(args, 0, "\n".join([*self.images, "<none>:<none>"]), "")
        return subprocess.CompletedProcess(args, 125, "", "a made up engine")


@attrs.define(eq=False)
class MadeUpBuilder:
    """Makes images at once, or when it is let.

    Attributes
    ----------
    there
        The images that are there, by the digest of their recipe.
    made
        Recipes in the order in which they were built.
    error
        What building ends with.
    told
        What it tells while it builds.
    gate
        What it waits for before it is done; None: nothing.
    began
        Set once it builds.
    """

    there: dict[str, FoundImage] = attrs.field(factory=dict)
    made: list[str] = attrs.field(factory=list)
    error: BaseException | None = None
    search_error: UpshiftError | None = None
    findings: Sequence[Finding] = ()
    told: Sequence[Progress] = (Progress(stage="install", text="six"),)
    gate: threading.Event | None = None
    began: threading.Event = attrs.field(factory=threading.Event)
    stopped: threading.Event = attrs.field(factory=threading.Event)
    destination: Destination | None = None
    engine: None = None

    def problems(self, ingredients: Ingredients) -> Sequence[Finding]:
        return self.findings

    def unresolvable(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents
    ) -> Sequence[Finding]:
        return ()

    def find(self, ingredients: Ingredients, parent: Parent | None) -> FoundImage | None:
        if self.search_error is not None:
            raise self.search_error
        return self.there.get(_digest(ingredients, parent))

    def build(
        self,
        ingredients: Ingredients,
        parent: Parent | None,
        contents: Contents,
        lock: Lock | None,
        *,
        tell: Tell,
    ) -> Image:
        digest = _digest(ingredients, parent)
        found = None if ingredients.rebuild else self.there.get(digest)
        if found is not None and found.lock == lock:
            return found.image
        self.made.append(digest)
        self.began.set()
        for progress in self.told:
            tell(progress)
        try:
            while self.gate is not None and not self.gate.wait(0.02):
                tell(Progress(stage="build", text="still at it"))
        except BaseException:
            self.stopped.set()
            raise
        if self.error is not None:
            raise self.error
        image = Image(
            reference=f"sha256:{len(self.made):064x}",
            recipe=digest,
            interpreter="/usr/local/bin/python3",
            user=ingredients.recipe.user,
            name=f"upshift:{len(self.made)}",
        )
        self.there[digest] = FoundImage(image=image, lock=lock)
        return image


def made_up_lock(recipe: Recipe, *args: Any, **options: Any) -> Lock:
    """What requirements resolve to where no index is asked: each by itself, in version 1."""
    names = [line.partition("=")[0] for line in recipe.requirements if not line.startswith("-")]
    return Lock(packages=tuple(LockedPackage(name=name, version="1") for name in sorted(names)))


def made_up_destination(*parents: Parent, **fields: Any) -> Destination:
    """A container engine on this machine that has these images."""
    engine = MadeUpEngine(*(parents or (made_up_parent(),)))
    return Destination(platform="linux/amd64", engine=cast(Any, engine), **fields)


def _digest(ingredients: Ingredients, parent: Parent | None) -> str:
    return ingredients.recipe.digest(parent.digest if parent else None)
