"""Everything that is to be known of an image before it is built, and then the building: :func:`prepare`.

::

    settings, needs, destination ── prepare ──▶ Prepared ── make ──▶ Image
                                       │
                             findings, of which errors leave nothing to be made

Nothing here knows a graph: the engine prepares what its steps need, ``upshift image`` what a user names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.errors import ImageError, MissingExtra, UpshiftError
from upshift.images.base import (
    ERROR,
    WARNING,
    Announce,
    Builder,
    Contents,
    Destination,
    Finding,
    Image,
    Ingredients,
    Needs,
    Parent,
    Tell,
)

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.reference import Reference
    from upshift.images.registries.client import Registries
    from upshift.model.settings.docker import DockerSettings

ENGINE, DAEMONLESS = "engine", "daemonless"
"""The two builders."""

_Known = tuple[Parent, Contents, "Finding | None"]
"""What is known of a parent, and why that may not be so any more."""


@attrs.frozen(kw_only=True)
class Prepared:
    """An image that could be made, or is there already.

    Parameters
    ----------
    ingredients
        What it is made from.
    destination
        Where it is to run.
    parent
        What was read of the parent; None: only a Dockerfile knows it, or it cannot be read, which is
        one of the findings.
    contents
        What is known to be in the parent.
    findings
        What was found, in the order of the checks.
    digest
        Digest of the recipe on this parent; None: the parent is not known, and nothing can be made.
    builder_name
        ``"engine"`` or ``"daemonless"``.
    image
        The image, if there is an equal one; None where there is none, or it was not looked for.
    builder
        What makes it; None: none can, which is one of the findings.
    """

    ingredients: Ingredients
    destination: Destination
    parent: Parent | None
    contents: Contents
    findings: tuple[Finding, ...]
    digest: str | None
    builder_name: str
    image: Image | None = None
    builder: Builder | None = attrs.field(default=None, repr=False, eq=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings for which nothing is built, and nothing runs."""
        return tuple(finding for finding in self.findings if finding.severity == ERROR)

    @property
    def builds(self) -> bool:
        """Whether making it takes more than looking it up; an equal image was looked for."""
        return self.ingredients.rebuild or self.image is None

    def make(self, tell: Tell) -> Image:
        """The image: an equal one that is there, or else a new one.

        Parameters
        ----------
        tell
            Takes progress. What it raises ends the building.

        Raises
        ------
        ImageError
            A finding speaks against it, or it cannot be made.
        """
        if self.errors or self.builder is None:
            raise refusal(self)
        if not self.ingredients.rebuild:
            found = self.builder.find(self.ingredients, self.parent, self.contents)
            if found is not None:
                return found
        return self.builder.build(self.ingredients, self.parent, self.contents, tell=tell)


def prepare(
    settings: DockerSettings | None,
    needs: Needs,
    destination: Destination,
    *,
    project: Path,
    origins: Mapping[str, str],
    registries: Registries | None,
    look: bool = True,
) -> Prepared:
    """Find out all that is to be known of one image; nothing is built or downloaded.

    Parameters
    ----------
    settings
        What the user said; None: nothing.
    needs
        What is to run in it.
    destination
        Where it is to run.
    project
        The folder that relative paths in the settings start from.
    origins
        Who said what, by field of the settings.
    registries
        How registries are read; None: they cannot be, see :func:`open_registries`.
    look
        Whether to look for an equal image.

    Raises
    ------
    SettingsError
        The settings name what is not there.
    """
    kitchen = Kitchen(destination, registries)
    return kitchen.prepare(settings, needs, project=project, origins=origins, look=look)


