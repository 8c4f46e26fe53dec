"""An image with the running Python for backends that run containers, and a look at what they leave behind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from engines import base_image
from upshift.errors import UpshiftError
from upshift.images.containers.engine import ContainerEngine, find_engine

LABEL = "dev.upshift.contract"
CONF = Path(__file__).parent / "engines" / "containers.conf"


class EngineWithImage:
    """An engine, and an image in it that has the running Python and nothing of Upshift.

    Parameters
    ----------
    engine
        The engine.
    environment
        What else its environment says: ``{"CUDA_VERSION": "12.4.1"}``.
    """

    def __init__(self, engine: ContainerEngine, environment: Mapping[str, str] | None = None) -> None:
        self.engine = engine
        self.label = f"{LABEL}={uuid.uuid4().hex[:12]}"
        # Podman gives names without a registry to images that it has made itself.
        self.image = f"{'localhost/' * (engine.name == 'podman')}upshift-contract:{self.label[-12:]}"
        variables = {**base_image.ENVIRONMENT, **(environment or {})}
        changes = [f"ENV {name}={value}" for name, value in variables.items()]
        changes.append(f"LABEL {self.label}")
        options = [word for change in changes for word in ("--change", change)]
        engine.run(["import", *options, str(base_image.layer()), self.image])

    def left(self) -> list[str]:
        """The containers of this image, which are removed."""
        listed = ["ps", "--all", "--filter", f"label={self.label}", "--format", "{{.Names}} {{.Status}}"]
        found = self.engine.run(listed).stdout.splitlines()
        if found:
            self.engine.run(["rm", "--force", *(line.split()[0] for line in found)], check=False)
        return found

    def remove(self) -> None:
        """Remove the image, and what was built on it, which has its label."""
        self.left()
        listed = ["images", "--all", "--quiet", "--filter", f"label={self.label}"]
        for image in dict.fromkeys(self.engine.run(listed).stdout.split()):
            self.engine.run(["rmi", "--force", image], check=False)


def engine_with_image(name: str, environment: Mapping[str, str] | None = None) -> Iterator[EngineWithImage]:
    """One engine of this machine; a test is skipped where it is not there."""
    try:
        made = EngineWithImage(find_engine(name), environment)
    except UpshiftError as error:
        pytest.skip(f"{error.in_short}: make engines")
    yield made
    made.remove()
