"""What a container engine can do, by its ``info`` and by files on this machine.

Sources, read in November 2026: docs.docker.com, 'Access an NVIDIA GPU'; NVIDIA Container Toolkit, 'Support
for Container Device Interface'; the CDI specification, which names the folders of specifications.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from upshift.errors import ImageError
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.runtime.accelerators.files import device_root

CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
"""Where specifications of the Container Device Interface are, below the folder that has ``dev``."""
NVIDIA = "nvidia.com/gpu"
"""What specifications of the Container Device Interface call NVIDIA's GPUs."""
RUNTIME, CDI = "runtime", "cdi"
"""How a container gets a GPU: ``--gpus``, or a name of the Container Device Interface."""
_HOOK = "nvidia-container-runtime-hook"
_CONTEXT_IN_USE = "currentContext"  # in Docker's config.json
_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?([^"'\s,]+)""")
_NAME = re.compile(r"""["']?name["']?\s*:\s*["']?([^"'\s,}]+)""")
_PATIENCE = 30.0
"""Seconds for an engine to answer ``info``."""


def facts_of(engine: ContainerEngine) -> Mapping[str, Any]:
    """What the engine's ``info`` says; raises ImageError for an engine on another machine."""
    said = engine.run(["info", "--format", "{{json .}}"], timeout=_PATIENCE).stdout
    try:
        facts: Mapping[str, Any] = json.loads(said)
    except ValueError:
        raise ImageError(
            f"{engine.name} does not describe itself in JSON", why=said[:200], fix=f"Try: {engine.name} info"
        ) from None
    if (facts.get("host") or {}).get("serviceIsRemote") and not os.environ.get("CONTAINER_HOST"):
        _refuse_connection(engine)
    return facts


def elsewhere(engine: str) -> str | None:
    """The setting that leads to an engine on another machine, ``NAME=VALUE``; None: there is none.

    Such an engine has none of the folders of this machine. Podman's connections are checked by
    :func:`facts_of`.
    """
    variable = "CONTAINER_HOST" if engine == PODMAN else "DOCKER_HOST"
    address = os.environ.get(variable, "")
    if address or engine == PODMAN:
        return f"{variable}={address}" if address and not _is_here(address) else None
    return _context_elsewhere()


def way_back(named: str) -> str:
    """What to do about an engine that is :func:`elsewhere`."""
    variable = named.partition("=")[0]
    undo = "docker context use default" if variable == _CONTEXT_IN_USE else f"Unset {variable}"
    return f"{undo}, or run Upshift on that machine."


def _is_here(address: str) -> bool:
    return address.startswith("unix://")


def _context_elsewhere() -> str | None:
    """The context of Docker's command line, which counts where there is no DOCKER_HOST."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    variable = "DOCKER_CONTEXT"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        name = os.environ.get(variable)
        if not name:
            variable = _CONTEXT_IN_USE
            name = json.loads((folder / "config.json").read_bytes())[variable]
        digest = hashlib.sha256(name.encode()).hexdigest()
        said = json.loads((folder / "contexts" / "meta" / digest / "meta.json").read_bytes())
        address = said["Endpoints"]["docker"]["Host"]
        if not _is_here(address):
            return f"{variable}={name} ({address})"
    return None  # there is no context, or none that can be used, of which Docker speaks itself


def _refuse_connection(engine: ContainerEngine) -> None:
    said = engine.run(["system", "connection", "list", "--format", "json"], timeout=_PATIENCE).stdout
    wanted = os.environ.get("CONTAINER_CONNECTION")
    for one in json.loads(said or "[]"):
        if (one["Name"] == wanted if wanted else one.get("Default")) and not _is_here(one["URI"]):
            raise ImageError(
                f"Podman's connection {one['Name']} leads to an engine on another machine: {one['URI']}",
                why="Containers get their store and code from folders of this one.",
                fix=f"{'Unset CONTAINER_CONNECTION' if wanted else 'Choose one of this machine'}, or run "
                "Upshift on that machine.",
            )


def is_rootless(facts: Mapping[str, Any]) -> bool:
    """Whether an engine runs as a user."""
    podman = (facts.get("host") or {}).get("security", {}).get("rootless")
    return bool(podman) or any("rootless" in option for option in facts.get("SecurityOptions") or ())


def has_our_users(facts: Mapping[str, Any]) -> bool:
    """Whether a user's number means the same in a container as here."""
    remapped = any("userns" in option for option in facts.get("SecurityOptions") or ())
    return not remapped and not is_rootless(facts)


def as_this_user(engine: ContainerEngine, facts: Mapping[str, Any]) -> list[str]:
    """Options with which files that a container writes into a folder of this machine are this user's."""
    label = ["--security-opt", "label=disable"] if engine.name == PODMAN else []
    if is_rootless(facts):
        return [*label, *(["--userns", "keep-id"] if engine.name == PODMAN else [])]
    return [*label, "--user", f"{os.getuid()}:{os.getgid()}"]


def limits(facts: Mapping[str, Any]) -> frozenset[str]:
    """Which of ``cpu_count`` and ``memory`` an engine can limit."""
    host = facts.get("host")
    if host is not None:  # Podman
        controllers = host.get("cgroupControllers")
        rootless_v1 = host.get("cgroupVersion") == "v1" and is_rootless(facts)
        found = {
            "cpu_count": not rootless_v1 and (controllers is None or "cpu" in controllers),
            "memory": not rootless_v1 and (controllers is None or "memory" in controllers),
        }
    else:
        found = {"cpu_count": facts.get("CpuCfsQuota", True), "memory": facts.get("MemoryLimit", True)}
    return frozenset(name for name, can in found.items() if can)


def gpu_way(
    engine: ContainerEngine, facts: Mapping[str, Any], folders: Sequence[str] | None = None
) -> str | None:
    """How a container of this engine gets a GPU of NVIDIA: :data:`RUNTIME` or :data:`CDI`; None: it cannot.

    Podman takes CDI since 4.1; Docker says where it looks, since 25.0, if it does.
    """
    if engine.name != PODMAN and ("nvidia" in (facts.get("Runtimes") or {}) or shutil.which(_HOOK)):
        return RUNTIME
    takes_cdi = engine.name == PODMAN or bool(facts.get("CDISpecDirs"))
    return CDI if takes_cdi and cdi_specifications(facts, folders) else None


def gpu_remedy(engine: ContainerEngine) -> str:
    """What to do where a container gets no GPU."""
    configure = (
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        if engine.name == PODMAN
        else "sudo nvidia-ctk runtime configure --runtime=docker, and restart Docker"
    )
    return f"Install the NVIDIA Container Toolkit, and tell the engine: {configure}."


def cdi_specifications(
    facts: Mapping[str, Any], folders: Sequence[str] | None = None
) -> dict[Path, frozenset[str]]:
    """The files on this machine that describe NVIDIA's GPUs for containers, each with its names for them."""
    found = {}
    usual = [str(device_root() / folder) for folder in CDI_FOLDERS]
    for folder in facts.get("CDISpecDirs") or folders or usual:
        for file in sorted(Path(folder).glob("*")):
            if file.suffix not in (".json", ".yaml", ".yml"):
                continue
            with contextlib.suppress(OSError):
                text = file.read_text(encoding="utf-8", errors="replace")
                kind = _KIND.search(text)
                names = frozenset(_NAME.findall(text))
                if kind is not None and kind[1] == NVIDIA and names:
                    found[file] = names
    return found
