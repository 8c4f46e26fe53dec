"""What is known of a graph before anything runs: where its steps go, what they get there, what is lacking.

Everything is looked for before anything is refused, so that one error names all that is wrong. Secrets are
read to see that they are there, and forgotten at once. Images can be had by themselves, as ``upshift image``
shows and makes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.engine import RunOptions
from upshift.engine.images import MadeImage, StepImages, needs_of, origins_of, step_images
from upshift.engine.offers import Proposal, proposals, refusal
from upshift.engine.targets import OpenBackend, OpenTarget, close_targets, open_targets
from upshift.errors import NotFound, RequestRefused, UpshiftError, UsageError, suggestion
from upshift.model.configuration import Configuration, Target
from upshift.model.graph import Graph, StepDefinition
from upshift.model.settings.secrets import (
    AT_NODE,
    NeededSecret,
    at_node,
    read_secret,
    read_secrets,
    scheme_of,
)
from upshift.runtime.storage.store import Store, open_store

if TYPE_CHECKING:
    from upshift.images.base import Announce
    from upshift.images.building.builder import Destination
    from upshift.images.preparing import Prepared


@attrs.frozen(kw_only=True)
class Preflight:
    """What the steps of a graph would get if it ran now, by the names of their definitions."""

    graph: Graph  # with the digests of the images that its steps run in
    project: str
    places: Mapping[str | None, OpenTarget]  # where steps run, by what they say of it; None: the run's own
    store: Store
    offered: Mapping[str, Proposal]
    secrets: Mapping[str, tuple[NeededSecret, ...]]
    images: StepImages
    problems: tuple[UpshiftError, ...]  # for any of these nothing may run

    @property
    def target(self) -> Target:
        """The run's own."""
        return self.places[None].target


@contextlib.contextmanager
def preflight(
    graph: Graph,
    configuration: Configuration,
    options: RunOptions,
    *,
    project: str,
    inbox: SimpleQueue[Any],
    announce: Announce | None,
    look: bool = False,
    builds: bool = False,
    made: Mapping[str, MadeImage] | None = None,  # images, of an engine that was submitted with them
    open_backend: OpenBackend = open_registered,
) -> Iterator[Preflight]:
    """What a graph would get, while places and registries are open; ``look``, ``builds``: as for images."""
    places = open_targets(graph, configuration, options.target, inbox=inbox, open_backend=open_backend)
    try:
        own = places[None].target
        store = open_store(configuration.store_address(own), **configuration.store_options)
        offered = proposals(graph, places, strict=options.strict, project=project)
        refused = refusal(offered.values(), strict=options.strict)
        secrets = _needed_secrets(graph, places, project=project)
        missing = _missing_secrets(secrets.values())
        granted = {name: proposal.offer.granted for name, proposal in offered.items()}
        known = contextlib.nullcontext(StepImages(made=made or {}))
        with (
            step_images(graph, places, granted, project=project, look=look, builds=builds, announce=announce)
            if made is None
            else known
        ) as images:
            yield Preflight(
                graph=images.marked(graph),
                project=project,
                places=places,
                store=store,
                offered=offered,
                secrets=secrets,
                images=images,
                problems=tuple(filter(None, (refused, missing, images.refusal))),
            )
    finally:
        close_targets(places.values())


def takes_no_steps(found: Preflight) -> RequestRefused | None:
    """Why no engine can run this: a place takes whole pipelines only; None: all of them take steps."""
    for place in found.places.values():
        if not place.backend.capabilities.steps:
            name = place.target.name
            return RequestRefused(
                f"target {name!r} takes whole pipelines, and no step by itself",
                fix=f"Give it the whole pipeline: upshift run FILE --on {name}",
            )
    return None


def _needed_secrets(
    graph: Graph, places: Mapping[str | None, OpenTarget], *, project: str
) -> dict[str, tuple[NeededSecret, ...]]:
    """The secrets of each step that is used, by the name of its definition; paths start from the project."""
    return {
        name: _secrets_of(name, graph.steps[name], places[graph.steps[name].settings.on], project)
        for name in graph.used
        if graph.steps[name].settings.secret_sources
    }


def _missing_secrets(needed: Iterable[Iterable[NeededSecret]]) -> RequestRefused | None:
    """The error that says of every secret that a step cannot have why; None: there is no such secret."""
    problems = [s.problem for secrets in needed for s in secrets if s.problem is not None]
    if len(problems) < 2:
        return problems[0] if problems else None
    return RequestRefused(
        f"{len(problems)} secrets cannot be had",
        where=problems[0].where,
        why="\n".join(f"{problem.what} ({problem.where})" for problem in problems),
        fix="\n".join(dict.fromkeys(problem.fix for problem in problems if problem.fix)),
    )


def _secrets_of(
    step: str, definition: StepDefinition, place: OpenTarget, project: str
) -> tuple[NeededSecret, ...]:
    found = []
    for name, source in definition.settings.secret_sources.items():
        origin = definition.settings.origins.get(f"secrets.{name}")
        try:
            _look_for(name, source, place, project)
            problem = None
        except RequestRefused as error:
            problem = _named(step, error, origin or definition.location)
        found.append(NeededSecret(name=name, source=source, origin=origin, problem=problem))
    if not any(secret.problem for secret in found):
        try:
            read_secrets(at_node(definition.settings.secret_sources, there=False), project=project)
        except RequestRefused as error:  # each by itself is right, and all together are not
            found[0] = attrs.evolve(found[0], problem=_named(step, error, found[0].origin))
    return tuple(found)


