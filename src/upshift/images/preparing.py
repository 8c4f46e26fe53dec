"""What is known of an image before it is built, and then the build: :class:`Preparer`.

::

    settings ──▶ recipe ──▶ parent ──▶ what it holds ──▶ lock ──▶ checks ──▶ Prepared ── make ──▶ Image
                                                                    │
                                                       findings; with an error nothing is made

Nothing here knows a graph: the engine prepares what its steps need, ``upshift image`` what a user names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.errors import ImageError, MissingExtra, UpshiftError
from upshift.images.base import (
    ERROR,
    WARNING,
    Announce,
    Contents,
    Finding,
    Image,
    Ingredients,
    Lock,
    Needs,
    Parent,
    Progress,
    Reference,
    Tell,
)
from upshift.images.building.builder import Builder, Destination, no_registries, refuse_old_python
from upshift.images.building.packages import load_lock, resolve, save_lock
from upshift.images.cache import build_folder
from upshift.images.checks import accepted, brings_python, check, nothing_keeps, replaced, replacement
from upshift.images.containers.engine import ContainerEngine, find_engine
from upshift.images.parents.contents import contents_of, read_parent
from upshift.images.recipes.reading import hashes_split, normalized, parsed
from upshift.images.recipes.recipe import make_ingredients
from upshift.images.registries.answers import Unavailable
from upshift.images.uv import Unmet
from upshift.model.settings.docker import DockerSettings

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries

_ALIKE = 0.8
"""Similarity from which one name may be meant by another: a typo, not another version."""

_Known = tuple[Parent, Contents, "Finding | None"]
"""What is known of a parent, and why it may be out of date."""


@attrs.frozen(kw_only=True)
class Prepared:
    """An image that could be made, or is there already."""

    ingredients: Ingredients  # what it is made from
    destination: Destination  # where it is to run
    # What was read of the parent; None: only a Dockerfile knows it, or it cannot be read, which is one of the
    # findings
    parent: Parent | None
    contents: Contents  # what is known to be in the parent, or in what the Dockerfile makes
    # What the requirements were resolved to; None: there are none, or that is not known
    lock: Lock | None = None
    before: Lock | None = None  # what they were resolved to before
    findings: tuple[Finding, ...] = ()  # what was found, in the order of the checks
    # Digest of the recipe on this parent, by which an image is found; None: the parent is not known
    recipe: str | None = None
    # Digest of what is in the image, which is what results are reused for; None: it is not known
    digest: str | None = None
    # The image, if there is an equal one; None where there is none, or it was not looked for
    image: Image | None = None
    builder: Builder | None = attrs.field(default=None, repr=False, eq=False)  # what makes it

    noun = "image"

    @property
    def same(self) -> object:
        """What is equal for images that are made once: for a destination, and a name that is wanted."""
        said = self.ingredients
        return self.digest, id(self.builder), said.repository, said.tag, said.rebuild

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings for which nothing is built, and nothing runs."""
        return tuple(finding for finding in self.findings if finding.severity == ERROR)

    @property
    def builds(self) -> bool:
        """Whether making it takes more than looking it up; an equal image was looked for."""
        return self.ingredients.rebuild or self.image is None

    def make(self, tell: Tell) -> Image:
        """The image: an equal one that is there, or else a new one. What ``tell`` raises ends it."""
        if self.errors or self.builder is None:
            raise refusal(self)
        if self.lock is None and self.ingredients.recipe.requirements:
            raise ImageError("what the requirements of the image bring is not known", fix="Start again.")
        if self.image is not None and not self.ingredients.rebuild:
            return self.image
        image = self.builder.build(self.ingredients, self.parent, self.contents, self.lock, tell=tell)
        if self.lock is not None and self.recipe is not None:
            save_lock(self.recipe, self.lock)
        return image


