"""``upshift targets`` and ``upshift doctor``: where steps can run, and problems that would stop them."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs
import click

from upshift.backends.base import Finding
from upshift.backends.registry import capabilities_of, open_backend
from upshift.cli import echo, echo_json
from upshift.cli import shared_options as shared
from upshift.errors import UpshiftError
from upshift.model.configuration import UNCONFIGURED, Configuration, Target, load_configuration

if TYPE_CHECKING:
    from upshift.report.doctor import Check


@click.command()
@shared.as_json
def targets(as_json: bool) -> int:
    """List the targets, with their state.

    Configured targets come first, then those that need no configuration. All are checked at once; one that
    does not answer within seconds counts as away. Exit code 1: a configured target cannot be used.
    """
    from upshift.report.doctor import GLYPHS, line
    from upshift.report.terminal import Page, shows

    configuration = load_configuration()
    found = look(configuration)
    if as_json:
        echo_json([_as_json(one, configuration) for one in found])
    else:
        page, glyphs = Page.of_stdout(), shows(sys.stdout, GLYPHS)
        for one in found:
            echo(line(_target_check(one, configuration), page, glyphs=glyphs))
    return int(any(one.configured and one.problem for one in found))


def _target_check(health: Health, configuration: Configuration) -> Check:
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


PATIENCE = 5.0
"""Seconds that all targets together have to answer."""


@attrs.frozen(kw_only=True)
class Health:
    """The findings of a quick check of a target."""

    target: Target
    configured: bool  # whether the configuration names it
    findings: tuple[Finding, ...]

    @property
    def problem(self) -> Finding | None:
        """The finding that keeps steps from running there."""
        return next((found for found in self.findings if found.status == "problem"), None)


def look(configuration: Configuration, *, patience: float = PATIENCE) -> list[Health]:
    """Check the targets of the configuration, and those that need none, in this order; nothing is changed."""
    names = dict.fromkeys((*configuration.targets, *UNCONFIGURED))
    targets = [configuration.target(name) for name in names]
    found: dict[str, list[Finding]] = {name: [] for name in names}
    threads = [
        threading.Thread(
            target=lambda one=one: found[one.name].extend(findings(one, configuration)), daemon=True
        )
        for one in targets
    ]
    for thread in threads:
        thread.start()
    _wait(threads, time.monotonic() + patience)
    late = Finding(
        name="access",
        text=f"it does not answer within {patience:g} s",
        status="problem",
        remedy="upshift doctor NAME waits longer for it.",
    )
    return [
        Health(
            target=target,
            configured=target.name in configuration.targets,
            findings=(*found[target.name], *([late] if thread.is_alive() else ())),
        )
        for target, thread in zip(targets, threads, strict=True)
    ]


def findings(target: Target, configuration: Configuration) -> Iterator[Finding]:
    """The findings of a target's backend; a problem ends them."""
    name = "access"
    try:
        store = configuration.store_address(target)
        with contextlib.closing(open_backend(target, store=store, sink=lambda event: None)) as backend:
            if not hasattr(backend, "findings"):  # one of another package's, for an earlier Upshift
                yield Finding(name=name, text="it can be opened; it does not say how it is")
                return
            for found in backend.findings():
                yield found
                name = "settings"  # it was reached: what is wrong after that is how
    except UpshiftError as error:
        yield Finding(name=name, text=error.in_short, status="problem", remedy=error.fix)


def _wait(threads: Iterable[threading.Thread], until: float) -> None:
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


@click.command()
@click.argument("target", required=False)
@click.option("--submit", is_flag=True, help="Also run a trivial step there, and show the result.")
@shared.as_json
def doctor(target: str | None, submit: bool, as_json: bool) -> int:
    """Check a target for problems that would stop a step, with remedies.

    TARGET is a target of the configuration, or a backend such as local, docker or slurm; default: the default
    target. On this machine, doctor checks the devices; for docker and podman, the engine and the target's
    registry; for a cluster, access, queue and devices. Nothing is changed, except that --submit runs a
    trivial step there and records its run.

    Exit code 1: something is wrong that would stop a step on GPUs; for docker and podman, a step in a
    container; for a cluster, any step. A missing GPU is reported, and is not a problem.
    """
    from upshift.images.containers.engine import NAMES
    from upshift.report.doctor import GLYPHS, OF_TARGET, TRIAL, heading, line, verdict
    from upshift.report.doctor import as_json as checks_as_json
    from upshift.report.doctor.checkup import checkup
    from upshift.report.terminal import Page, shows

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
        for found in findings(place, configuration):
            tell(_finding_check(f"{OF_TARGET}{place.name}", found))
    if submit and not any(check.stops and check.group.startswith(OF_TARGET) for check in checks):
        from upshift.authoring.trial import trial

        trial(place.name, lambda found: tell(_finding_check(TRIAL, found)))
    if as_json:
        echo_json(checks_as_json(place.name, checks))
    else:
        echo("\n" + verdict(checks, page))
    return int(any(check.stops for check in checks))


def _finding_check(group: str, found: Finding) -> Check:
    from upshift.report.doctor import Check

    return Check(group=group, name=found.name, status=found.status, text=found.text, remedy=found.remedy)
