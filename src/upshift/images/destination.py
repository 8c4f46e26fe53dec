"""Where a backend takes its images from: :class:`Destination`."""

from __future__ import annotations

import attrs

from upshift.images.containers.engine import ContainerEngine


@attrs.frozen(kw_only=True)
class Destination:
    """Where a backend takes its images from.

    Parameters
    ----------
    platform
        What its machines run: ``linux/amd64``.
    engine
        The container engine on this machine that runs the tasks; None: they run elsewhere, and take
        images from the registry.
    registry
        Registry and prefix, as the target has it: ``registry.example.org/ml``.
    driver
        Version of NVIDIA's driver there, where it is known.
    parent
        The image to build on for steps that name none, where the target says so; None: the official slim
        Python.
    """

    platform: str
    engine: ContainerEngine | None = None
    registry: str | None = None
    driver: str | None = None
    parent: str | None = None
