"""``upshift artifacts``: versions of the values that steps made, and their tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from upshift.cli import LazyCommand, LazyGroup, echo, echo_json
from upshift.cli import shared_options as shared

if TYPE_CHECKING:
    from upshift.runs.history.versions import ArtifactVersion

_COMMANDS = {
    "show": LazyCommand(
        "upshift.cli.artifacts:show", "Show the versions of a value, or one of them with its lineage."
    ),
    "tag": LazyCommand("upshift.cli.artifacts:tag", "Give a version a tag, such as 'production'."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, invoke_without_command=True)
@shared.as_json
@click.pass_context
def artifacts(context: click.Context, as_json: bool) -> None:
    """List values by name and version, and tag them.

    A value is named PIPELINE/STEP, or PIPELINE/STEP.OUTPUT if the step has several outputs. Each new
    result is a version of it.
    """
    if context.invoked_subcommand is not None:
        return
    from upshift.report.terminal import Page
    from upshift.report.terminal.compare import names_table
    from upshift.runs.history.versions import list_artifacts

    found = list_artifacts()
    if as_json:
        echo_json([_as_json(one) for one in found])
        return
    echo(names_table(found, Page.of_stdout()))


@click.command()
@click.argument("name", metavar="NAME[@VERSION]")
@shared.sort("an input")
@shared.as_json
def show(name: str, sort: str | None, as_json: bool) -> None:
    """Show the versions of a value, or one of them with its lineage.

    VERSION is a number, a tag, or 'latest'.
    """
    from upshift.report.terminal import Page
    from upshift.report.terminal.compare import lineage, versions_table
    from upshift.runs.history.versions import get_artifact, list_artifacts

    if "@" in name:
        one = get_artifact(name)
        if as_json:
            echo_json(_as_json(one))
            return
        echo(lineage(one, Page.of_stdout()))
        return
    found = list_artifacts(name)
    if as_json:
        echo_json([_as_json(one) for one in found])
        return
    echo(versions_table(found, Page.of_stdout(), sort=sort))


@click.command()
@click.argument("name", metavar="NAME[@VERSION]")
@click.argument("tag", metavar="TAG")
@click.option("--remove", is_flag=True, help="Remove the tag.")
def tag(name: str, tag: str, remove: bool) -> None:
    """Give a version a tag, such as 'production'. The tag moves there from any other version of the name.

    VERSION is a number or a tag. Default: the latest.
    """
    from upshift.runs.history.versions import tag_artifact

    found = tag_artifact(name, tag, remove=remove)
    echo(f"{found.name}@{found.version}: {', '.join(found.tags) or 'no tags'}")


def _as_json(one: ArtifactVersion) -> dict[str, Any]:
    from upshift.runs.history.as_json import time_text

    maker = one.maker
    return {
        "name": one.name,
        "version": one.version,
        "tags": list(one.tags),
        "type": one.type,
        "digest": one.digest,
        "bytes": one.bytes,
        "made": time_text(one.made),
        "run": one.run,
        "task": one.task,
        "code": one.code,
        "inputs": {} if maker is None else dict(maker.flat_inputs),
        "metrics": {} if maker is None else maker.metrics,
    }
