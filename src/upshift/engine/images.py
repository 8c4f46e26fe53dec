"""The images, or Python environments, that steps run in: :func:`step_images`. None is built here.

:mod:`upshift.engine.building` builds them while a run goes on. They are made before
(:meth:`StepImages.made_now`) where the engine of a run has nothing of this machine.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.engine.keys import PACKAGE
from upshift.engine.offers import needed_by
from upshift.engine.targets import OpenTarget
from upshift.errors import BackendError, ImageError, RequestRefused, UpshiftError
from upshift.model.graph import Graph, StepDefinition
from upshift.model.spec.hardware import Device, Hardware

if TYPE_CHECKING:
    from upshift.images.base import Announce, Finding, Image, Needs, Progress, Tell
    from upshift.images.building.builder import Destination
    from upshift.images.environments import PreparedEnvironment
    from upshift.images.preparing import Prepared
    from upshift.model.settings.accelerator import Wanted

OF_DOCKER = "docker."
"""What the origins of fields of the image's settings are found under."""


IMAGE = "IMAGE"
"""What stands for an image that nobody has made, or looked for."""


@attrs.frozen(kw_only=True)
class MadeImage:
    """An image that was made before the engine was submitted, which then asks no registry."""

    digest: str | None  # of what is in it
    reference: str
    recipe: str
    interpreter: str | None = None
    user: str | None = None
    name: str | None = None

    @property
    def noun(self) -> str:
        """What it is."""
        return "image"

    @property
    def same(self) -> object:
        """What is equal for images that are one."""
        return self

    def make(self, tell: Tell) -> Image:
        """The image, which is there."""
        from upshift.images.base import Image

        return Image(
            reference=self.reference,
            recipe=self.recipe,
            interpreter=self.interpreter,
            user=self.user,
            name=self.name,
        )


@attrs.frozen(kw_only=True)
class StepImages:
    """What is known of the images of a graph's steps, by the names of the steps' definitions."""

    prepared: Mapping[str, Prepared] = attrs.field(factory=dict)  # of each step whose place runs images
    environments: Mapping[str, PreparedEnvironment] = attrs.field(factory=dict)
    """Of each step that asks for one, in no image, where it gets it."""
    problems: Mapping[str, UpshiftError] = attrs.field(factory=dict)
    """Why nothing can be known of a step's image."""
    made: Mapping[str, MadeImage] = attrs.field(factory=dict)
    """Those that were made before the engine was submitted; there are no others then."""
    locations: Mapping[str, str | None] = attrs.field(factory=dict)
    """Where these steps are defined, as ``file:line``."""

    def made_now(self, tell: Callable[[str], None]) -> dict[str, MadeImage]:
        """The images, made now if there are no equal ones."""
        made: dict[object, Image] = {}
        found: dict[str, MadeImage] = {}
        for name, prepared in self.prepared.items():
            if prepared.same not in made:
                told: list[Progress] = []

                def begin(progress: Progress, name: str = name, told: list[Progress] = told) -> None:
                    if not told:
                        tell(f"making the image of {name}, before anything is submitted")
                    told.append(progress)

                began = time.monotonic()
                image = made[prepared.same] = prepared.make(begin)
                if told:
                    tell(f"made {image.name or image.reference} in {time.monotonic() - began:.0f} s")
            image = made[prepared.same]
            found[name] = MadeImage(digest=prepared.digest, **attrs.asdict(image, recurse=False))
        return found

    @property
    def refused(self) -> frozenset[str]:
        """The steps that cannot run for what was found."""
        return frozenset(self.problems) | {name for name, image in self.prepared.items() if image.errors}

    def is_unknown(self, step: str) -> bool:
        """Whether a step runs in an image of which not even the parent is known: nothing is equal to that."""
        return step in self.problems or (step in self.prepared and self.prepared[step].digest is None)

    @property
    def refusal(self) -> UpshiftError | None:
        """The error that names every step whose image will not do; None: all of them can be made."""
        for error in self.problems.values():
            return error
        refused = {name: image for name, image in self.prepared.items() if image.errors}
        if not refused:
            return None
        whys: dict[tuple[Finding, ...], list[str]] = {}
        for name, image in refused.items():
            whys.setdefault(image.errors, []).append(name)
        found = dict.fromkeys(error for errors in whys for error in errors)
        return ImageError(
            f"the image of {' and '.join(refused)} will not do",
            where=next(filter(None, (self._place(name) for name in refused)), None),
            why="\n".join(
                f"{', '.join(names)}: {_line(e)}" for errors, names in whys.items() for e in errors
            ),
            fix="\n".join(dict.fromkeys(error.fix for error in found if error.fix)) or None,
        )

    def _place(self, step: str) -> str | None:
        """The user's line that is to blame, as far as one is known."""
        image = self.prepared[step]
        said = (image.ingredients.origins.get(error.field) for error in image.errors)
        return next(filter(None, said), self.locations[step])

    def marked(self, graph: Graph) -> Graph:
        """The graph with the digest of its image or environment at each step that has one, and no other."""
        steps = dict(graph.steps)
        for name, definition in graph.steps.items():
            known = self.prepared.get(name) or self.environments.get(name) or self.made.get(name)
            image = known.digest if known else None
            if definition.image != image:  # that of a recorded graph was another place's, perhaps
                steps[name] = attrs.evolve(definition, image=image)
        return attrs.evolve(graph, steps=steps)

    def record(self) -> list[dict[str, object]]:
        """What each image is made from and holds, for the record of the run; plain JSON."""
        found: dict[str, dict[str, object]] = {}
        for name, image in self.prepared.items():
            if image.digest is None:
                continue
            known = found.setdefault(
                image.digest,
                {
                    "digest": image.digest,
                    "steps": [],
                    "recipe": image.recipe,
                    "parent": image.parent and str(image.parent.reference.with_digest(image.parent.digest)),
                    "lock": None if image.lock is None else image.lock.text.splitlines(),
                    "accepted": sorted(image.ingredients.accept),
                },
            )
            steps = known["steps"]
            assert isinstance(steps, list)
            steps.append(name)
        return list(found.values())

    def lines(self) -> Iterator[str]:
        """What is worth a line before a run: what the user should know, and warnings."""
        if not self.prepared:  # the forms of images are not imported for nothing
            return
        from upshift.images.base import WARNING

        told: dict[str, list[str]] = {}
        for name, image in self.prepared.items():
            texts = [
                *image.ingredients.notes,
                *(
                    f"{_line(finding)}{f'. {finding.fix}' if finding.fix else ''}"
                    for finding in image.findings
                    if finding.severity == WARNING
                ),
            ]
            for text in texts:
                told.setdefault(text, []).append(name)
        for text, names in told.items():
            yield f"{', '.join(names)}: {text}"


