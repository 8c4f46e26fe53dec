"""The options of a target whose steps run in containers on this machine, and what a request gets there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.backends.base import Offer
from upshift.backends.docker.container import cdi_arguments, gpus_argument
from upshift.backends.local import offers
from upshift.backends.local.offers import MANNERS, manners
from upshift.backends.registry import choice_option, invalid_option, refuse_options, text_option
from upshift.backends.shapes import shared_memory_within
from upshift.errors import BackendError, ConfigError
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.images.containers.facts import NVIDIA, cdi_specifications, gpu_remedy, gpu_way, limits
from upshift.model.configuration import Target
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.sizes import format_size
from upshift.model.spec import Hardware
from upshift.model.spec.hardware import CGROUP, Device, Shortfall, enforced

if TYPE_CHECKING:
    from upshift.runtime.accelerators.vendor import Inventory

ENGINES = ("docker", "podman")
GPUS = ("runtime", "cdi")
OPTIONS = ("engine", "image", "network", "gpus", "arguments", *MANNERS)
"""Their names."""


@attrs.frozen(kw_only=True)
class Options:
    """What a target says."""

    engine: str  # ``"docker"`` or ``"podman"``
    image: str | None = None  # the image of steps that have no settings of their own
    # the network of the containers, as ``--network`` takes it; None: the engine's default
    network: str | None = None
    # how GPUs come into a container: ``"runtime"`` (``--gpus``), or ``"cdi"``; None: whichever is there
    gpus: str | None = None
    arguments: tuple[str, ...] = ()  # more arguments for ``docker run``
    wait: float  # seconds that a step waits for accelerators
    share: bool  # whether it takes accelerators that other programs work with


def read_options(
    target: Target,
    engine: str,  # the container engine where it names none
) -> Options:
    """The options of a target, checked.

    Raises
    ------
    ConfigError
        One of them is unknown, or is invalid.
    """
    if "builder" in target.options:
        raise ConfigError(
            f"target {target.name!r}: there is no option builder any more",
            why="Packages are installed in one way; an engine builds only Dockerfiles and Debian packages.",
            fix="Leave it out.",
        )
    refuse_options(target, OPTIONS)
    wait, share = manners(target)
    return Options(
        engine=choice_option(target, "engine", ENGINES) or engine,
        image=text_option(target, "image"),
        network=text_option(target, "network"),
        gpus=choice_option(target, "gpus", GPUS),
        arguments=_arguments(target),
        wait=wait,
        share=share,
    )


def refuse_missing_mounts(target: Target) -> None:
    """See that what is to be mounted is there, and goes to an absolute path.

    Raises
    ------
    ConfigError
        It is not.
    """
    for inside, outside in target.mounts.items():
        if not Path(inside).is_absolute() or ".." in Path(inside).parts:
            raise ConfigError(
                f"target {target.name!r}: mounts: {inside!r} is not an absolute path",
                fix='Write mounts = { "/data" = "/shared/data" }: the path in the step first.',
            )
        if not Path(outside).expanduser().exists():
            raise ConfigError(
                f"target {target.name!r}: mounts: {outside} is not there",
                why=f"Steps are to find it at {inside}.",
                fix="Make the folder, mount the disk, or correct the path.",
            )


def _arguments(target: Target) -> tuple[str, ...]:
    value = target.options.get("arguments", [])
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    example = 'arguments = ["--add-host", "db:10.0.0.7"]'
    raise invalid_option(target, "arguments", f"Write a list of strings: {example}.")


HIDDEN = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""For a step without GPUs, where NVIDIA's is the default runtime: images for CUDA ask it for all of them."""


class DeviceInjector:
    """Hands NVIDIA's devices to containers: by ``--gpus``, or the Container Device Interface."""

    def __init__(
        self,
        engine: ContainerEngine,
        facts: Mapping[str, Any],  # what its ``info`` says
        way: str | None,  # ``"runtime"`` or ``"cdi"``, where the user says so
        # where specifications of CDI are; default: where the engine looks
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
        fix="Generate the specification again: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml "
        "--device-name-strategy=uuid",
    )


def offer(
    request: ResourceSettings,  # what is asked for
    here: Hardware,  # CPUs and memory of this machine
    inventories: Sequence[Inventory],  # its accelerators; looked at where the request is about some
    *,
    # engine, facts: the engine, and what its ``info`` says
    engine: ContainerEngine,
    facts: Mapping[str, Any],
    injector: DeviceInjector,  # how devices come into a container
) -> Offer:
    """The request, as far as this machine and its container engine go."""
    # A container has shared memory of its own, as large as it is told to be.
    said = {name: value for name, value in request.explicit().items() if name != "shared_memory"}
    offered = offers.offer(ResourceSettings(**said), here, inventories)
    granted = offered.granted
    assert granted is not None  # this machine always gives something
    granted = attrs.evolve(granted, details={**granted.details, **enforced(CGROUP)})
    short = list(offered.shortfalls)
    for field in ("cpu_count", "memory"):
        if getattr(granted, field) is not None and field not in limits(facts):
            short.append(_unlimited(field, granted, engine))
            nothing: dict[str, Any] = {field: None}
            granted = attrs.evolve(granted, **nothing)
    most = granted.memory if granted.memory is not None else here.memory
    shared, lack = shared_memory_within(most, request.shared_memory)
    granted = attrs.evolve(granted, shared_memory=shared)
    short += lack
    problem = injector.problem({d.vendor for d in granted.gpus or () if d.vendor}) if granted.gpus else None
    if problem is not None:
        why, fix = problem
        count = len(granted.gpus or ())
        short.append(
            Shortfall(
                field="gpu_count", asked=f"{count} GPU{'s' * (count > 1)}", got="none", why=why, fix=fix
            )
        )
        return Offer(granted=attrs.evolve(granted, gpus=()), shortfalls=tuple(short))
    return Offer(granted=granted, alternatives=offered.alternatives, shortfalls=tuple(short))


def _unlimited(field: str, granted: Hardware, engine: ContainerEngine) -> Shortfall:
    value = getattr(granted, field)
    asked = f"{value:g} CPUs" if field == "cpu_count" else f"{format_size(value)} of memory"
    rootless = "Run it as root, or on a machine with cgroups of version 2." if engine.name == PODMAN else None
    return Shortfall(
        field=field,
        asked=asked,
        got="no limit",
        why=f"{engine.title} cannot limit it here",
        fix=rootless or "Give the kernel of this machine the cgroup controllers cpu and memory.",
    )
