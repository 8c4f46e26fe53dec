"""The part of a checkup that steps in containers need: the engine, its limits, GPUs, disk, the registry."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from upshift.errors import ImageError, MissingExtra, UpshiftError
from upshift.images.base import RECIPE_LABEL
from upshift.images.containers.engine import NAMES, PODMAN, ContainerEngine, find_engine
from upshift.images.containers.facts import (
    CDI,
    cdi_specifications,
    elsewhere,
    facts_of,
    gpu_remedy,
    gpu_way,
    is_rootless,
    limits,
    way_back,
)
from upshift.images.reference import DEFAULT_REPOSITORY, Reference
from upshift.images.registries.credentials import RegistryCredentials
from upshift.images.uv import find_uv
from upshift.model.configuration import Target
from upshift.model.settings.sizes import format_size
from upshift.report.doctor import Check, Status
from upshift.runtime.accelerators.vendors import present

_GROUP = "containers"
_LITTLE, _TOO_LITTLE = 20_000_000_000, 2_000_000_000
"""Bytes of free disk space for images: one with CUDA takes 5 to 20 GB when it is unpacked."""
_NO_SUCH_PROGRAM = 127
"""What a container ends with whose image lacks the program: it was started."""
_PATIENCE = 60.0
"""Seconds for an engine to start a container."""
_RLIMIT = (
    "It asks for higher limits than it may have. Set lower ones below [containers] of containers.conf: "
    'default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"].'
)
_ROOTLESS = "Without root an engine needs cgroups v2: boot with systemd.unified_cgroup_hierarchy=1."
_KERNEL = "The kernel has to have these controllers: cgroup_enable=memory on its command line."


def containers(target: Target) -> Iterator[Check]:
    """Everything that has to do with the container engine and with the target's registry."""
    if target.backend in NAMES:
        yield from _engine_and_more(target)
    if target.registry:
        yield from registry(target.registry)


def _check(name: str, text: str, *, status: Status = "ok", remedy: str | None = None) -> Check:
    return Check(group=_GROUP, name=name, status=status, text=text, remedy=remedy)


def _engine_and_more(target: Target) -> Iterator[Check]:
    wanted = str(target.options.get("engine") or target.backend)
    named = elsewhere(wanted)
    if named is not None:
        yield _check(
            "engine", f"{named} names one elsewhere, which lacks the folders of this machine",
            status="problem",
            remedy=way_back(named),
        )  # fmt: skip
        return
    try:
        engine = find_engine(wanted)
        facts = facts_of(engine)
    except UpshiftError as error:
        yield _check("engine", error.in_short, status="problem", remedy=error.fix)
        return
    yield _check("engine", f"{engine.title}, {engine.platform}{', rootless' if is_rootless(facts) else ''}")
    yield _starts(engine)
    yield _packages()
    yield _limits(facts)
    if any(vendor.name == "nvidia" for vendor in present()):
        yield _gpus(engine, facts, target.options.get("gpus"))
    yield from _disk(engine, facts)


def _starts(engine: ContainerEngine) -> Check:
    """Whether a container of an image that is there starts: much of what is in the way shows only then."""
    try:
        images = [
            image
            for options in (["--filter", f"label={RECIPE_LABEL}"], [])
            for image in engine.run(["images", "--quiet", *options], timeout=_PATIENCE).stdout.split()
        ]
        if not images:
            return _check("containers", "none was tried: no image is there to start one of")
        trial = ["run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "true", images[0]]
        done = engine.run(trial, timeout=_PATIENCE, check=False)
    except UpshiftError as error:
        return _check("containers", error.in_short, status="problem", remedy=error.fix)
    if done.returncode in (0, _NO_SUCH_PROGRAM):
        return _check("containers", "one was started, and has ended")
    why = engine.failure(["run"], done.stderr)
    remedy = _RLIMIT if "rlimit" in done.stderr else why.fix or f"Try: {engine.name} {' '.join(trial)}"
    return _check("containers", f"cannot be started: {why.why or why.what}", status="problem", remedy=remedy)


def _packages() -> Check:
    try:
        find_uv("requirements of images cannot be installed")
    except UpshiftError as error:
        return _check("packages", error.in_short, status="warning", remedy=error.fix)
    return _check("packages", "of requirements are installed by uv")


def _limits(facts: Mapping[str, Any]) -> Check:
    words = {"memory": "memory", "cpu_count": "CPUs"}
    missing = [word for field, word in words.items() if field not in limits(facts)]
    if not missing:
        return _check("limits", "of memory and CPUs")
    text = f"of {' and '.join(missing)} cannot be set: containers would get all of this machine"
    return _check("limits", text, status="problem", remedy=_ROOTLESS if is_rootless(facts) else _KERNEL)


def _gpus(engine: ContainerEngine, facts: Mapping[str, Any], wanted: object) -> Check:
    way, files = wanted or gpu_way(engine, facts), cdi_specifications(facts)
    if way == CDI and files:
        return _check("GPUs", f"by CDI: {', '.join(map(str, files))}")
    if way == CDI or way is None:
        text = (
            "nothing on this machine describes them for CDI" if way else "the engine has no way to give one"
        )
        return _check("GPUs", f"containers get none: {text}", status="problem", remedy=gpu_remedy(engine))
    return _check("GPUs", "by --gpus")


def _disk(engine: ContainerEngine, facts: Mapping[str, Any]) -> Iterator[Check]:
    root = facts.get("store", {}).get("graphRoot") if engine.name == PODMAN else facts.get("DockerRootDir")
    if not root or not Path(root).exists():  # it runs elsewhere, or this user may not look
        return
    free = shutil.disk_usage(root).free
    text = f"{root}, {format_size(free)} free"
    remedy = "upshift image prune removes images that Upshift has built."
    if free < _LITTLE:
        yield _check("disk", text, status="problem" if free < _TOO_LITTLE else "warning", remedy=remedy)
    else:
        yield _check("disk", text)


_SILENCE = 10.0
"""Seconds that the registry may be silent."""


def registry(prefix: str) -> Iterator[Check]:
    """Look at a registry."""
    try:
        reference = Reference.parse(f"{prefix.rstrip('/')}/{DEFAULT_REPOSITORY}")
    except ImageError as error:
        yield _of_registry("registry", error.in_short, status="problem", remedy=error.fix)
        return
    found = RegistryCredentials().find(reference.registry, reference.repository)
    for problem in found.problems:
        yield _of_registry("credentials", problem, status="warning")
    where = f"from {found.login.source}" if found.login else "none"
    looked = "" if found.login or not found.looked else f", looked for in {', '.join(found.looked)}"
    yield _of_registry("credentials", f"{where}, for {reference.registry}{looked}")
    yield _writable(reference)


def _of_registry(name: str, text: str, *, status: Status = "ok", remedy: str | None = None) -> Check:
    return Check(group="registry", name=name, status=status, text=text, remedy=remedy)


def _writable(reference: Reference) -> Check:
    try:
        from upshift.images.registries.client import Registries

        with Registries(timeout=_SILENCE) as registries:
            registries.check_writable(reference)
    except (ImageError, MissingExtra) as error:
        return _of_registry("registry", error.in_short, status="problem", remedy=error.fix)
    return _of_registry("registry", f"{reference.name} can be pushed to")
