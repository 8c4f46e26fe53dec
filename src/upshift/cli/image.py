"""``upshift image``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from upshift.cli import options as shared
from upshift.cli.group import LazyCommand, LazyGroup

if TYPE_CHECKING:
    from upshift.engine.named_images import NamedImage

_COMMANDS = {
    "show": LazyCommand(
        "upshift.cli.image:show", "Show what images would be made of, and what is wrong with them."
    ),
    "build": LazyCommand("upshift.cli.image:build", "Build the images of a pipeline's steps."),
    "list": LazyCommand("upshift.cli.kept_images:list_images", "List the images that Upshift has built."),
    "prune": LazyCommand("upshift.cli.kept_images:prune", "Remove images that Upshift has built."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def image() -> None:
    """Show, build, list and remove the images that steps run in."""


_OF = (
    click.option("--step", "steps", metavar="STEP", multiple=True, help="Only of this step. Repeatable."),
    click.option(
        "--registry", metavar="PREFIX",
        help="An image for machines that take it from this registry, such as registry.example.org/ml, "
        "instead of one for where the steps run. Without a container engine here it is built without one.",
    ),
    click.option(
        "--builder", type=click.Choice(["engine", "daemonless"]),
        help="With --registry: what builds it. Default: the container engine here, if there is one.",
    ),
    click.option("--json", "as_json", is_flag=True, help="As JSON."),
)  # fmt: skip


def _takes_images(command: shared.C) -> shared.C:
    return shared.takes_graph(shared.with_options(_OF, command))


@click.command(cls=shared.PipelineCommand)
@_takes_images
def show(as_json: bool, **named: Any) -> int:
    """Show what images would be made of, and what is wrong with them.

    FILE is a Python file; PIPELINE is the name of the pipeline in it, needed where there are several.
    Nothing is built and nothing downloaded: the parent's manifest is read from its registry. Exits with 2
    where a run would be refused.
    """
    with _images(**named) as images:
        _tell(images, as_json=as_json)
        return 2 if any(found.prepared.errors for found in images) else 0


@click.command(cls=shared.PipelineCommand)
@_takes_images
def build(as_json: bool, **named: Any) -> int:
    """Build the images of a pipeline's steps.

    They are pushed to a registry where the steps run elsewhere. One that is there already is not built
    again. Exits with 2 where a check says that an image would not do; then none is built.
    """
    with _images(**named) as images:
        refused = [found for found in images if found.prepared.errors]
        if refused:
            _tell(refused, as_json=as_json, err=not as_json)
            return 2
        _build(images, as_json=as_json)
    return 0


@contextmanager
def _images(
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    params_from: str | None,
    target: str | None,
    steps: tuple[str, ...],
    registry: str | None,
    builder: str | None,
) -> Iterator[tuple[NamedImage, ...]]:
    from upshift.authoring.running import images_of
    from upshift.engine import RunOptions
    from upshift.errors import UsageError

    if builder and registry is None:
        raise UsageError(
            "--builder says how an image gets into a registry, and none is named",
            fix="Name it with --registry. What builds the images of a target stands in its options.",
        )
    if registry is not None and target:
        raise UsageError(
            "--registry and --on both say where the image is to run", fix="Leave one of them out."
        )
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    destination = None
    if registry is not None:
        from upshift.images.base import Destination
        from upshift.images.reference import Reference

        registry = registry.rstrip("/")
        Reference.parse(f"{registry}/upshift")  # else a mistake in it were told of each image
        destination = Destination(platform="linux/amd64", registry=registry, builder=builder)
    with images_of(
        pipeline,
        arguments,
        options=RunOptions(target=target),
        steps=steps,
        destination=destination,
        announce=shared.announce,
    ) as images:
        yield images


def _tell(images: Sequence[NamedImage], *, as_json: bool, err: bool = False) -> None:
    import json
    import sys

    from upshift.report.terminal.images import GLYPHS, image_json, show_image
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.streams import shows

    if as_json:
        told = [image_json(found.prepared, steps=found.steps, target=found.target) for found in images]
        click.echo(json.dumps(told, indent=2))
        return
    page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
    texts = [
        show_image(found.prepared, steps=found.steps, place=found.place, page=page, glyphs=glyphs)
        for found in images
    ]
    click.echo("\n\n".join(texts), err=err)


def _build(images: tuple[NamedImage, ...], *, as_json: bool) -> None:
    import json
    import sys

    import attrs

    from upshift.report.terminal.building import Building
    from upshift.report.terminal.images import in_order

    made = []
    for found in images:
        with Building(sys.stderr, found.steps) as building:
            for note in found.prepared.ingredients.notes:
                building.say(note)
            for finding in in_order(found.prepared.findings):
                building.found(finding)
            image = building.made(found.prepared.make(building.tell), was_there=not found.prepared.builds)
        made.append({"steps": list(found.steps), "target": found.target, **attrs.asdict(image)})
        if not as_json:
            click.echo(image.reference)
    if as_json:
        click.echo(json.dumps(made, indent=2))
