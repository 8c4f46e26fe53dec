"""``upshift image list`` and ``upshift image prune``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from upshift.cli import shared_options as shared
from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.kept import Kept

    Removal = Callable[[Kept], None]
    Place = tuple[list[Kept], Removal]

_WHERE = (
    click.option(
        "--on", "target", metavar="TARGET",
        help="Where this target takes its images from: docker, podman, or a target of the configuration. "
        "Default: the container engines of this machine.",
    ),
    click.option("--registry", metavar="PREFIX", help="In this registry, such as registry.example.org/ml."),
    click.option(
        "--repository", metavar="NAME", default="upshift", show_default=True,
        help="The repository there, as target_repository has it.",
    ),
)  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def _takes_place(command: shared.C) -> shared.C:
    return shared.with_options(_WHERE, command)


@click.command("list")
@_takes_place
@_JSON
def list_images(target: str | None, registry: str | None, repository: str, as_json: bool) -> None:
    """List the images that Upshift has built.

    In a container engine they are those of every user and project, with the project that had each of them
    built first; 'another home': with another UPSHIFT_HOME. A size there is with the parent's, which images
    share. Exit code 1: no container engine could be asked.
    """
    import json

    from upshift.report.terminal.images import kept_json, kept_table
    from upshift.report.terminal.layout import Page

    with _places(target, registry, repository) as places:
        images = [image for kept, _ in places for image in kept]
    if as_json:
        echo(json.dumps(kept_json(images), indent=2))
    else:
        echo(kept_table(images, Page.of_stdout()) if images else "No images.")


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; change nothing.")
@click.option(
    "--older-than", metavar="AGE", callback=shared.seconds,
    help="Only those in a container engine that were built longer ago than this: 30d, 12h, 2w.",
)  # fmt: skip
@click.option(
    "--all",
    "everybodys",
    is_flag=True,
    help="Also those that another UPSHIFT_HOME, or nobody known, had built: in a registry all.",
)
@_takes_place
@_JSON
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

    By default those that were built with this UPSHIFT_HOME. Images in a registry do not tell who had them
    built: --all removes all of the repository. An image with a container stays. The next run rebuilds what it
    needs. Exit code 1: an image could not be removed, or no container engine could be asked.
    """
    import json
    import time

    from upshift.errors import ImageError, UsageError
    from upshift.report.terminal.images import kept_json, pruned_text

    if registry and older_than is not None:
        raise UsageError(
            "--older-than goes by when an image was built, which images in a registry do not tell",
            fix="Leave it out.",
        )
    removed: list[Kept] = []
    stayed: dict[str, str] = {}
    others: list[Kept] = []
    ageless: list[Kept] = []
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
        echo(json.dumps(told, indent=2))
    else:
        echo(pruned_text(removed, stayed, others, ageless, dry_run=dry_run))
    return int(failed)


@contextlib.contextmanager
def _places(target: str | None, registry: str | None, repository: str) -> Iterator[list[Place]]:
    """What is in each place, and what removes it there, as long as this is open."""
    from functools import partial

    from upshift.errors import UsageError
    from upshift.images.containers.engine import NAMES, find_engine
    from upshift.images.kept import kept_in_engine, kept_in_registry, remove_from_engine, remove_from_registry
    from upshift.images.reference import Reference
    from upshift.model.configuration import load_configuration

    if registry and target:
        raise UsageError("--registry and --on both say where to look", fix="Leave one of them out.")
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
            (kept_in_engine(engine), partial(remove_from_engine, engine)) for engine in engines
        ]
        if registry is not None:
            from upshift.images.registries.client import Registries

            registries = stack.enter_context(Registries())
            name = Reference.parse(f"{registry.rstrip('/')}/{repository}")
            places.append((kept_in_registry(registries, name), partial(remove_from_registry, registries)))
        yield places


def _engines_here() -> list[ContainerEngine]:
    """The engines that work on this machine; a line for each that is installed and does not."""
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
