"""``upshift doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.backends.base import Finding
    from upshift.report.doctor import Check


@click.command()
@click.argument("target", required=False)
@click.option("--submit", is_flag=True, help="Run a trivial step there, too, and say what becomes of it.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(target: str | None, submit: bool, as_json: bool) -> int:
    """Check a target: what would stop a step there, and what to do.

    TARGET is where steps are to run; default: the default target. Of this machine the devices are looked at;
    for docker and podman the engine, and the target's registry; of a cluster access, queue and devices.
    Nothing is changed; with --submit a trivial step runs there, and its run is recorded.

    Exit code 1: something is wrong that would stop a step on GPUs; for docker and podman, a step in a
    container; for a cluster, any step. That there is no GPU is told, and is nothing wrong.
    """
    import json
    import sys

    from upshift.backends.registry import capabilities_of
    from upshift.images.containers.engine import NAMES
    from upshift.model.configuration import load_configuration
    from upshift.report.doctor import checkup
    from upshift.report.doctor.check import GLYPHS, OF_TARGET, TRIAL, heading, line, verdict
    from upshift.report.doctor.check import as_json as checks_as_json
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.streams import shows

    configuration = load_configuration()
    place = configuration.target(target)
    can = capabilities_of(place)
    page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
    checks: list[Check] = []

    def tell(check: Check) -> None:
        if not as_json:
            if not checks or checks[-1].group != check.group:
                echo(("\n" if checks else "") + heading(check.group, page))
            echo(line(check, page, glyphs=glyphs))
        checks.append(check)

    for check in checkup(place, configuration, remote=can.remote):
        tell(check)
    if can.remote and place.backend not in NAMES:
        from upshift.engine.checkup import findings

        for found in findings(place, configuration):
            tell(_check(f"{OF_TARGET}{place.name}", found))
    if submit and not any(check.stops and check.group.startswith(OF_TARGET) for check in checks):
        from upshift.authoring.trial import trial

        trial(place.name, lambda found: tell(_check(TRIAL, found)))
    if as_json:
        echo(json.dumps(checks_as_json(place.name, checks), indent=2))
    else:
        echo("\n" + verdict(checks, page))
    return int(any(check.stops for check in checks))


def _check(group: str, found: Finding) -> Check:
    from upshift.report.doctor import Check

    return Check(group=group, name=found.name, status=found.status, text=found.text, remedy=found.remedy)
