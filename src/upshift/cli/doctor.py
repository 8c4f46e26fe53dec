"""``upshift doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.report.doctor import Check


@click.command()
@click.argument("target", required=False)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(target: str | None, as_json: bool) -> int:
    """Check this machine: what would stop a step on GPUs, what to do.

    TARGET is where steps are to run; default: the default target. For docker and podman the engine is looked
    at, and the target's registry. Nothing is changed. Exit code 1: something is wrong that would stop a step
    on GPUs; for docker and podman, a step in a container. That there is no GPU is told, and is nothing wrong.
    """
    import json
    import sys

    from upshift.backends.registry import capabilities_of
    from upshift.errors import UsageError
    from upshift.model.configuration import load_configuration
    from upshift.report.doctor import checkup
    from upshift.report.doctor.check import GLYPHS, heading, line, verdict
    from upshift.report.doctor.check import as_json as checks_as_json
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.streams import shows

    configuration = load_configuration()
    place = configuration.target(target)
    can = capabilities_of(place)
    if can.remote and not can.images:
        raise UsageError(
            f"doctor looks at this machine, and the steps of target {place.name!r} run on others",
            fix="Run it on one of those, in a job: upshift doctor local",
        )
    page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
    checks: list[Check] = []
    for check in checkup(place, configuration, remote=can.remote):
        if not as_json:
            if not checks or checks[-1].group != check.group:
                echo(("\n" if checks else "") + heading(check.group, page))
            echo(line(check, page, glyphs=glyphs))
        checks.append(check)
    if as_json:
        echo(json.dumps(checks_as_json(place.name, checks), indent=2))
    else:
        echo("\n" + verdict(checks, page))
    return int(any(check.stops for check in checks))