@contextlib.contextmanager
def step_images(
    graph: Graph,
    places: Mapping[str | None, OpenTarget],
    granted: Mapping[str, Hardware | None],
    *,
    project: str,
    look: bool = False,  # for equal images, which a run does when it needs them
    builds: bool = False,  # a Dockerfile at once, where requirements are resolved for what it makes
    update: bool = False,  # requirements, whatever they were resolved to before
    announce: Announce | None,
) -> Iterator[StepImages]:
    """What is known of the image of each step that is used, as long as registries are open."""
    on = {name: places[graph.steps[name].settings.on] for name in graph.used}
    destinations = {place: _destination(place) for place in dict.fromkeys(on.values())}
    used = {
        name: graph.steps[name]
        for name, place in on.items()
        if destinations[place] is not None
        # Where there are images and environments, what asks for neither runs in that of the run.
        and (graph.steps[name].settings.docker is not None or not place.backend.capabilities.environments)
    }
    environments, unfit = _environments(graph, on, project=project, announce=announce)
    if not used:
        yield StepImages(environments=environments, problems=unfit)
        return
    from upshift.images.preparing import Preparer, open_registries

    with open_registries() as registries:
        preparers: dict[OpenTarget, Preparer] = {}
        prepared: dict[str, Prepared] = {}
        problems: dict[str, UpshiftError] = dict(unfit)
        for name, definition in used.items():
            place = on[name]
            destination = destinations[place]
            assert destination is not None
            if isinstance(destination, UpshiftError):
                problems[name] = destination
                continue
            if place not in preparers:
                preparers[place] = Preparer(destination, registries, announce=announce, builds=builds)
            try:
                image = preparers[place].prepare(
                    definition.settings.docker,
                    needs_of(definition, granted[name], driver=destination.driver),
                    project=Path(project),
                    origins=origins_of(definition),
                    look=look,
                    update=update,
                )
                prepared[name] = _with_user(image, place.store)
            except UpshiftError as error:
                error.where = error.where or definition.location
                problems[name] = error
        yield StepImages(
            prepared=_with_clashes(prepared),
            environments={name: one for name, one in environments.items() if name not in prepared},
            problems=problems,
            locations={name: definition.location for name, definition in used.items()},
        )


def _environments(
    graph: Graph, on: Mapping[str, OpenTarget], *, project: str, announce: Announce | None
) -> tuple[dict[str, PreparedEnvironment], dict[str, UpshiftError]]:
    """The Python environments of steps where they get them; and why one cannot be had."""
    found: dict[str, PreparedEnvironment] = {}
    problems: dict[str, UpshiftError] = {}
    for name, place in on.items():
        definition = graph.steps[name]
        environment = definition.settings.python_environment
        if environment is None or not place.backend.capabilities.environments:
            continue
        where = definition.settings.origins.get("python_environment") or definition.location
        if definition.settings.docker is not None and place.backend.capabilities.images:
            problems[name] = RequestRefused(
                f"step {name} asks for an image, and for a Python environment",
                where=where,
                why="An image has its own.",
                fix="Remove one of them; DockerSettings(requirements=[…]) sets the packages of the image.",
            )
            continue
        from upshift.images.environments import prepare  # for those alone

        try:
            found[name] = prepare(
                environment, project=Path(project), minor=definition.entry.python, where=where
            )
        except UpshiftError as error:
            error.where = error.where or where
            problems[name] = error
    return found, problems