class Preparer:
    """Prepares images for one destination, and reads each parent once.

    ``announce`` is told what takes long; ``builds`` says whether a Dockerfile may be built.
    """

    def __init__(
        self,
        destination: Destination,
        registries: Registries | None,
        *,
        announce: Announce | None = None,
        builds: bool = False,
    ) -> None:
        self.destination = destination
        self.announce = announce or (lambda text: None)
        self.builds = builds
        self._registries = registries
        self._known: dict[tuple[str, str, bool], _Known | Finding] = {}
        self._engine: ContainerEngine | UpshiftError
        try:
            self._engine = destination.engine or find_engine()
        except UpshiftError as error:
            self._engine = error
        self.builder = Builder(destination, registries, self._engine)

    def prepare(
        self,
        settings: DockerSettings | None,
        needs: Needs,
        *,
        project: Path,
        origins: Mapping[str, str],
        look: bool = True,
        update: bool = False,
    ) -> Prepared:
        """Find out what is known of one image; nothing is built."""
        if self.destination.parent is not None:
            settings, origins = _on_parent(self.destination.parent, settings, origins)
        platform = self.destination.platform
        ingredients = make_ingredients(settings, project=project, platform=platform, origins=origins)
        if update:
            ingredients = attrs.evolve(ingredients, update=True)
        return _Preparation(self, ingredients, needs).prepared(look=look)

    def known_of(self, parent: str, platform: str, *, whole: bool) -> _Known | Finding:
        """What is known of a parent, or a finding why it is not."""
        key = parent, platform, whole
        if key not in self._known:
            try:
                self._known[key] = self._read(parent, platform, whole=whole)
            except (ImageError, MissingExtra) as error:
                self._known[key] = Finding.of(error, "parent_image")
        return self._known[key]

    def _read(self, parent: str, platform: str, *, whole: bool) -> _Known:
        reference = Reference.parse(parent)
        doubt, engine = None, None if isinstance(self._engine, UpshiftError) else self._engine
        here = engine.inspect(reference) if engine is not None else None
        if here is not None and self.destination.engine is not None and here.platform == platform:
            found = here  # tasks run what this engine has under the name
        else:
            try:
                if self._registries is None:
                    raise no_registries()
                found, doubt = read_parent(self._registries, reference, platform)
            except (ImageError, MissingExtra) as error:
                if here is None or (self.destination.engine is None and here.digest != here.id):
                    self._advise(error, reference)
                    raise  # the registry's is the one that counts
                found = here
            if here is not None and doubt is not None and doubt.severity == ERROR:
                found, doubt = here, None
        contents = contents_of(
            found, registries=self._registries, engine=engine, whole=whole, announce=self.announce
        )
        return found, contents, doubt

    def _advise(self, error: UpshiftError, wanted: Reference) -> None:
        """Add to an error a similar name that the engine has, or that it may pull the image."""
        engine = self.destination.engine
        if engine is None:
            return
        more = None
        alike = get_close_matches(str(wanted), _names_in(engine), n=1, cutoff=_ALIKE)
        if alike:
            more = f"Did you mean {alike[0]}, which {engine.title} has?"
        elif isinstance(error, Unavailable):
            more = f"Or see whether {engine.title} gets it, which is used then: {engine.name} pull {wanted}"
        error.fix = "\n".join(filter(None, (error.fix, more))) or None