def _look_for(name: str, source: str, place: OpenTarget, project: str) -> None:
    backend = place.backend
    if scheme_of(source) not in backend.capabilities.secrets:
        forms = ", ".join(f"{scheme}:…" for scheme in sorted(backend.capabilities.secrets))
        raise RequestRefused(
            f"secret {name} ({source}): backend {backend.name} cannot bring it to the step",
            fix=f"It takes {forms}." if forms else "Choose another target with --on; this one takes none.",
        )
    if scheme_of(source) not in AT_NODE:
        read_secret(name, source, project=project)


def _named(step: str, error: RequestRefused, where: str | None) -> RequestRefused:
    return RequestRefused(f"step {step}: {error.what}", where=where, fix=error.fix)


@attrs.frozen(kw_only=True)
class NamedImage:
    """One image, and who it is for."""

    steps: tuple[str, ...]
    target: str  # where: the name of a target, or a registry
    prepared: Prepared

    @property
    def place(self) -> str:
        """Where the image is to run, in words."""
        return f"{'for' if self.prepared.destination.registry == self.target else 'on'} {self.target}"


@contextlib.contextmanager
def named_images(
    graph: Graph,
    *,
    project: str,
    configuration: Configuration,
    options: RunOptions,
    steps: Sequence[str],  # that are meant; none: all of them
    destination: Destination | None,  # where the images are to run; None: on the steps' targets
    builds: bool,  # whether they may be made
    update: bool,  # whether requirements are resolved anew
    announce: Announce,
) -> Iterator[tuple[NamedImage, ...]]:
    """The images of a graph's steps, equal ones once; they can be made as long as this is open."""
    wanted = _steps(graph, steps)
    if not wanted:
        raise UsageError(
            f"pipeline {graph.pipeline} has no steps, and so no images",
            fix="Call a step in it; with these parameters it calls none.",
        )
    if destination is not None:
        with _for_destination(
            graph, wanted, destination, project=project, builds=builds, update=update, announce=announce
        ) as prepared:
            yield _grouped(prepared, dict.fromkeys(wanted, destination.registry or ""))
        return
    places = open_targets(graph, configuration, options.target, inbox=SimpleQueue())
    try:
        granted = {
            name: p.offer.granted for name, p in proposals(graph, places, strict=options.strict).items()
        }
        with step_images(
            graph,
            places,
            granted,
            project=project,
            look=True,
            builds=builds,
            update=update,
            announce=announce,
        ) as images:
            for name in wanted:
                if name in images.problems:
                    raise images.problems[name]
            found = {name: images.prepared[name] for name in wanted if name in images.prepared}
            on = {name: places[graph.steps[name].settings.on].target.name for name in wanted}
            if not found:
                targets = ", ".join(dict.fromkeys(on.values()))
                raise UsageError(
                    f"no step of {graph.pipeline} runs in an image on {targets}",
                    fix="Name a target that runs images with --on, such as --on docker, or a registry that "
                    "the image is for with --registry.",
                )
            yield _grouped(found, on)
    finally:
        close_targets(places.values())


@contextlib.contextmanager
def _for_destination(
    graph: Graph,
    steps: Sequence[str],
    destination: Destination,
    *,
    project: str,
    builds: bool,
    update: bool,
    announce: Announce | None,
) -> Iterator[dict[str, Prepared]]:
    from upshift.images.preparing import Preparer, open_registries

    with open_registries() as registries:
        preparer = Preparer(destination, registries, announce=announce, builds=builds)
        yield {
            name: preparer.prepare(
                graph.steps[name].settings.docker,
                needs_of(graph.steps[name], driver=destination.driver),
                project=Path(project),
                origins=origins_of(graph.steps[name]),
                update=update,
            )
            for name in steps
        }


def _steps(graph: Graph, steps: Sequence[str]) -> list[str]:
    """The definitions that are used, or those of them that are named, by the name of a use as well."""
    used = {node.name: node.step for node in graph.nodes}
    for name in steps:
        if name not in used and name not in used.values():
            raise NotFound(f"pipeline {graph.pipeline} has no step {name!r}", fix=suggestion(name, used))
    return list(dict.fromkeys(used.get(name, name) for name in steps or used))


def _grouped(prepared: Mapping[str, Prepared], on: Mapping[str, str]) -> tuple[NamedImage, ...]:
    groups: dict[tuple[object, ...], NamedImage] = {}
    for name, image in prepared.items():
        # Without a digest nothing says that two of them are equal but their recipes.
        same = image.digest or repr(image.ingredients.recipe)
        key = (on[name], same, image.findings)
        known = groups.get(key)
        steps = (name,) if known is None else (*known.steps, name)
        groups[key] = NamedImage(steps=steps, target=on[name], prepared=image)
    return tuple(groups.values())
