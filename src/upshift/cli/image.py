"""``upshift image``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from upshift.cli import shared_options as shared
from upshift.cli.group import LazyCommand, LazyGroup
from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.engine.named_images import NamedImage

_COMMANDS = {
    "show": LazyCommand(
        "upshift.cli.image:show", "Show what images would be made of, and what is wrong with them."
    ),
    "build": LazyCommand("upshift.cli.image:build", "Build the images of a pipeline's steps."),
    "lock": LazyCommand("upshift.cli.image:lock", "Print what requirements were resolved to."),
    "update": LazyCommand("upshift.cli.image:update", "Resolve requirements again, and build."),
    "list": LazyCommand("upshift.cli.kept_images:list_images", "List the images that Upshift has built."),
    "prune": LazyCommand("upshift.cli.kept_images:prune", "Remove images that Upshift has built."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def image() -> None:
    """Show, build, update, list and remove the images that steps run in."""


_OF = (
    click.option("--step", "steps", metavar="STEP", multiple=True, help="Only of this step. Repeatable."),
    click.option(
        "--registry", metavar="PREFIX",
        help="An image for machines that take it from this registry, such as registry.example.org/ml, "
        "instead of one for where the steps run.",
    ),
)  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def _takes_images(command: shared.C) -> shared.C:
    return shared.takes_graph(shared.with_options(_OF, command))


@click.command(cls=shared.PipelineCommand)
@_takes_images
@_JSON
def show(as_json: bool, **named: Any) -> int:
    """Show what images would be made of, and what is wrong with them.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    Nothing is built: the parent's manifest is read from its registry, and requirements are resolved as an
    index has them now, unless that was done before. Exits with 2 where a run would be refused.
    """
    with _images(**named) as images:
        _tell(images, as_json=as_json)
        return 2 if any(found.prepared.errors for found in images) else 0


@click.command(cls=shared.PipelineCommand)
@_takes_images
@_JSON
def build(as_json: bool, **named: Any) -> int:
    """Build the images of a pipeline's steps.

    They are pushed to a registry where the steps run elsewhere. One that is there already is not built
    again. Exits with 2 where a check says that an image would not do; then none is built.
    """
    with _images(builds=True, **named) as images:
        if _refused(images, as_json=as_json):
            return 2
        _build(images, as_json=as_json)
    return 0


@click.command()
@_takes_images
@click.option("--output", "-o", metavar="FILE", type=click.Path(dir_okay=False), help="Write it there.")
def lock(output: str | None, **named: Any) -> int:
    """Print what requirements were resolved to.

    That is a requirements file with versions and hashes: what is installed on top of the parent, the same as
    long as nobody asks for an update. Saved in the project and named by requirements=, it stays the same for
    ever. Exits with 2 where a run would be refused.
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

    Says which packages change. Results that were made with other packages are not reused with the new ones.
    In a container engine the image before stays without a name, for runs that still use it: 'upshift image
    prune' removes it. Exits with 2 where a check says that an image would not do; then none is built.
    """
    with _images(builds=True, update=True, **named) as images:
        if _refused(images, as_json=False):
            return 2
        _build(images, as_json=False, update=True)
    return 0


def _refused(images: Sequence[NamedImage], *, as_json: bool) -> bool:
    """Whether an image will not do; those are told."""
    refused = [found for found in images if found.prepared.errors]
    if refused:
        _tell(refused, as_json=as_json, err=not as_json)
    return bool(refused)


@contextmanager
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
    from upshift.authoring.running import images_of
    from upshift.engine import RunOptions
    from upshift.errors import UsageError

    if registry is not None and target:
        raise UsageError(
            "--registry and --on both say where the image is to run", fix="Leave one of them out."
        )
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    destination = None
    if registry is not None:
        from upshift.images.building.builder import Destination
        from upshift.images.reference import Reference

        registry = registry.rstrip("/")
        Reference.parse(f"{registry}/upshift")  # else a mistake in it were told of each image
        destination = Destination(platform="linux/amd64", registry=registry)
    with images_of(
        pipeline,
        arguments,
        options=RunOptions(target=target),
        steps=steps,
        destination=destination,
        builds=builds,
        update=update,
        announce=shared.announce,
    ) as images:
        yield images


def _tell(images: Sequence[NamedImage], *, as_json: bool, err: bool = False) -> None:
    import json
    import sys

    from upshift.report.planned import image_json
    from upshift.report.terminal.images import GLYPHS, show_image
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.streams import shows

    if as_json:
        told = [image_json(found.prepared, steps=found.steps, target=found.target) for found in images]
        echo(json.dumps(told, indent=2))
        return
    page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
    texts = [
        show_image(found.prepared, steps=found.steps, place=found.place, page=page, glyphs=glyphs)
        for found in images
    ]
    echo("\n\n".join(texts), err=err)


def _build(images: tuple[NamedImage, ...], *, as_json: bool, update: bool = False) -> None:
    import json
    import sys

    import attrs

    from upshift.report.terminal.building import Building
    from upshift.report.terminal.images import changes, in_order

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
        echo(json.dumps(made, indent=2))
