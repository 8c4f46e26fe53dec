"""The backend ``slurm``: a target's options, its images, and an engine on a node."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, ClassVar

import attrs

from upshift.backends.base import DEVICES, Capabilities, Finding, Sink
from upshift.backends.cluster import ClusterBackend
from upshift.backends.engines import Engines
from upshift.backends.registry import choice_option, options_of
from upshift.backends.scheduler import Reach
from upshift.backends.slurm.cluster import PATIENCE, Login, Slurm
from upshift.backends.slurm.script import KINDS, Containers
from upshift.errors import ConfigError
from upshift.model.configuration import Target, home
from upshift.model.settings.docker_fields import THIS_PLATFORM
from upshift.model.settings.slurm import SlurmSettings
from upshift.model.spec import TaskSpec

if TYPE_CHECKING:
    from upshift.images.building.builder import Destination


class SlurmBackend(ClusterBackend):
    """Runs tasks as jobs of Slurm's."""

    name: ClassVar[str] = "slurm"
    settings: ClassVar[type] = SlurmSettings
    capabilities: Capabilities = Capabilities(
        fields=DEVICES | {"cpu_count", "memory", "disk", "num_nodes"},
        secrets=frozenset({"env", "file"}),
        images=True,
        environments=True,
        buckets=True,
    )

    def __init__(self, target: Target, *, store: str, sink: Sink) -> None:
        kind = choice_option(target, "containers", KINDS)
        login = _login_of(target, store)
        if kind is None and login is None:
            kind = _found_containers()
        options = options_of(
            target,
            SlurmSettings,
            own=("containers", "detach", "ssh"),
            mounts=kind is not None,
        )
        if re.search(r"[\"'\\\n]", store):
            raise ConfigError(
                f"target {target.name!r}: the path of its store has a quote or a backslash: {store}",
                why="The scripts of Slurm's jobs name it.",
                fix="Name another folder: store = …",
            )
        slurm = Slurm(login=login)
        if kind is not None:
            folders = [str(home()), *([] if "://" in store else [store])]
            mounts = {**{folder: folder for folder in folders}, **target.mounts}
            slurm.containers = Containers(kind=kind, home=str(home()), mounts=mounts)
        else:
            self.capabilities = attrs.evolve(type(self).capabilities, images=False)
        self._registry = target.registry
        super().__init__(slurm, name=self.name, store=store, sink=sink, options=options, arrays=slurm)
        self._slurm = slurm
        self.engines = Engines(
            target,
            slurm,
            SlurmSettings,
            options,
            private=True,
            complete=slurm.for_engine,
            seen=self._seen,
        )
        self._ssh = target.options.get("ssh")

    def _seen(self, target: Target) -> Target:
        """A target as an engine on a node has it: the commands are there, and need no ``ssh``."""
        if target.backend != self.name or target.options.get("ssh") != self._ssh:
            return target
        options = {name: value for name, value in target.options.items() if name != "ssh"}
        return attrs.evolve(target, options=options)

    def reach(self, spec: TaskSpec) -> Reach:
        """Folders of this machine, in an image under their own paths, with the Python of the image."""
        return Reach(python=spec.interpreter or ("python3" if spec.image else None))

    def destination(self) -> Destination | None:
        """The registry of the target, if the cluster runs containers."""
        if self._slurm.containers is None:
            return None
        from upshift.images.building.builder import Destination

        return Destination(platform=THIS_PLATFORM, registry=self._registry)

    def images(self) -> Finding:
        """What steps with an image run in."""
        if self._slurm.containers is None:
            return super().images()
        where = f", images in {self._registry}" if self._registry else ", images that are there already"
        return Finding(name="images", text=f"by {self._slurm.containers.kind}{where}")


def _login_of(target: Target, store: str) -> Login | None:
    """The login node that a target names.

    Raises
    ------
    ConfigError
        That makes no sense, or nodes would not see the store.
    """
    address = target.options.get("ssh")
    if address is None:
        return None
    owner = f"target {target.name!r}"
    if not isinstance(address, str) or not re.fullmatch(r"[^\s-]\S*", address):
        raise ConfigError(
            f"{owner}: ssh = {address!r} is invalid",
            fix='Write ssh = "ann@login.example.org", or a Host of ~/.ssh/config.',
        )
    if "://" in store:
        raise ConfigError(
            f"{owner}: its store is {store}, and its jobs are submitted through ssh",
            why="What a job prints before it works goes to a folder that this machine sees, too.",
            fix='Name a folder that both see: store = "/shared/upshift".',
        )
    return Login(address)


def _found_containers() -> str | None:
    """What this machine, and so its nodes, runs containers with; Docker and Podman are to be named."""
    if shutil.which("srun") is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(["srun", "--help"], capture_output=True, text=True, timeout=PATIENCE)
        if "--container-image" in told.stdout:
            return "pyxis"
    return "apptainer" if shutil.which("apptainer") else None
