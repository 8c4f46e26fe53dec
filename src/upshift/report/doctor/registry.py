"""The part of a checkup that looks at an image registry: who one is there, and whether it takes images."""

from __future__ import annotations

from collections.abc import Iterator

from upshift.errors import ImageError, MissingExtra
from upshift.images.reference import DEFAULT_REPOSITORY, Reference
from upshift.images.registries.credentials import Credentials
from upshift.report.doctor.check import Check, Status

_PATIENCE = 10.0
"""Seconds that the registry may be silent."""


def registry(prefix: str) -> Iterator[Check]:
    """Look at a registry.

    Parameters
    ----------
    prefix
        As a target has it: ``registry.example.org/ml``.
    """
    try:
        reference = Reference.parse(f"{prefix.rstrip('/')}/{DEFAULT_REPOSITORY}")
    except ImageError as error:
        yield _check("registry", error.in_short, status="problem", remedy=error.fix)
        return
    found = Credentials().find(reference.registry, reference.repository)
    for problem in found.problems:
        yield _check("credentials", problem, status="warning")
    where = f"from {found.login.source}" if found.login else "none"
    looked = "" if found.login or not found.looked else f", looked for in {', '.join(found.looked)}"
    yield _check("credentials", f"{where}, for {reference.registry}{looked}")
    yield _writable(reference)


def _check(name: str, text: str, *, status: Status = "ok", remedy: str | None = None) -> Check:
    return Check(group="registry", name=name, status=status, text=text, remedy=remedy)


def _writable(reference: Reference) -> Check:
    try:
        from upshift.images.registries.client import Registries

        with Registries(timeout=_PATIENCE) as registries:
            registries.check_writable(reference)
    except (ImageError, MissingExtra) as error:
        return _check("registry", error.in_short, status="problem", remedy=error.fix)
    return _check("registry", f"{reference.name} can be pushed to")