def _with_user(image: Prepared, store: str) -> Prepared:
    """An image with a finding, if the user of its containers cannot write to the store."""
    from upshift.images.checks import without_access
    from upshift.images.containers.facts import facts_of, has_our_users

    engine = image.destination.engine
    finding = without_access(image.ingredients.recipe.user, store) if engine is not None else None
    if engine is None or finding is None:
        return image
    try:
        ours = has_our_users(facts_of(engine))
    except ImageError:  # said where the engine is needed
        ours = False
    return attrs.evolve(image, findings=(*image.findings, finding)) if ours else image


def _with_clashes(prepared: Mapping[str, Prepared]) -> dict[str, Prepared]:
    """Images with a finding, where different ones are to have the same name."""
    from upshift.images.base import ERROR, Finding

    wanted: dict[tuple[object, ...], dict[str, str]] = {}
    for name, image in prepared.items():
        ingredients, there = image.ingredients, image.destination
        if ingredients.tag is not None and image.digest is not None:
            place = (there.engine and there.engine.name, there.registry)
            key = (*place, ingredients.repository, ingredients.tag)
            wanted.setdefault(key, {})[name] = image.digest
    found = dict(prepared)
    for digests in wanted.values():
        if len(set(digests.values())) > 1:
            tag = prepared[next(iter(digests))].ingredients.tag
            finding = Finding(
                severity=ERROR,
                field="image_tag",
                what=f'{" and ".join(digests)} run in different images, which would all be called "{tag}"',
                fix="Give each its own tag or target_repository, or the same settings for one image.",
            )
            for name in digests:
                found[name] = attrs.evolve(found[name], findings=(*found[name].findings, finding))
    return found


def needs_of(
    definition: StepDefinition, granted: Hardware | None = None, *, driver: str | None = None
) -> Needs:
    """What a step needs of its image."""
    from upshift.images.base import Needs

    wanted = [one for one in definition.settings.resources.alternatives if one.count]
    devices = (granted.gpus if granted else None) or ()
    vendors = {device.vendor for device in devices if device.vendor}
    vendors = vendors or {one.vendor for one in wanted if one.vendor}
    launch = definition.launch
    of_launcher = () if launch is None else needed_by(launch, on_devices=bool(wanted))
    return Needs(
        # A plain count means NVIDIA's everywhere where nobody says whose.
        gpus=frozenset(vendors or {"nvidia"}) if wanted else frozenset(),
        architectures=tuple(sorted(_architectures(devices, wanted))),
        driver=driver,
        python=definition.entry.python,
        imports=dict(_imports(definition.code)),
        launchers=frozenset(packages[0] for _, _, packages in of_launcher if len(packages) == 1),
    )


def _architectures(devices: Iterable[Device], wanted: Iterable[Wanted]) -> set[str]:
    """The architectures of the devices granted here; elsewhere, of the kinds that the request names."""
    from upshift.model.settings.kinds import members

    granted = {device.compute_capability for device in devices}
    kinds = [one.kind for one in wanted if one.kind is not None and one.kind.vendor == "nvidia"]
    named = {member.capability for kind in kinds for member in members(kind)}
    return {found for found in granted or named if found}


def origins_of(definition: StepDefinition) -> dict[str, str]:
    """Who said what of the image's settings, by field."""
    return {
        name.removeprefix(OF_DOCKER): origin
        for name, origin in definition.settings.origins.items()
        if name.startswith(OF_DOCKER)
    }


def _imports(code: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for name, version in code.items():
        if name.startswith(PACKAGE):
            distribution = re.sub(r"[-_.]+", "-", name.removeprefix(PACKAGE)).lower()
            if distribution != "upshift":
                yield distribution, version


def _destination(place: OpenTarget) -> Destination | UpshiftError | None:
    """Where a place takes its images from; why that cannot be said; None: it runs none."""
    if not place.backend.capabilities.images:
        return None
    try:
        return place.backend.destination()
    except BackendError as error:  # of what runs; this is before anything does
        return ImageError(error.what, where=error.where, why=error.why, fix=error.fix)
    except UpshiftError as error:
        return error


def _line(finding: Finding) -> str:
    what = finding.what.removesuffix(".")
    return what if finding.evidence is None else f"{what} ({finding.evidence})"
