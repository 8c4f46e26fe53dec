"""How devices of this machine come into a container: ``--gpus``, or the Container Device Interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from upshift.backends.docker.container import cdi_arguments, gpus_argument
from upshift.errors import BackendError
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.facts import NVIDIA, cdi_specifications, gpu_remedy, gpu_way
from upshift.model.spec.hardware import Device

HIDDEN = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""For a step without GPUs, where NVIDIA's is the default runtime: images for CUDA ask it for all of them."""


class Handing:
    """Hands NVIDIA's devices to containers of one engine.

    Parameters
    ----------
    engine
        The engine.
    facts
        What its ``info`` says.
    way
        ``"runtime"`` or ``"cdi"``, where the user says so.
    folders
        Where specifications of CDI are; default: where the engine looks.
    """

    def __init__(
        self,
        engine: ContainerEngine,
        facts: Mapping[str, Any],
        way: str | None,
        folders: Sequence[str] | None = None,
    ) -> None:
        self._engine = engine
        self._facts = facts
        self._wanted = way
        self._folders = folders

    @property
    def way(self) -> str | None:
        """``"runtime"`` or ``"cdi"``; None: this engine has no way."""
        return self._wanted or gpu_way(self._engine, self._facts, self._folders)

    def problem(self, vendors: set[str]) -> tuple[str, str] | None:
        """Why containers do not get devices of these vendors, and what to do; None: they do."""
        others = vendors - {"nvidia"}
        if others:
            return (
                f"containers get NVIDIA's devices only, not those of {', '.join(sorted(others))}",
                'Run the step on this machine itself: --on local, or @step(on="local").',
            )
        if self.way is None:
            return f"{self._engine.title} has no way to give a container a GPU", gpu_remedy(self._engine)
        return None

    def arguments(self, devices: Sequence[Device]) -> tuple[str, ...]:
        """With which a container gets exactly these devices.

        Raises
        ------
        BackendError
            One of them has no name for CDI.
        """
        if self.way != "cdi":
            return gpus_argument([device.uuid or str(device.index) for device in devices])
        known = self._names()
        return cdi_arguments([f"{NVIDIA}={_named(device, known)}" for device in devices])

    def _names(self) -> set[str]:
        """What the specifications of NVIDIA's devices on this machine call them."""
        specifications = cdi_specifications(self._facts, self._folders)
        return {name for names in specifications.values() for name in names}


def _named(device: Device, known: set[str]) -> str:
    """The name of a device: its UUID where that is one, else its number."""
    for name in (device.uuid, str(device.index)):
        if name is not None and name in known:
            return name
    raise BackendError(
        f"the Container Device Interface has no name for GPU {device.index} ({device.uuid})",
        why=f"It knows {', '.join(sorted(known)) or 'none'}.",
        fix="Make the specification anew: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml "
        "--device-name-strategy=uuid",
    )