@attrs.define(slots=False)
class _Preparation:
    _preparer: Preparer
    _ingredients: Ingredients
    _needs: Needs
    _parent: Parent | None = None
    _contents: Contents = Contents()
    _doubt: Finding | None = None
    _findings: list[Finding] = attrs.field(factory=list)
    _lock: Lock | None = None
    _before: Lock | None = None
    _image: Image | None = None

    @property
    def _builder(self) -> Builder:
        return self._preparer.builder

    def prepared(self, *, look: bool) -> Prepared:
        """Go through the picture above."""
        ingredients, recipe = self._ingredients, self._ingredients.recipe
        if recipe.parent is not None:
            known = self._preparer.known_of(recipe.parent, recipe.platform, whole=bool(recipe.requirements))
            if isinstance(known, Finding):
                self._findings.append(known)
            else:
                self._parent, self._contents, self._doubt = known
                self._findings += () if self._doubt is None else (self._doubt,)
        known_parent = self._parent is not None or recipe.parent is None
        digest = recipe.digest(self._parent.digest if self._parent else None) if known_parent else None
        if known_parent:
            self._findings += self._builder.problems(ingredients)
        self._inspect_base(digest)
        if digest is not None and not self._refused and (look or recipe.requirements or self._doubt):
            self._find(digest, look=look)
        if recipe.requirements and digest is not None and not self._refused:
            self._resolve(digest)
            if self._lock is not None:
                self._check_replaced(self._lock)
        self._check()
        self._excuse_login()
        identity = None
        if digest is not None and (self._lock is not None or not recipe.requirements):
            identity = recipe.identity(self._parent.digest if self._parent else None, self._lock)
        return Prepared(
            ingredients=ingredients,
            destination=self._builder.destination,
            parent=self._parent,
            contents=self._contents,
            lock=self._lock,
            before=self._before,
            findings=tuple(dict.fromkeys(self._findings)),
            recipe=digest,
            digest=identity,
            image=self._image,
            builder=self._builder if known_parent else None,
        )

    @property
    def _refused(self) -> bool:
        """Whether there is an error other than a refused login, which an existing image does not need."""
        return any(one.severity == ERROR and one != self._doubt for one in self._findings)

    @property
    def _by_engine(self) -> bool:
        """Whether the Python is only known once the engine has built the base."""
        recipe = self._ingredients.recipe
        brings = self._contents.python == "" and brings_python(recipe.apt_packages)
        return recipe.needs_engine and (recipe.dockerfile is not None or brings)

    def _inspect_base(self, digest: str | None) -> None:
        """Inspect the image of a Dockerfile; build it first where requirements are resolved for it."""
        if not self._by_engine or self._refused or digest is None or self._builder.engine is None:
            return
        base = self._builder.base(self._ingredients, self._parent)
        wanted = self._ingredients.recipe.requirements and load_lock(digest) is None
        if base is None and self._preparer.builds and wanted:
            named = self._ingredients.dockerfile or "the Debian packages"
            self._preparer.announce(
                f"{named}: built now, since requirements are resolved for what is in there"
            )
            try:
                base = self._builder.build_base(self._ingredients, self._parent, tell=lambda progress: None)
            except ImageError as error:
                self._findings.append(Finding.of(error, "dockerfile"))
        if base is not None:
            self._contents = contents_of(base, registries=None, engine=self._builder.engine)

    def _find(self, digest: str, *, look: bool) -> None:
        """Look for the image, and for its lock."""
        try:
            found = self._builder.find(self._ingredients, self._parent)
        except (ImageError, MissingExtra) as error:
            self._lock = load_lock(digest)
            if look or self._lock is None:
                self._findings.append(Finding.of(error, "target_repository"))
            return
        if found is not None:
            self._image = attrs.evolve(found.image, interpreter=self._contents.interpreter)
            self._lock = found.lock

    def _resolve(self, digest: str) -> None:
        """Find the lock: of the existing image, cached on this machine, or resolved now."""
        self._lock = self._before = self._lock or load_lock(digest)
        if self._lock is not None and not (self._ingredients.rebuild or self._ingredients.update):
            return
        self._lock = None
        if self._by_engine and self._contents.python is None:
            return  # the base is not built yet
        if self._doubt is not None and self._doubt.severity == ERROR:
            return
        self._findings += self._builder.unresolvable(self._ingredients, self._parent, self._contents)
        if self._refused:
            return
        try:
            self._lock = self._resolved(())
        except (ImageError, MissingExtra) as error:
            self._findings.append(Finding.of(error, "requirements"))
            return
        save_lock(digest, self._lock)
        if self._lock != self._before:
            self._image = None

    def _check_replaced(self, lock: Lock) -> None:
        """Whether requirements replace a framework that the parent is chosen for."""
        lines = (line for line in self._ingredients.recipe.requirements if not line.startswith("-"))
        asked = {normalized(one.name): str(one) for line in lines if (one := parsed(hashes_split(line)[0]))}
        for name, (old, new) in replaced(self._contents.packages or {}, lock).items():
            finding = accepted(replacement(name, old, new, asked=asked.get(name)), self._ingredients)
            if finding.severity == ERROR:
                try:
                    finding = replacement(name, old, new, asked=None, keeping=self._resolved((name,)))
                except Unmet:
                    finding = nothing_keeps(finding, name, old)
                except (ImageError, MissingExtra):  # no index answers
                    pass
            self._findings.append(finding)

    def _resolved(self, kept: tuple[str, ...]) -> Lock:
        ingredients = self._ingredients
        with build_folder() as folder:
            return resolve(
                ingredients.recipe,
                ingredients.paths,
                self._contents,
                folder,
                tell=_slowly(lambda: self._preparer.announce("requirements of an image are being resolved")),
                where=ingredients.origins.get("requirements"),
                kept=kept,
            )

    def _check(self) -> None:
        """Run the checks; before a Dockerfile is built, those on its base are warnings."""
        ingredients, needs = self._ingredients, self._needs
        if ingredients.base is None or self._contents.python is not None:
            if ingredients.recipe.dockerfile is not None:
                try:
                    refuse_old_python(ingredients, self._contents)
                except ImageError as error:
                    self._findings.append(Finding.of(error, "dockerfile"))
                    return
            self._findings += check(ingredients, self._parent, self._contents, self._lock, needs)
            return
        anyway = check(ingredients, None, Contents(), Lock(), needs)
        known = self._preparer.known_of(ingredients.base, ingredients.recipe.platform, whole=False)
        if isinstance(known, Finding):
            self._findings.append(attrs.evolve(known, severity=WARNING, field="dockerfile"))
            self._findings += anyway
            return
        for finding in check(ingredients, known[0], known[1], Lock(), needs):
            if finding in anyway:
                self._findings.append(finding)
                continue
            evidence = filter(None, (finding.evidence, "the Dockerfile may change that"))
            self._findings.append(
                attrs.evolve(
                    finding,
                    severity=WARNING if finding.severity == ERROR else finding.severity,
                    field="dockerfile" if finding.field == "parent_image" else finding.field,
                    evidence="; ".join(evidence),
                )
            )

    def _excuse_login(self) -> None:
        """A refused login is a warning where the image exists, since its parent is not needed."""
        doubt = self._doubt
        if doubt is None or self._image is None or self._ingredients.rebuild:
            return
        harmless = attrs.evolve(doubt, severity=WARNING)
        self._findings = [harmless if finding == doubt else finding for finding in self._findings]


