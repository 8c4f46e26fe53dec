"""Where a backend takes its images from: :class:`Destination`."""

from __future__ import annotations

import attrs

from upshift.images.containers.engine import ContainerEngine


@attrs.frozen(kw_only=True)
class Destination:
    """Where a backend takes its images from."""

    platform: str  # what its machines run: `linux/amd64`
    # The container engine on this machine that runs the tasks; None: they run elsewhere, and take images from
    # the registry
    engine: ContainerEngine | None = None
    registry: str | None = None  # registry and prefix, as the target has it: `registry.example.org/ml`
    driver: str | None = None  # version of NVIDIA's driver there, where it is known
    # The image to build on for steps that name none, where the target says so; None: the official slim Python
    parent: str | None = None
