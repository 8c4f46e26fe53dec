"""Builds images, and finds those that were built: :class:`Builder`.

::

    parent ──▶ base, by an engine, where the recipe needs one ──┐
                                                                ├──▶ image: loaded into an engine, or pushed
    lock ── uv ──▶ folder ── packing ──▶ layers ────────────────┘

Tasks that run in a container engine on this machine take the image from it, others from the registry. Both
find it by a tag with the digest of its recipe. Its labels hold that digest and the lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.errors import ImageError, MissingExtra, RecipeError, UpshiftError, location
from upshift.images.base import (
    DEFAULT_REPOSITORY,
    ERROR,
    HOME_LABEL,
    LEAST_PYTHON,
    LOCK_LABEL,
    NOTE,
    PROJECT_LABEL,
    RECIPE_LABEL,
    WARNING,
    Contents,
    Finding,
    Image,
    Ingredients,
    Lock,
    Parent,
    Progress,
    Reference,
    Tell,
    repository_in,
    tag_of,
    whole_id,
)
from upshift.images.building.delivery import Additions, BuildThreads, Delivery, ToEngine, ToRegistry
from upshift.images.building.layers import LayerBuilder
from upshift.images.building.packages import CompileIn
from upshift.images.building.packing import ImageLayout
from upshift.images.cache import build_folder, build_lock
from upshift.images.containers.bases import base_of, build_base, this_home
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.transfer import pull, push
from upshift.images.parents.contents import contents_of, read_parent
from upshift.images.recipes.dockerfiles import instructions
from upshift.images.uv import find_uv, platform_of
from upshift.runtime.accelerators.compatibility import parse

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries


@attrs.frozen(kw_only=True)
class Destination:
    """Where a backend takes its images from."""

    platform: str  # what its machines run: `linux/amd64`
    # The container engine on this machine that runs the tasks; None: they run elsewhere, and take images from
    # the registry
    engine: ContainerEngine | None = None
    registry: str | None = None  # registry and prefix, as the target has it: `registry.example.org/ml`
    driver: str | None = None  # version of NVIDIA's driver there, where it is known
    # The image to build on for steps that name none, where the target says so; None: the official slim Python
    parent: str | None = None


@attrs.frozen(kw_only=True)
class FoundImage:
    """An existing image, with the lock of its requirements, if it has any."""

    image: Image
    lock: Lock | None = None


class Builder:
    """Finds and builds images for one destination."""

    def __init__(
        self, destination: Destination, registries: Registries | None, engine: ContainerEngine | UpshiftError
    ) -> None:
        self.destination = destination
        self._registries = registries
        self.engine = None if isinstance(engine, UpshiftError) else engine
        self._without = engine if isinstance(engine, UpshiftError) else None

    # -- before anything is built ------------------------------------------------------------------

    def problems(self, ingredients: Ingredients) -> Iterator[Finding]:
        """What of a recipe cannot be built here."""
        recipe = ingredients.recipe
        if ingredients.is_the_parent:
            return
        if recipe.needs_engine and self.engine is None:
            assert self._without is not None
            field = "dockerfile" if recipe.dockerfile is not None else "apt_packages"
            what = "A Dockerfile is" if recipe.dockerfile is not None else "Debian packages are"
            yield Finding(
                severity=ERROR,
                field=field,
                what=f"{what} built by a container engine: {self._without.what}.",
                evidence=self._without.why,
                fix=self._without.fix,
            )
        elif recipe.needs_engine and self.engine is not None and recipe.platform != self.engine.platform:
            yield Finding(
                severity=WARNING,
                field="platform",
                what=f"{self.engine.title} runs {self.engine.platform}, and has to emulate {recipe.platform}",
                fix="Where it cannot, or takes too long, build on a machine of that kind.",
            )
        if self.destination.engine is None:
            try:
                repository_in(self.destination.registry, ingredients.repository)
            except ImageError as error:
                yield Finding.of(error, "target_repository")
            if self._registries is None:
                yield Finding.of(no_registries(), "target_repository")

    def unresolvable(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents
    ) -> Iterator[Finding]:
        """Why requirements cannot be resolved for an image, and remarks on installing them."""
        recipe = ingredients.recipe
        name = str(parent.reference) if parent is not None else "what the Dockerfile makes"
        if platform_of(recipe.platform, contents.glibc) is None:
            evidence = f"platform {recipe.platform}" + (f", glibc {contents.glibc}" if contents.glibc else "")
            yield Finding(
                severity=ERROR,
                field="platform",
                what="there are no wheels for this platform",
                evidence=evidence,
                fix="Choose linux/amd64 or linux/arm64, or install in a Dockerfile.",
            )
        unknown = {
            "its version": contents.python,
            "its path": contents.interpreter,
            "the folder of its packages": contents.site_packages,
            "its packages": contents.whole,
        }
        missing = [what for what, value in unknown.items() if not value]
        if missing:
            yield Finding(
                severity=ERROR,
                field="parent_image",
                what=f"not known of the Python in {name}: {', '.join(missing)}",
                evidence=f"looked at: {contents.source}",
                fix="Choose an image with a python3 on its PATH.",
            )
            return
        if not ImageLayout.of(contents).compiles:
            yield Finding(
                severity=NOTE,
                field="requirements",
                what="packages come without bytecode, and are slower to import: "
                f"the image has Python {contents.python}, this machine another one",
            )
        try:
            find_uv("requirements are resolved and installed by uv")
        except MissingExtra as error:
            yield Finding.of(error, "requirements")

    def find(self, ingredients: Ingredients, parent: Parent | None) -> FoundImage | None:
        """The image of an equal recipe, if there is one; raises ImageError where that cannot be found out."""
        engine = self.destination.engine
        if self._is_the_parent(ingredients, parent):
            assert parent is not None
            there = engine is None or engine.describe(parent.pinned) is not None
            return FoundImage(image=_unchanged(ingredients, parent)) if there else None
        recipe = ingredients.recipe.digest(parent.digest if parent else None)
        if engine is not None:
            return self._find_in_engine(engine, ingredients, recipe)
        return self._find_in_registry(ingredients, recipe)

    def base(self, ingredients: Ingredients, parent: Parent | None) -> Parent | None:
        """What the engine has built of a recipe; None: nothing yet."""
        return None if self.engine is None else base_of(self.engine, ingredients, parent)

    def build_base(self, ingredients: Ingredients, parent: Parent | None, *, tell: Tell) -> Parent:
        assert self.engine is not None
        return build_base(self.engine, ingredients, parent, tell=tell)

    # -- building ----------------------------------------------------------------------------------

    def build(
        self,
        ingredients: Ingredients,
        parent: Parent | None,
        contents: Contents,
        lock: Lock | None,
        *,
        tell: Tell,
    ) -> Image:
        """Build an image where the destination takes it from. It gets a name once it is complete."""
        if self._is_the_parent(ingredients, parent):
            assert parent is not None
            if self.destination.engine is not None:
                _in_engine(self.destination.engine, parent, tell)
            return _unchanged(ingredients, parent)
        recipe = ingredients.recipe.digest(parent.digest if parent else None)
        waiting = Progress(stage="build", text="another process makes the same image")
        with build_lock(recipe.partition(":")[2], waiting=lambda: tell(waiting)):
            found = None if ingredients.rebuild else self.find(ingredients, parent)
            if found is not None and (found.lock == lock):
                return attrs.evolve(found.image, interpreter=contents.interpreter)
            with build_folder() as folder, BuildThreads() as threads:
                tell = threads.watched(tell)
                delivery = self._delivery(ingredients, parent, folder, threads, tell)
                below = delivery.parent
                if ingredients.recipe.dockerfile is not None and not contents.python:
                    contents = self._contents_of(ingredients, below)
                labels, layers, layer_builder, path = {RECIPE_LABEL: recipe}, [], None, None
                if self.destination.engine is not None:  # in a registry all bytes are the same for everyone
                    labels |= {HOME_LABEL: this_home(), PROJECT_LABEL: ingredients.project}
                if lock is not None:
                    layout = ImageLayout.of(contents, below.environment.get("PATH", ""))
                    layer_builder = LayerBuilder(
                        ingredients,
                        contents,
                        layout,
                        lock,
                        folder=folder,
                        delivery=delivery,
                        threads=threads,
                        tell=tell,
                        compile_in=self._compile_in(below, tell),
                        compile_here=self.destination.engine is None,
                    )
                    layers = layer_builder.layers()
                    labels[LOCK_LABEL], path = lock.text, layout.scripts
                additions = Additions(
                    labels=labels,
                    environment=ingredients.recipe.environment,
                    path=path,
                    user=ingredients.recipe.user,
                )
                names = _tags(ingredients, recipe)
                reference = delivery.finish(layers, additions, names)
                if layer_builder is not None:
                    layer_builder.remember()
        return _image(reference, recipe, ingredients, contents, f"{delivery.repository}:{names[-1]}")

    def _delivery(
        self, ingredients: Ingredients, parent: Parent | None, folder: Path, threads: BuildThreads, tell: Tell
    ) -> Delivery:
        """Where the image goes, with the image that lies below its layers there."""
        engine = self.destination.engine
        if engine is not None:
            if ingredients.recipe.needs_engine:
                below = build_base(engine, ingredients, parent, tell=tell)
            else:
                assert parent is not None
                below = _in_engine(engine, parent, tell)
            return ToEngine(engine, below, ingredients.repository or DEFAULT_REPOSITORY, folder, tell)
        assert self._registries is not None
        where = repository_in(self.destination.registry, ingredients.repository)
        below = self._below_in_registry(where, ingredients, parent, tell)
        delivery = ToRegistry(self._registries, below, where, threads, folder, tell)
        delivery.bring_parent()
        return delivery

    def _is_the_parent(self, ingredients: Ingredients, parent: Parent | None) -> bool:
        """Whether the parent is the image, and where it can be taken from."""
        only_here = parent is not None and parent.in_engine and self.destination.engine is None
        return ingredients.is_the_parent and not only_here

    def _compile_in(self, below: Parent, tell: Tell) -> CompileIn | None:
        engine = self.engine
        return None if engine is None else lambda: (engine, _in_engine(engine, below, tell).pinned)

    def _below_in_registry(
        self, where: Reference, ingredients: Ingredients, parent: Parent | None, tell: Tell
    ) -> Parent:
        """The image below, as a registry has it; one that only an engine has is pushed there."""
        if not ingredients.recipe.needs_engine and parent is not None and not parent.in_engine:
            return parent
        assert self.engine is not None and self._registries is not None
        base = parent
        if ingredients.recipe.needs_engine:
            base = build_base(self.engine, ingredients, parent, tell=tell)
        assert base is not None
        name = where.with_tag(f"base-{base.id.partition(':')[2]}")
        if self._registries.digest(name) is None:
            self.engine.run(["tag", base.id, name.full])
            try:
                push(self.engine, name.full, where.registry, tell)
            finally:
                self.engine.run(["rmi", name.full], check=False)
        return self._registries.parent(name, ingredients.recipe.platform)

    def _contents_of(self, ingredients: Ingredients, below: Parent) -> Contents:
        """What is in the image of a Dockerfile; raises RecipeError where its Python is missing or too old."""
        assert self.engine is not None
        base = below if below.in_engine else self.base(ingredients, None)
        assert base is not None
        contents = contents_of(base, registries=None, engine=self.engine)
        refuse_old_python(ingredients, contents)
        return contents

    # -- existing images ---------------------------------------------------------------------------

    def _find_in_engine(
        self, engine: ContainerEngine, ingredients: Ingredients, recipe: str
    ) -> FoundImage | None:
        repository = ingredients.repository or DEFAULT_REPOSITORY
        names = [f"{repository}:{tag}" for tag in _tags(ingredients, recipe)]
        described = [engine.describe(name) for name in names]
        said = described[0]
        if said is None or any(other is None or other["Id"] != said["Id"] for other in described):
            return None  # the user's tag is on another image
        labels = (said.get("Config") or {}).get("Labels") or {}
        if labels.get(RECIPE_LABEL) != recipe:
            return None
        return FoundImage(
            image=_image(whole_id(said), recipe, ingredients, Contents(), names[-1]),
            lock=_lock_in(labels, ingredients),
        )

    def _find_in_registry(self, ingredients: Ingredients, recipe: str) -> FoundImage | None:
        if self._registries is None:
            raise no_registries()
        repository = repository_in(self.destination.registry, ingredients.repository)
        there = None
        for tag in _tags(ingredients, recipe):
            name = repository.with_tag(tag)
            known = self._registries.digest(name)
            if known is None or known != (there or known):
                return None
            there = known
        assert there is not None
        reference = repository.with_digest(there)
        image = _image(reference.full, recipe, ingredients, Contents(), name.full)
        if not ingredients.recipe.requirements:
            return FoundImage(image=image)
        read, _ = read_parent(self._registries, reference, ingredients.recipe.platform)
        return FoundImage(image=image, lock=_lock_in(read.labels, ingredients))


def refuse_old_python(ingredients: Ingredients, contents: Contents) -> None:
    """Raise RecipeError where the image of the user's Dockerfile has no Python that steps can run with."""
    lacks = contents.python == ""
    if not lacks and not (contents.python and parse(contents.python) < parse(LEAST_PYTHON)):
        return
    stages = [one.line for one in instructions(ingredients.recipe.dockerfile or "") if one.name == "FROM"]
    path = ingredients.dockerfile
    has = "no python3 on its PATH" if lacks else f"Python {contents.python}"
    raise RecipeError(
        f"the image that the Dockerfile makes has {has}",
        where=None if path is None or not stages else location(str(path), stages[-1]),
        why=f"Steps need Python {LEAST_PYTHON} or newer in their image.",
        fix='Build on an image with Python (FROM python:3.12-slim), or set apt_packages=["python3"].'
        if lacks
        else "Build on an image with a newer Python: FROM python:3.12-slim.",
    )