class Kitchen:
    """Prepares images for one destination, and reads each parent once.

    Parameters
    ----------
    destination, registries
        As for :func:`prepare`.
    announce
        Told what takes long, before it begins.
    """

    def __init__(
        self,
        destination: Destination,
        registries: Registries | None,
        *,
        announce: Announce | None = None,
    ) -> None:
        self._announce = announce
        self.destination = destination
        self._registries = registries
        self._known: dict[tuple[str, str], _Known | Finding] = {}
        self.builder_name, self._engine, self._builder = choose_builder(destination, registries)

    def prepare(
        self,
        settings: DockerSettings | None,
        needs: Needs,
        *,
        project: Path,
        origins: Mapping[str, str],
        look: bool = True,
    ) -> Prepared:
        """As :func:`prepare`."""
        from upshift.images.checking.checks import check
        from upshift.images.recipes.recipe import make_ingredients

        if self.destination.parent is not None:
            settings, origins = _on_parent(self.destination.parent, settings, origins)
        ingredients = make_ingredients(
            settings, project=project, platform=self.destination.platform, origins=origins
        )
        recipe = ingredients.recipe
        parent, contents, doubt, findings = None, Contents(), None, list[Finding]()
        if recipe.parent is not None:
            known = self._known_of(recipe.parent, recipe.platform)
            if isinstance(known, Finding):
                findings.append(known)
            else:
                parent, contents, doubt = known
                findings += () if doubt is None else (doubt,)
        if ingredients.base is not None:
            findings += self._of_dockerfile(ingredients, ingredients.base, needs)
        else:
            findings += check(ingredients, parent, contents, needs)
        known_parent = parent is not None or recipe.parent is None
        builder: Builder | None = None
        if isinstance(self._builder, Finding):
            findings.append(self._builder)
        else:
            builder = self._builder
            findings += builder.problems(ingredients, parent, contents) if known_parent else ()
        prepared = Prepared(
            ingredients=ingredients,
            destination=self.destination,
            parent=parent,
            contents=contents,
            findings=tuple(dict.fromkeys(findings)),
            digest=recipe.digest(parent.digest if parent else None) if known_parent else None,
            builder_name=self.builder_name,
            builder=builder,
        )
        refused = doubt if doubt is not None and doubt.severity == ERROR else None
        return _looked_for(prepared, refused) if look or refused else prepared

    def _of_dockerfile(self, ingredients: Ingredients, base: str, needs: Needs) -> Iterator[Finding]:
        """What speaks against the image that a Dockerfile builds on; what it does to that is not known."""
        from upshift.images.checking.checks import check

        anyway = check(ingredients, None, Contents(), needs)
        known = self._known_of(base, ingredients.recipe.platform)
        if isinstance(known, Finding):
            yield attrs.evolve(known, severity=WARNING, field="dockerfile")
            yield from anyway
            return
        for finding in check(ingredients, known[0], known[1], needs):
            if finding in anyway:
                yield finding
                continue
            evidence = filter(None, (finding.evidence, "the Dockerfile may change that"))
            yield attrs.evolve(
                finding,
                severity=WARNING if finding.severity == ERROR else finding.severity,
                field="dockerfile" if finding.field == "parent_image" else finding.field,
                evidence="; ".join(evidence),
            )

    def _known_of(self, parent: str, platform: str) -> _Known | Finding:
        key = parent, platform
        if key not in self._known:
            try:
                self._known[key] = self._read(parent, platform)
            except (ImageError, MissingExtra) as error:
                self._known[key] = finding_of(error, "parent_image")
        return self._known[key]

    def _read(self, parent: str, platform: str) -> _Known:
        from upshift.images.parents.contents import contents_of
        from upshift.images.parents.remembering import read_parent
        from upshift.images.reference import Reference

        reference = Reference.parse(parent)
        doubt = None
        here = self._engine.inspect(reference) if self._engine and self.builder_name == ENGINE else None
        if here is not None and self.destination.engine and here.platform == platform:
            found = here  # what runs there under this name is what the engine has
        else:
            try:
                if self._registries is None:
                    raise _no_registries()
                found, doubt = read_parent(self._registries, reference, platform)
            except (ImageError, MissingExtra) as error:
                if here is None:
                    self._advise(error, reference)
                    raise
                found = here
            if here is not None and doubt is not None and doubt.severity == ERROR:
                found, doubt = here, None
        contents = contents_of(
            found,
            registries=self._registries,
            engine=self._engine,
            announce=self._announce,
            thorough=self.builder_name == DAEMONLESS,  # which puts packages where they are
        )
        return found, contents, doubt

    def _advise(self, error: UpshiftError, wanted: Reference) -> None:
        """Add to an error what the engine has, where that can be built on."""
        if self.destination.engine is None or self.builder_name != ENGINE:
            return
        from upshift.images.containers.nearby import advice
        from upshift.images.registries.faults import Unavailable

        more = advice(self.destination.engine, wanted, unreachable=isinstance(error, Unavailable))
        error.fix = "\n".join(filter(None, (error.fix, more))) or None


