"""``upshift targets``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from upshift.cli.output import echo

if TYPE_CHECKING:
    from upshift.engine.checkup import Health
    from upshift.model.configuration import Configuration
    from upshift.report.doctor import Check


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def targets(as_json: bool) -> int:
    """List where steps can run, and how it is there.

    The targets of the configuration come first, then those that need none. All are asked at once; one that
    does not answer in seconds is said to be away. Exit code 1: a target of the configuration cannot be used.
    """
    import json
    import sys

    from upshift.engine.checkup import look
    from upshift.model.configuration import load_configuration
    from upshift.report.doctor.check import GLYPHS, line
    from upshift.report.terminal.layout import Page
    from upshift.report.terminal.streams import shows

    configuration = load_configuration()
    found = look(configuration)
    if as_json:
        echo(json.dumps([_as_json(one, configuration) for one in found], indent=2))
    else:
        page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
        for one in found:
            echo(line(_check(one, configuration), page, glyphs=glyphs))
    return int(any(one.configured and one.problem for one in found))


def _check(health: Health, configuration: Configuration) -> Check:
    from upshift.report.doctor import Check

    target, problem = health.target, health.problem
    about = [] if target.backend == target.name else [target.backend]
    about += ["the default"] if target.name == configuration.default_target else []
    said = problem.text if problem else "; ".join(one.text for one in health.findings[:2])
    return Check(
        group="targets",
        name=target.name,
        # A place that nobody has asked for may be missing.
        status="absent" if problem and not health.configured else "problem" if problem else "ok",
        text=f"({', '.join(about)}) {said}" if about else said,
        remedy=problem.remedy if problem and health.configured else None,
    )


def _as_json(health: Health, configuration: Configuration) -> dict[str, object]:
    import attrs

    target = health.target
    return {
        "name": target.name,
        "backend": target.backend,
        "configured": health.configured,
        "default": target.name == configuration.default_target,
        "store": configuration.store_address(target),
        "ok": health.problem is None,
        "findings": [attrs.asdict(one) for one in health.findings],
    }