def no_registries() -> MissingExtra:
    return MissingExtra(
        "an image registry has to be asked, and the packages for that are not installed",
        fix="pip install 'upshift[images]'",
    )


def _in_engine(engine: ContainerEngine, parent: Parent, tell: Tell) -> Parent:
    """A parent as an engine has it; it is pulled where the engine lacks it."""
    if parent.in_engine:
        found = engine.inspect(parent.pinned)
        if found is None or found.id != parent.id:
            what = f"{parent.reference} has become another image since it was looked into"
            raise ImageError(what, fix="Start again.")
        return parent
    found = engine.inspect(parent.reference.with_digest(parent.digest))
    if found is None:
        pull(engine, parent.pinned, parent.reference.registry, parent.platform, tell)
        found = engine.inspect(parent.reference.with_digest(parent.digest))
    if found is None:
        raise ImageError(f"{engine.title} has pulled {parent.pinned}, and does not have it")
    return found


def _unchanged(ingredients: Ingredients, parent: Parent) -> Image:
    recipe = ingredients.recipe.digest(parent.digest)
    return _image(parent.pinned, recipe, ingredients, Contents(), str(parent.reference))


def _tags(ingredients: Ingredients, recipe: str) -> Sequence[str]:
    """The tag by which the image is found, and the user's."""
    return [tag_of(recipe), *([] if ingredients.tag is None else [ingredients.tag])]


def _lock_in(labels: Mapping[str, str], ingredients: Ingredients) -> Lock | None:
    text = labels.get(LOCK_LABEL) if ingredients.recipe.requirements else None  # else the parent's
    with contextlib.suppress(ValueError):  # somebody else's
        return None if text is None else Lock.parse(text)
    return None


def _image(reference: str, recipe: str, ingredients: Ingredients, contents: Contents, name: str) -> Image:
    return Image(
        reference=reference,
        recipe=recipe,
        interpreter=contents.interpreter,
        user=ingredients.recipe.user,
        name=name,
    )
