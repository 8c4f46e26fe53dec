"""What the tests of registries share."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from upshift.images.base import Reference
from upshift.images.registries.client import Registries
from upshift.images.registries.credentials import RegistryCredentials
from upshift.images.registries.transport import RegistryTransport

QUICK = 0.3
"""Seconds of silence after which the tests of silence give up."""


class Waits:
    """Takes the place of waiting, and remembers for how long."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def open_registries(
    *,
    home: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    insecure: tuple[str, ...] = (),
    waits: Callable[[float], None] | None = None,
) -> Registries:
    """Registries that know nothing of this machine's own logins, and never wait between two tries."""
    variables = {"HOME": str(home or "/nonexistent"), "XDG_RUNTIME_DIR": "/nonexistent", **(environ or {})}
    transport = RegistryTransport(timeout=timeout, environ=variables, wait=waits or Waits())
    return Registries(
        credentials=RegistryCredentials(environ=variables), insecure=insecure, transport=transport
    )


def log_in(home: Path, registry: str, user: str, password: str) -> Path:
    """Write a login where Docker does."""
    file = home / ".docker" / "config.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    file.write_text(json.dumps({"auths": {registry: {"auth": auth}}}))
    return file


def image(registry: str, name: str) -> Reference:
    return Reference.parse(f"{registry}/{name}")
