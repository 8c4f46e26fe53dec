"""``upshift image``: show, build, lock, list and remove images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from upshift.cli import LazyCommand, LazyGroup, echo, echo_json
from upshift.cli import shared_options as shared

if TYPE_CHECKING:
    from upshift.engine.preflight import NamedImage
    from upshift.images.built import BuiltImage
    from upshift.images.containers.engine import ContainerEngine

    Removal = Callable[[BuiltImage], None]
    Place = tuple[list[BuiltImage], Removal]

_COMMANDS = {
    "show": LazyCommand("upshift.cli.image:show", "Show the contents of images, and problems with them."),
    "build": LazyCommand("upshift.cli.image:build", "Build the images of a pipeline's steps."),
    "lock": LazyCommand("upshift.cli.image:lock", "Print the resolved requirements."),
    "update": LazyCommand("upshift.cli.image:update", "Resolve requirements again, and build."),
    "list": LazyCommand("upshift.cli.image:list_images", "List the images that Upshift has built."),
    "prune": LazyCommand("upshift.cli.image:prune", "Remove images that Upshift has built."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def image() -> None:
    """Show, build, update, list and remove the images that steps run in."""


_OF = (
    click.option("--step", "steps", metavar="STEP", multiple=True, help="Only for this step. Repeatable."),
    click.option(
        "--registry", metavar="PREFIX",
        help="Build for machines that use this registry, such as registry.example.org/ml, "
        "instead of the place where the steps run.",
    ),
)  # fmt: skip
_WHERE = (
    click.option(
        "--on", "target", metavar="TARGET",
        help="The place for images of this target: docker, podman, or a target of the configuration. "
        "Default: the container engines of this machine.",
    ),
    click.option("--registry", metavar="PREFIX", help="In this registry, such as registry.example.org/ml."),
    click.option(
        "--repository", metavar="NAME", default="upshift", show_default=True,
        help="The repository there, as in target_repository.",
    ),
)  # fmt: skip


def _takes_images(command: shared.C) -> shared.C:
    return shared.takes_graph(shared.with_options(_OF, command))


@click.command(cls=shared.PipelineCommand)
@_takes_images
@shared.as_json
def show(as_json: bool, **named: Any) -> int:
    """Show the contents of images, and problems with them.

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several.
    Nothing is built: the parent's manifest is read from its registry, and requirements are resolved with the
    index now, unless they were resolved before. Exits with 2 if a run would be refused.
    """
    with _images(**named) as images:
        _tell(images, as_json=as_json)
        return 2 if any(found.prepared.errors for found in images) else 0


@click.command(cls=shared.PipelineCommand)
@_takes_images
@shared.as_json
def build(as_json: bool, **named: Any) -> int:
    """Build the images of a pipeline's steps.

    Images for steps on other machines are pushed to a registry. An existing image is not built
    again. Exits with 2 if a check finds an unsuitable image; then none is built.
    """
    with _images(builds=True, **named) as images:
        if _refused(images, as_json=as_json):
            return 2
        _build(images, as_json=as_json)
    return 0


@click.command()
@_takes_images
@click.option("--output", "-o", metavar="FILE", type=click.Path(dir_okay=False), help="The file to write.")
def lock(output: str | None, **named: Any) -> int:
    """Print the resolved requirements.

    The output is a requirements file with versions and hashes: the packages that are installed on top of the
    parent, unchanged until the next update. To pin them for good, save the file in the project and name it in
    requirements=. Exits with 2 if a run would be refused.
    """
    from upshift.errors import UsageError

    with _images(builds=True, **named) as images:
        if _refused(images, as_json=False):
            return 2
        texts = {found.steps: found.prepared.lock.text for found in images if found.prepared.lock is not None}
    if output is not None:
        if len(texts) != 1:
            raise UsageError(
                f"{len(texts)} images have a lock", fix="Choose one: --step STEP." if texts else None
            )
        from pathlib import Path

        Path(output).write_text(next(iter(texts.values())), encoding="utf-8")
        return 0
    for steps, text in texts.items():
        echo(f"# image of {', '.join(steps)}\n{text}", nl=False)
    return 0


@click.command()
@_takes_images
def update(**named: Any) -> int:
    """Resolve requirements again, and build.

    Shows which packages change. Results that were computed with the old packages are not reused.
    In a container engine, the previous image stays without a name, for runs that still use it: 'upshift image
    prune' removes it. Exits with 2 if a check finds an unsuitable image; then none is built.
    """
    with _images(builds=True, update=True, **named) as images:
        if _refused(images, as_json=False):
            return 2
        _build(images, as_json=False, update=True)
    return 0


def _refused(images: Sequence[NamedImage], *, as_json: bool) -> bool:
    """Whether the checks of an image found an error; such images are shown."""
    refused = [found for found in images if found.prepared.errors]
    if refused:
        _tell(refused, as_json=as_json, err=not as_json)
    return bool(refused)


@contextlib.contextmanager
def _images(
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    params_from: str | None,
    target: str | None,
    steps: tuple[str, ...],
    registry: str | None,
    *,
    builds: bool = False,
    update: bool = False,
) -> Iterator[tuple[NamedImage, ...]]:
    from upshift.authoring.composing.definitions import code_of
    from upshift.authoring.running import composed
    from upshift.engine import RunOptions
    from upshift.engine.preflight import named_images
    from upshift.errors import UsageError

    if registry is not None and target:
        raise UsageError(
            "--registry and --on both set where the image is to run", fix="Leave one of them out."
        )
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    destination = None
    if registry is not None:
        from upshift.images.base import Reference
        from upshift.images.building.builder import Destination

        registry = registry.rstrip("/")
        Reference.parse(f"{registry}/upshift")  # else a mistake in it were told of each image
        destination = Destination(platform="linux/amd64", registry=registry)
    with (
        composed(pipeline, arguments, RunOptions(target=target)) as (graph, options, configuration),
        named_images(
            graph,
            project=code_of(pipeline.callee.function).project,
            configuration=configuration,
            options=options,
            steps=steps,
            destination=destination,
            builds=builds,
            update=update,
            announce=shared.announce,
        ) as images,
    ):
        yield images


def _tell(images: Sequence[NamedImage], *, as_json: bool, err: bool = False) -> None:
    import sys

    from upshift.report.terminal import Page, shows
    from upshift.report.terminal.images import GLYPHS, show_image
    from upshift.report.views.plan import image_json

    if as_json:
        told = [image_json(found.prepared, steps=found.steps, target=found.target) for found in images]
        echo_json(told)
        return
    page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
    texts = [
        show_image(found.prepared, steps=found.steps, place=found.place, page=page, glyphs=glyphs)
        for found in images
    ]
    echo("\n\n".join(texts), err=err)


def _build(images: tuple[NamedImage, ...], *, as_json: bool, update: bool = False) -> None:
    import sys

    import attrs

    from upshift.report.terminal.images import Building, changes, in_order

    made = []
    for found in images:
        with Building(sys.stderr, found.steps) as building:
            for note in found.prepared.ingredients.notes:
                building.say(note)
            for finding in in_order(found.prepared.findings):
                building.found(finding)
            if update:
                for line in changes(found.prepared):
                    building.say(line)
            image = building.made(found.prepared.make(building.tell), was_there=not found.prepared.builds)
        made.append({"steps": list(found.steps), "target": found.target, **attrs.asdict(image)})
        if not as_json:
            echo(image.reference)
    if as_json:
        echo_json(made)


def _takes_place(command: shared.C) -> shared.C:
    return shared.with_options(_WHERE, command)


@click.command("list")
@_takes_place
@shared.as_json
def list_images(target: str | None, registry: str | None, repository: str, as_json: bool) -> None:
    """List the images that Upshift has built.

    For a container engine, the list has the images of all users and projects, each with the project that
    first built it; 'another home' is another UPSHIFT_HOME. Sizes include the parent, which images share. Exit
    code 1: no container engine could be reached.
    """
    from upshift.report.terminal import Page
    from upshift.report.terminal.images import kept_json, kept_table

    with _places(target, registry, repository) as places:
        images = [image for kept, _ in places for image in kept]
    if as_json:
        echo_json(kept_json(images))
    else:
        echo(kept_table(images, Page.of_stdout()) if images else "No images.")


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@click.option(
    "--older-than", metavar="AGE", callback=shared.seconds,
    help="Only images in a container engine that were built longer ago than this: 30d, 12h, 2w.",
)  # fmt: skip
@click.option(
    "--all",
    "everybodys",
    is_flag=True,
    help="Also images built with another or an unknown UPSHIFT_HOME; in a registry, all images.",
)
@_takes_place
@shared.as_json
def prune(
    dry_run: bool,
    everybodys: bool,
    older_than: float | None,
    target: str | None,
    registry: str | None,
    repository: str,
    as_json: bool,
) -> int:
    """Remove images that Upshift has built.

    The default is images that were built with this UPSHIFT_HOME. A registry does not record who built an
    image: there, --all removes all of the repository. An image with a container stays. The next run rebuilds
    what it needs. Exit code 1: an image could not be removed, or no container engine could be reached.
    """
    import time

    from upshift.errors import ImageError, UsageError
    from upshift.report.terminal.images import kept_json, pruned_text

    if registry and older_than is not None:
        raise UsageError(
            "--older-than goes by when an image was built, which images in a registry do not tell",
            fix="Leave it out.",
        )
    removed: list[BuiltImage] = []
    stayed: dict[str, str] = {}
    others: list[BuiltImage] = []
    ageless: list[BuiltImage] = []
    failed = False
    before = None if older_than is None else time.time() - older_than
    with _places(target, registry, repository) as places:
        for kept, remove in places:
            for image in kept:
                if before is not None and image.made is not None and image.made > before:
                    continue
                if not image.ours and not everybodys:
                    others.append(image)
                    continue
                if before is not None and image.made is None:
                    ageless.append(image)
                    continue
                if image.containers:
                    stayed[image.names[0] if image.names else image.reference] = "a container is of it"
                    continue
                try:
                    if not dry_run:
                        remove(image)
                    removed.append(image)
                except ImageError as error:
                    failed = True
                    stayed[image.names[0] if image.names else image.reference] = error.in_short
    if as_json:
        told = {
            "dry_run": dry_run,
            "removed": kept_json(removed),
            "stayed": stayed,
            "others": kept_json(others),
            "ageless": kept_json(ageless),
        }
        echo_json(told)
    else:
        echo(pruned_text(removed, stayed, others, ageless, dry_run=dry_run))
    return int(failed)


@contextlib.contextmanager
def _places(target: str | None, registry: str | None, repository: str) -> Iterator[list[Place]]:
    """The images in each place, with a function that removes one; usable inside the block."""
    from functools import partial

    from upshift.errors import UsageError
    from upshift.images.base import Reference
    from upshift.images.built import (
        built_in_engine,
        built_in_registry,
        remove_from_engine,
        remove_from_registry,
    )
    from upshift.images.containers.engine import NAMES, find_engine
    from upshift.model.configuration import load_configuration

    if registry and target:
        raise UsageError("--registry and --on both set where to look", fix="Leave one of them out.")
    engines = []
    if target is not None:
        place = load_configuration().target(target)
        registry = place.registry
        if place.backend in NAMES:
            engines.append(find_engine(str(place.options.get("engine") or place.backend)))
        elif registry is None:
            raise UsageError(
                f"target {target!r} has no container engine and names no registry",
                fix="Choose another one, or name a registry with --registry.",
            )
    elif registry is None:
        engines = _engines_here()
    with contextlib.ExitStack() as stack:
        places: list[Place] = [
            (built_in_engine(engine), partial(remove_from_engine, engine)) for engine in engines
        ]
        if registry is not None:
            from upshift.images.registries.client import Registries

            registries = stack.enter_context(Registries())
            name = Reference.parse(f"{registry.rstrip('/')}/{repository}")
            places.append((built_in_registry(registries, name), partial(remove_from_registry, registries)))
        yield places


def _engines_here() -> list[ContainerEngine]:
    """The engines that answer on this machine; a line for each that is installed and does not."""
    from upshift.errors import BackendError, ImageError
    from upshift.images.containers.engine import find_engine, installed

    found, silent = [], []
    for name in installed():
        try:
            found.append(find_engine(name))
        except ImageError as error:
            silent.append(error)
    if silent and not found:
        raise BackendError(
            "no container engine of this machine can be asked for its images",
            why="\n".join(why.in_short for why in silent),
            fix="\n".join(dict.fromkeys(why.fix for why in silent if why.fix)) or None,
        )
    for why in silent:
        shared.announce(f"not looked at: {why.in_short}")
        if why.fix:
            shared.announce(f"  fix: {why.fix}")
    return found or [find_engine()]
