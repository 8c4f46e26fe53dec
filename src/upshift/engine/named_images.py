"""The images of a pipeline's steps without a run of it: what ``upshift image`` shows and builds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.registry import open_backend as open_registered
from upshift.engine import RunOptions
from upshift.engine.images import needs_of, origins_of, step_images
from upshift.engine.offers import proposals
from upshift.engine.targets import OpenBackend, close_targets, open_targets
from upshift.errors import NotFound, UsageError, suggestion
from upshift.model.configuration import Configuration
from upshift.model.graph import Graph

if TYPE_CHECKING:
    from upshift.images.base import Announce
    from upshift.images.building.builder import Destination
    from upshift.images.preparing import Prepared


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
    steps: Sequence[str] = (),
    destination: Destination | None = None,
    builds: bool = False,
    update: bool = False,
    announce: Announce | None = None,
    open_backend: OpenBackend = open_registered,
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
    inbox: SimpleQueue[Any] = SimpleQueue()
    places = open_targets(graph, configuration, options.target, inbox=inbox, open_backend=open_backend)
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