@contextlib.contextmanager
def open_registries() -> Iterator[Registries | None]:
    """Registries, with the credentials of this user; None: the packages for them are not installed."""
    try:
        from upshift.images.registries.client import Registries

        registries = Registries()
    except MissingExtra:
        yield None
        return
    with registries:
        yield registries


def refusal(prepared: Prepared) -> ImageError:
    """The error for an image with findings that are errors."""
    first, *more = prepared.errors
    why = "\n".join(filter(None, (first.evidence, *(f"{other.field}: {other.what}" for other in more))))
    return ImageError(first.what, why=why or None, fix=first.fix)


def _names_in(engine: ContainerEngine) -> list[str]:
    listed = engine.run(["images", "--format", "{{.Repository}}:{{.Tag}}"], check=False).stdout.split()
    found = []
    for name in listed:
        if "<none>" not in name:
            with contextlib.suppress(ImageError):  # an engine's own words for it
                found.append(str(Reference.parse(name.removeprefix("localhost/"))))
    return found


def _slowly(announce: Callable[[], None]) -> Tell:
    """Progress that is announced once, after a second."""
    began, told = time.monotonic(), False

    def tell(progress: Progress) -> None:
        nonlocal told
        if not told and time.monotonic() - began > 1.0:
            told = True
            announce()

    return tell


def _on_parent(
    parent: str, settings: DockerSettings | None, origins: Mapping[str, str]
) -> tuple[DockerSettings | None, Mapping[str, str]]:
    """The settings with the target's image as parent, where they name none."""
    said = settings.explicit() if settings is not None else {}
    if said.get("parent_image") is not None or said.get("dockerfile") is not None:
        return settings, origins
    return DockerSettings(**{**said, "parent_image": parent}), {**origins, "parent_image": "target"}
