"""The images that Upshift has built, in container engines and in registries: listing and removal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import ImageError
from upshift.images.base import HOME_LABEL, PROJECT_LABEL, RECIPE_LABEL, TAG_PREFIX, Reference, tag_of
from upshift.images.containers.bases import BASE_LABEL, this_home, unfinished
from upshift.images.containers.engine import ContainerEngine

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries


@attrs.frozen(kw_only=True)
class BuiltImage:
    """An image that Upshift built, or what a build left behind."""

    place: str  # where: the name of an engine, or of a repository in a registry
    reference: str  # what it is removed by: its id in an engine, `registry/name:tag` elsewhere
    names: tuple[str, ...]  # what it is called
    # Digest of its recipe; empty: it is what an engine made for others, or a failed build has left
    recipe: str
    # When, in seconds since the epoch; None: it does not say. One that is built without an engine has the
    # same bytes whenever it is, so it cannot
    made: float | None = None
    # Its size: in an engine unpacked and with its parent, in a registry the layers as they are stored
    bytes: int | None = None
    containers: int = 0  # how many containers are of it, running or not
    # Name of the folder of the project that had it built first; None: it does not say
    project: str | None = None
    # Whether that was with the `UPSHIFT_HOME` of now; None: in a registry, which is not asked for that.
    # Other projects and homes may use it as well, since equal recipes are one image
    ours: bool | None = None


def built_in_engine(engine: ContainerEngine) -> list[BuiltImage]:
    """The images in an engine, newest first, with what failed builds have left.

    An image that somebody else built on one of them inherits its labels, and is left out.
    """
    found = []
    any_containers = engine.run(["ps", "--all", "--quiet"]).stdout.strip()
    for described in engine.labelled(RECIPE_LABEL, BASE_LABEL):
        labels = (described.get("Config") or {}).get("Labels") or described.get("Labels") or {}
        names = tuple(described.get("RepoTags") or ())
        recipe, base = labels.get(RECIPE_LABEL, ""), labels.get(BASE_LABEL, "")
        of_base = any(name.endswith(f":base-{base}") for name in names)
        if names and not of_base and not any(name.endswith(f":{tag_of(recipe)}") for name in names):
            continue
        identity = described["Id"]
        of_it = ["ps", "--all", "--quiet", "--filter", f"ancestor={identity}"]
        users = engine.run(of_it).stdout if any_containers else ""
        found.append(
            BuiltImage(
                place=engine.name,
                reference=identity,
                names=names,
                recipe="" if of_base else recipe,
                made=_made(described),
                bytes=described.get("Size"),
                containers=len(users.split()),
                project=labels.get(PROJECT_LABEL),
                ours=labels.get(HOME_LABEL) == this_home(),
            )
        )
    for name in unfinished(engine):  # the image may have other names, which are not ours
        image = engine.describe(name)
        if image is None:
            continue
        found.append(
            BuiltImage(
                place=engine.name,
                reference=image["Id"],
                names=(name,),
                recipe="",
                made=_made(image),
                bytes=image.get("Size"),
                ours=True,
            )
        )
    return sorted(found, key=lambda image: -(image.made or 0.0))


def built_in_registry(registries: Registries, repository: Reference) -> list[BuiltImage]:
    """The images in a repository, in the order of their tags."""
    tags = registries.tags(repository)
    if not any(tag.startswith(TAG_PREFIX) for tag in tags):
        return []
    names: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for tag in tags:
        digest, manifest = registries.manifest(repository.with_tag(tag))
        names.setdefault(digest, []).append(tag)
        sizes[digest] = sum(layer.get("size", 0) for layer in manifest.get("layers") or [])
    found = []
    for digest, called in names.items():
        ours = [tag for tag in called if tag.startswith(TAG_PREFIX)]
        if ours:
            # Its other tags are removed with it: many registries remove whole images only.
            others = [tag for tag in called if tag not in ours]
            found.append(
                BuiltImage(
                    place=repository.name,
                    reference=repository.with_tag(ours[0]).full,
                    names=tuple(str(repository.with_tag(tag)) for tag in (*ours, *others)),
                    recipe="sha256:" + ours[0].removeprefix(TAG_PREFIX),
                    bytes=sizes[digest],
                )
            )
    return found


def remove_from_engine(engine: ContainerEngine, image: BuiltImage) -> None:
    """Remove an image with all of its names."""
    if image.containers:
        raise ImageError(
            f"{image.names[0] if image.names else image.reference} is in use",
            why=f"{image.containers} of the engine's containers are of it.",
            fix=f"See which: {engine.name} ps --all --filter ancestor={image.reference}",
        )
    for name in image.names or (image.reference,):
        engine.run(["rmi", name])


def remove_from_registry(registries: Registries, image: BuiltImage) -> None:
    """Remove an image from a registry, with all of its names."""
    for name in image.names:
        registries.delete(Reference.parse(name))


def _made(described: Mapping[str, Any]) -> float | None:
    """When an image was built, or last tagged: one without new layers may have its parent's date."""
    tagged = (described.get("Metadata") or {}).get("LastTagTime")
    moments = [_seconds(text) for text in (described.get("Created"), tagged)]
    return max((moment for moment in moments if moment is not None), default=None)


def _seconds(text: object) -> float | None:
    """A moment as engines and registries write it: with nanoseconds, which Python does not read."""
    if not isinstance(text, str):
        return None
    whole, dot, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if dot else ""
    try:
        moment = datetime.fromisoformat((whole + zone).replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment.timestamp() if moment.year > 1970 else None  # a placeholder