def choose_builder(
    destination: Destination, registries: Registries | None
) -> tuple[str, ContainerEngine | None, Builder | Finding]:
    """Which builder it is, the container engine on this machine, and the builder or why there is none."""
    engine, missing = destination.engine, None
    if engine is None and destination.builder != DAEMONLESS:
        from upshift.images.containers.engine import find_engine

        try:
            engine = find_engine()
        except UpshiftError as error:
            missing = error
    if engine is not None and destination.builder != DAEMONLESS:
        from upshift.images.containers.builder import EngineBuilder

        return ENGINE, engine, EngineBuilder(engine, destination, registries)
    if destination.builder == ENGINE:
        assert missing is not None
        return ENGINE, None, finding_of(missing, "builder")
    if registries is None:
        return DAEMONLESS, engine, finding_of(_no_registries(), "builder")
    from upshift.images.daemonless.builder import DaemonlessBuilder

    return DAEMONLESS, engine, DaemonlessBuilder(destination, registries)


@contextlib.contextmanager
def open_registries() -> Iterator[Registries | None]:
    """Registries, with the credentials of this user; None: the packages that speak to them are missing."""
    try:
        from upshift.images.registries.client import Registries

        registries = Registries()
    except MissingExtra:
        yield None
        return
    with registries:
        yield registries


def finding_of(error: UpshiftError, field: str) -> Finding:
    """An error that leaves nothing to be built."""
    return Finding(severity=ERROR, field=field, what=error.what, evidence=error.why, fix=error.fix)


def refusal(prepared: Prepared) -> ImageError:
    """The error for an image with findings that are errors."""
    first, *more = prepared.errors
    why = "\n".join(filter(None, (first.evidence, *(f"{other.field}: {other.what}" for other in more))))
    return ImageError(first.what, why=why or None, fix=first.fix)


def _on_parent(
    parent: str, settings: DockerSettings | None, origins: Mapping[str, str]
) -> tuple[DockerSettings | None, Mapping[str, str]]:
    """The settings on the image that the target names, where they name none."""
    from upshift.model.settings.docker import DockerSettings

    said = settings.explicit() if settings is not None else {}
    if said.get("parent_image") is not None or said.get("dockerfile") is not None:
        return settings, origins
    return DockerSettings(**{**said, "parent_image": parent}), {**origins, "parent_image": "target"}


def _looked_for(prepared: Prepared, refused: Finding | None) -> Prepared:
    """With the equal image that is there, for which a parent that may not be read is not needed."""
    if prepared.builder is None or prepared.digest is None or {*prepared.errors} - {refused}:
        return prepared
    try:
        found = prepared.builder.find(prepared.ingredients, prepared.parent, prepared.contents)
    except (ImageError, MissingExtra) as error:
        return attrs.evolve(prepared, findings=(*prepared.findings, finding_of(error, "target_repository")))
    prepared = attrs.evolve(prepared, image=found)
    if refused is None or prepared.builds:
        return prepared
    harmless = attrs.evolve(refused, severity=WARNING)
    findings = tuple(harmless if finding == refused else finding for finding in prepared.findings)
    return attrs.evolve(prepared, findings=findings)


def _no_registries() -> MissingExtra:
    return MissingExtra(
        "an image registry has to be read, and the packages for that are not installed",
        fix="pip install 'upshift[images]'",
    )
