"""A checkup of this machine: what is there, what would stop a step, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from upshift.images.containers.engine import NAMES
from upshift.model.configuration import Configuration, Target
from upshift.report.doctor.check import Check
from upshift.report.doctor.devices import devices
from upshift.report.doctor.machine import machine

__all__ = ["Check", "checkup"]


def checkup(target: Target, configuration: Configuration, *, remote: bool) -> Iterator[Check]:
    """Look at one thing after the other; the last ones take seconds."""
    here = target.backend in NAMES
    yield from machine(target, configuration, remote=remote and not here)
    if here or not remote:
        yield from devices(environment=not here)
    if here or target.registry:
        from upshift.report.doctor.containers import containers

        yield from containers(target)
