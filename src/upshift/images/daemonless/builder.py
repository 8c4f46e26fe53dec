"""The builder that needs no container engine, and no root: :class:`DaemonlessBuilder`.

::

    requirements ── uv ──▶ folder ──▶ layers ──▶ registry ──┐
                                                            ├── manifest, last: the image is there
    blobs of the parent, where the registry lacks them ─────┘

Until the manifest is there the registry has blobs that nothing names, and forgets them in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from upshift.errors import ImageError, MissingExtra
from upshift.images.base import (
    ERROR,
    NOTE,
    Contents,
    Destination,
    Finding,
    Image,
    Ingredients,
    Parent,
    Tell,
)
from upshift.images.daemonless.composing import Composed, compose
from upshift.images.daemonless.installing import WITHOUT_UV, platform_of
from upshift.images.daemonless.layers import Layer
from upshift.images.daemonless.layout import Layout
from upshift.images.daemonless.making import Making
from upshift.images.daemonless.naming import repository_of, tag_of
from upshift.images.daemonless.pushing import Helpers, Push
from upshift.images.uv import find_uv
from upshift.images.workshop import workshop

if TYPE_CHECKING:
    from upshift.images.reference import Reference
    from upshift.images.registries.client import Registries

_ENGINE = (
    'Build with a container engine: builder = "engine" in the target, or --builder engine beside --registry.'
)


class DaemonlessBuilder:
    """Makes images by installing into a folder, and pushing that as layers on top of the parent's.

    Parameters
    ----------
    destination
        Where the images go.
    registries
        How registries are spoken to.
    """

    def __init__(self, destination: Destination, registries: Registries) -> None:
        self._destination = destination
        self._registries = registries

    def problems(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents
    ) -> Sequence[Finding]:
        """What takes a container engine, or is not known of the parent."""
        return list(_problems(ingredients, parent, contents, self._destination))

    def find(self, ingredients: Ingredients, parent: Parent | None, contents: Contents) -> Image | None:
        """The image under the tag of its recipe, and the user's tag, if both name it.

        Raises
        ------
        ImageError
            The registry cannot be asked.
        """
        if parent is None:
            return None
        if _is_the_parent(ingredients):
            return _image(parent.reference, parent.digest, ingredients, parent, contents)
        repository = repository_of(ingredients, self._destination)
        name = repository.with_tag(tag_of(ingredients.recipe.digest(parent.digest)))
        digest = self._registries.digest(name)
        if digest is None:
            return None
        if ingredients.tag is not None:
            name = repository.with_tag(ingredients.tag)
            if self._registries.digest(name) != digest:
                return None
        return _image(name, digest, ingredients, parent, contents)

    def build(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents, *, tell: Tell
    ) -> Image:
        """Install, pack, and push; the names last of all.

        Raises
        ------
        ImageError
            Requirements cannot be met, a disk is full, or the registry does not take it.
        MissingExtra
            uv is not installed.
        """
        for finding in _problems(ingredients, parent, contents, self._destination):
            if finding.severity == ERROR:
                raise ImageError(finding.what, why=finding.evidence, fix=finding.fix)
        assert parent is not None
        if _is_the_parent(ingredients):
            return _image(parent.reference, parent.digest, ingredients, parent, contents)
        repository = repository_of(ingredients, self._destination)
        with workshop() as folder, Helpers() as helpers:
            push = Push(self._registries, repository, helpers, folder, tell)
            for blob in _blobs_of(parent):
                helpers.start(push.parents, parent, blob)
            recipe, making = ingredients.recipe, None
            layers: list[tuple[Layer, str]] = []
            if recipe.requirements:
                making = Making(ingredients, contents, Layout.on(parent, contents), folder, push)
                layers = making.layers()
            composed = compose(
                parent,
                layers,
                recipe=recipe.digest(parent.digest),
                environment=recipe.environment,
                path=making.layout.scripts if making else None,
                user=recipe.user,
            )
            self._registries.upload_blob(repository, composed.config, composed.config_digest)
            helpers.settle()
            if making is not None:
                making.remember()
            tags = [tag_of(recipe.digest(parent.digest)), *filter(None, [ingredients.tag])]
            name, digest = self._name(repository, tags, composed)
        return _image(name, digest, ingredients, parent, contents)

    def _name(self, repository: Reference, tags: Sequence[str], composed: Composed) -> tuple[Reference, str]:
        for tag in tags:
            name = repository.with_tag(tag)
            digest = self._registries.put_manifest(name, composed.manifest, composed.media_type)
        return name, digest


def _problems(
    ingredients: Ingredients, parent: Parent | None, contents: Contents, destination: Destination
) -> Iterator[Finding]:
    recipe = ingredients.recipe

    def wrong(field: str, what: str, fix: str = _ENGINE, evidence: str | None = None) -> Finding:
        return Finding(severity=ERROR, field=field, what=what, evidence=evidence, fix=fix)

    if recipe.dockerfile is not None or parent is None:
        yield wrong("dockerfile", "a Dockerfile takes a container engine to be built")
        return
    if _is_the_parent(ingredients):
        return
    if recipe.apt_packages:
        names = ", ".join(recipe.apt_packages)
        yield wrong("apt_packages", f"Debian packages take a container engine to install: {names}")
    if parent.manifest is None:
        yield wrong(
            "parent_image",
            f"{parent.reference} is in the container engine of this machine only",
            "Push it to a registry, and name it as it is called there.",
        )
    try:
        repository_of(ingredients, destination)
    except ImageError as error:
        yield wrong("target_repository", error.what, error.fix or _ENGINE, error.why)
    if not recipe.requirements:
        return
    if recipe.installer != "uv":
        yield wrong(
            "python_package_installer",
            f"{recipe.installer} cannot install for another machine, only uv can",
            f"Leave python_package_installer out. Or: {_ENGINE}",
        )
    if platform_of(recipe.platform, contents.glibc) is None:
        evidence = f"platform {recipe.platform}" + (f", glibc {contents.glibc}" if contents.glibc else "")
        yield wrong("platform", "there are no wheels for this platform", _ENGINE, evidence)
    unknown = [
        what
        for what, value in (
            ("its version", contents.python),
            ("its path", contents.interpreter),
            ("the folder of its packages", contents.site_packages),
        )
        if not value
    ]
    if unknown:
        yield wrong(
            "parent_image",
            f"not known of the Python in {parent.reference}: {', '.join(unknown)}",
            evidence=f"looked at: {contents.source}",
        )
    elif not (layout := Layout.on(parent, contents)).compiles:
        yield Finding(
            severity=NOTE,
            field="requirements",
            what="packages come without bytecode, and are slower to import: "
            f"the image has Python {layout.python}, this machine another one",
        )
    try:
        find_uv(WITHOUT_UV)
    except MissingExtra as error:
        yield wrong("python_package_installer", error.what, error.fix or _ENGINE)


def _is_the_parent(ingredients: Ingredients) -> bool:
    named = ingredients.repository is not None or ingredients.tag is not None
    return ingredients.recipe.skip_build or (ingredients.recipe.adds_nothing and not named)


def _image(
    name: Reference, digest: str, ingredients: Ingredients, parent: Parent, contents: Contents
) -> Image:
    return Image(
        reference=str(name.with_digest(digest)),
        recipe=ingredients.recipe.digest(parent.digest),
        interpreter=contents.interpreter,
        user=ingredients.recipe.user,
        name=str(name),
    )


def _blobs_of(parent: Parent) -> Iterator[tuple[str, int]]:
    """Digest and size of the parent's layers."""
    layers = (parent.manifest or {}).get("layers")
    seen = set()
    for layer in layers if isinstance(layers, list) else []:
        if layer["digest"] not in seen and not layer.get("urls"):  # those are where the URLs say
            seen.add(layer["digest"])
            yield layer["digest"], layer["size"]
