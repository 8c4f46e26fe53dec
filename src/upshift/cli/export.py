"""``upshift export``: a pipeline as a definition for Kubeflow or SkyPilot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from upshift.cli import LazyCommand, LazyGroup, echo
from upshift.cli import shared_options as shared

C = TypeVar("C", bound=Callable[..., Any])

_COMMANDS = {
    "kubeflow": LazyCommand(
        "upshift.cli.export:kubeflow", "Write a pipeline for Kubeflow Pipelines, version 2."
    ),
    "skypilot": LazyCommand(
        "upshift.cli.export:skypilot", "Write a pipeline as a chain of SkyPilot's tasks, for sky jobs launch."
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def export() -> None:
    """Write a pipeline in the form of another tool: Kubeflow, SkyPilot.

    The other tool then starts the steps.
    """


def _takes_pipeline(command: C) -> C:
    """Add the options of a pipeline, as for a run, and of the output."""
    options = (
        shared.takes_graph,
        shared.decorators,
        shared.strict("Default: strict."),
        click.option(
            "--output", "-o", metavar="FILE", type=click.Path(dir_okay=False), help="The file to write."
        ),
        click.option(
            "-t", "--tag", "tags", metavar="TAG", multiple=True, help="A tag of its runs. Repeatable."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(cls=shared.PipelineCommand)
@_takes_pipeline
def kubeflow(**said: Any) -> None:
    """Write a pipeline for Kubeflow Pipelines, version 2.

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several. Without
    --on, the target is the only one of the configuration with the backend kubeflow. Images are built and
    pushed; code and everything else that pods need goes into the target's bucket. Nothing runs.
    """
    _export("kubeflow", **said)


@click.command(cls=shared.PipelineCommand)
@_takes_pipeline
def skypilot(**said: Any) -> None:
    """Write a pipeline as a chain of SkyPilot's tasks, for sky jobs launch.

    FILE is a Python file; PIPELINE is the name of a pipeline in it, required if there are several. Without
    --on, the target is the only one of the configuration with the backend skypilot. Images are built and
    pushed; code and what else machines need goes into the target's bucket. Nothing runs, and SkyPilot need
    not be installed.
    """
    _export("skypilot", **said)


def _export(
    tool: str,
    *,
    file: str,
    params: tuple[str, ...],
    params_file: str | None,
    params_from: str | None,
    target: str | None,
    decorators: tuple[str, ...],
    strict: bool | None,
    output: str | None,
    tags: tuple[str, ...],
) -> None:
    pipeline, arguments = shared.named_pipeline(file, params, params_file, params_from)
    from upshift.authoring import exporting
    from upshift.engine import RunOptions

    if decorators:
        from upshift.authoring.flow.step_decorators import with_decorators

        pipeline = with_decorators(pipeline, decorators)
    text = exporting.export(
        pipeline,
        arguments,
        tool,
        options=RunOptions(target=target, strict=strict, tags=tags),
        announce=shared.announce,
    )
    if output is None:
        echo(text, nl=False)
        return
    Path(output).write_text(text, encoding="utf-8")
    echo(f"wrote {output}", err=True)
