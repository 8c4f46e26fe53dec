"""A quick look at every target at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

import attrs

from upshift.backends.base import Finding
from upshift.backends.registry import open_backend
from upshift.errors import UpshiftError
from upshift.model.configuration import UNCONFIGURED, Configuration, Target

PATIENCE = 5.0
"""Seconds for all of them."""


@attrs.frozen(kw_only=True)
class Health:
    """What a quick look at a target has found."""

    target: Target
    configured: bool  # whether the configuration names it
    findings: tuple[Finding, ...]

    @property
    def problem(self) -> Finding | None:
        """What keeps steps from running there."""
        return next((found for found in self.findings if found.status == "problem"), None)


def findings(target: Target, configuration: Configuration) -> Iterator[Finding]:
    """What the backend of a target finds; what is in the way is the last of it."""
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


def look(configuration: Configuration, *, patience: float = PATIENCE) -> list[Health]:
    """The targets of the configuration, and those that need none, in this order; nothing is changed."""
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


def _wait(threads: Iterable[threading.Thread], until: float) -> None:
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
