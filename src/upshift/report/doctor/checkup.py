"""A checkup of this machine: what is there, what would stop a step, and what to do about it.

First what every step needs: Python, folders, CPUs, memory; then what steps in containers need: the engine,
its limits, GPUs, disk, the registry. Devices and frameworks are in :mod:`upshift.report.doctor.devices`.
"""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from upshift._version import __version__
from upshift.errors import ImageError, MissingExtra, UpshiftError
from upshift.images.base import DEFAULT_REPOSITORY, RECIPE_LABEL, Reference
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
from upshift.images.registries.credentials import RegistryCredentials
from upshift.images.uv import find_uv
from upshift.model.checks import in_bucket
from upshift.model.configuration import Configuration, Target, home
from upshift.model.settings.sizes import format_size
from upshift.report.doctor import Check, Status
from upshift.report.doctor.devices import devices
from upshift.runtime import confine, proc
from upshift.runtime.accelerators.vendors import present
from upshift.runtime.storage.objects import open_objects

_LITTLE, _TOO_LITTLE = 5_000_000_000, 100_000_000
"""Bytes of free disk space, below which it is worth a word, and below which nothing can be stored."""
_SMALL_SHM = 1 << 30
"""Bytes. Docker gives a container 64 MB."""
_SHM = Path("/dev/shm")


def checkup(target: Target, configuration: Configuration, *, remote: bool) -> Iterator[Check]:
    """Look at one thing after the other; the last ones take seconds."""
    here = target.backend in NAMES
    yield from _machine(target, configuration, remote=remote and not here)
    if here or not remote:
        yield from devices(environment=not here)
    if here or target.registry:
        yield from containers(target)


def _machine(target: Target, configuration: Configuration, *, remote: bool) -> Iterator[Check]:
    """Everything that has nothing to do with devices; of hardware nothing, where steps run elsewhere."""
    yield _python()
    yield _home()
    yield _store(target, configuration)
    if remote:
        return
    yield _cpus()
    yield _memory()
    yield _limits()
    yield _shared_memory()


def _check(name: str, text: str, *, status: Status = "ok", remedy: str | None = None) -> Check:
    return Check(group="this machine", name=name, status=status, text=text, remedy=remedy)


def _python() -> Check:
    text = f"{platform.python_version()} ({sys.executable}), Upshift {__version__}"
    if sys.platform != "linux":
        return _check("Python", f"{text}, on {sys.platform}", status="problem", remedy="Upshift needs Linux.")
    return _check("Python", f"{text}, {platform.system()} {platform.release()} {platform.machine()}")


def _home() -> Check:
    folder = home()
    check = _folder("home", folder, "Set UPSHIFT_HOME to a folder that you may write to.")
    if check.status != "ok" or not (open_to := _open_to_others(folder)):
        return check
    return _check(
        "home",
        f"{check.text}; every user of this machine can {open_to} in it: values, parameters, logs",
        status="warning",
        remedy=f"chmod 700 {shlex.quote(str(folder))}, or share it with a group only: mode 2770.",
    )


def _open_to_others(folder: Path) -> str | None:
    """What others than its owner and its group can do with a folder; None: nothing, or it is not there."""
    folder = folder.resolve()
    if not folder.is_dir() or not all(
        place.stat().st_mode & stat.S_IXOTH for place in (folder, *folder.parents)
    ):
        return None
    return "change what is" if folder.stat().st_mode & stat.S_IWOTH else "read what is"


def _store(target: Target, configuration: Configuration) -> Check:
    address = configuration.store_address(target)
    if in_bucket(address):
        return _bucket(address)
    if "://" in address:
        return _check("store", f"{address}: what is not on a file system is not looked at")
    return _folder("store", Path(address), "Name a folder that you may write to: store in upshift.toml.")


def _bucket(address: str) -> Check:
    """Whether a store in a bucket can be read and written, and knows conditional writes."""
    try:
        objects, key = open_objects(address), f"tmp/doctor-{secrets.token_hex(8)}"
        try:
            objects.put(key, b"", absent=True)
            once = objects.put(key, b"again", absent=True) is None
        finally:
            objects.delete([key])
    except UpshiftError as error:
        text = f"{address}: {error.what}" + (f": {error.why}" if error.why else "")
        return _check("store", text, status="problem", remedy=error.fix or "See its address.")
    if not once:
        return _check(
            "store",
            f"{address} overwrites objects that are to be written once",
            status="problem",
            remedy="Use an object store that supports conditional writes (If-None-Match).",
        )
    return _check("store", f"{address}: can be read and written")


def _folder(name: str, folder: Path, remedy: str) -> Check:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    made = "" if there == folder else ", made by the first run"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return _check(name, f"{folder}: {there} cannot be written", status="problem", remedy=remedy)
    free = shutil.disk_usage(there).free
    text = f"{folder}{made}, {format_size(free)} free"
    if free < _TOO_LITTLE:
        return _check(name, text, status="problem", remedy="Free space: upshift gc.")
    if free < _LITTLE:
        return _check(name, text, status="warning", remedy="upshift gc frees what no run refers to.")
    return _check(name, text)


def _cpus() -> Check:
    allowed, there, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, confine.own_cpus()
    text = f"{allowed}" if allowed == there else f"{allowed} of {there}"
    if quota is not None and quota < allowed:
        return _check("CPUs", f"{text}, and a cgroup gives the time of {quota:g}", status="warning")
    return _check("CPUs", text)


def _memory() -> Check:
    there, limit = proc.host_memory(), confine.own_limit()
    text = (
        format_size(there) if limit is None else f"{format_size(min(limit, there))} of {format_size(there)}"
    )
    return _check("memory", text if limit is None else f"{text}, limited by a cgroup")


def _limits() -> Check:
    if os.environ.get("UPSHIFT_NO_CGROUPS"):
        return _check("memory limits", "of steps, by a watchdog, as UPSHIFT_NO_CGROUPS asks for")
    if confine.can_limit():
        return _check("memory limits", "of steps, by cgroups")
    return _check(
        "memory limits",
        "of steps, by a watchdog: this process may not make cgroups",
        status="warning",
        remedy="The kernel keeps limits more exactly. Start it where groups are delegated: "
        "systemd-run --user --scope -p Delegate=yes …",
    )


def _shared_memory() -> Check:
    if not _SHM.is_dir():
        return _check(
            "/dev/shm", "missing", status="warning", remedy="Mount it: data loaders share memory there."
        )
    size = shutil.disk_usage(_SHM)
    text = f"{format_size(size.total)}, {format_size(size.free)} free"
    if size.total < _SMALL_SHM:
        return _check(
            "/dev/shm", text, status="warning",
            remedy="PyTorch's data loaders and NCCL share memory there: docker run --shm-size=8g …",
        )  # fmt: skip
    return _check("/dev/shm", text)


_LITTLE_FOR_IMAGES, _TOO_LITTLE_FOR_IMAGES = 20_000_000_000, 2_000_000_000
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


def _contained(name: str, text: str, *, status: Status = "ok", remedy: str | None = None) -> Check:
    return Check(group="containers", name=name, status=status, text=text, remedy=remedy)


def _engine_and_more(target: Target) -> Iterator[Check]:
    wanted = str(target.options.get("engine") or target.backend)
    named = elsewhere(wanted)
    if named is not None:
        yield _contained(
            "engine", f"{named} names one elsewhere, which lacks the folders of this machine",
            status="problem",
            remedy=way_back(named),
        )  # fmt: skip
        return
    try:
        engine = find_engine(wanted)
        facts = facts_of(engine)
    except UpshiftError as error:
        yield _contained("engine", error.in_short, status="problem", remedy=error.fix)
        return
    yield _contained(
        "engine", f"{engine.title}, {engine.platform}{', rootless' if is_rootless(facts) else ''}"
    )
    yield _starts(engine)
    yield _packages()
    yield _container_limits(facts)
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
            return _contained("containers", "none was tried: no image is there to start one of")
        trial = ["run", "--rm", "--pull", "never", "--network", "none", "--entrypoint", "true", images[0]]
        done = engine.run(trial, timeout=_PATIENCE, check=False)
    except UpshiftError as error:
        return _contained("containers", error.in_short, status="problem", remedy=error.fix)
    if done.returncode in (0, _NO_SUCH_PROGRAM):
        return _contained("containers", "one was started, and has ended")
    why = engine.failure(["run"], done.stderr)
    remedy = _RLIMIT if "rlimit" in done.stderr else why.fix or f"Try: {engine.name} {' '.join(trial)}"
    return _contained(
        "containers", f"cannot be started: {why.why or why.what}", status="problem", remedy=remedy
    )


def _packages() -> Check:
    try:
        find_uv("requirements of images cannot be installed")
    except UpshiftError as error:
        return _contained("packages", error.in_short, status="warning", remedy=error.fix)
    return _contained("packages", "of requirements are installed by uv")


def _container_limits(facts: Mapping[str, Any]) -> Check:
    words = {"memory": "memory", "cpu_count": "CPUs"}
    missing = [word for field, word in words.items() if field not in limits(facts)]
    if not missing:
        return _contained("limits", "of memory and CPUs")
    text = f"of {' and '.join(missing)} cannot be set: containers would get all of this machine"
    return _contained("limits", text, status="problem", remedy=_ROOTLESS if is_rootless(facts) else _KERNEL)


def _gpus(engine: ContainerEngine, facts: Mapping[str, Any], wanted: object) -> Check:
    way, files = wanted or gpu_way(engine, facts), cdi_specifications(facts)
    if way == CDI and files:
        return _contained("GPUs", f"by CDI: {', '.join(map(str, files))}")
    if way == CDI or way is None:
        text = (
            "nothing on this machine describes them for CDI" if way else "the engine has no way to give one"
        )
        return _contained("GPUs", f"containers get none: {text}", status="problem", remedy=gpu_remedy(engine))
    return _contained("GPUs", "by --gpus")


def _disk(engine: ContainerEngine, facts: Mapping[str, Any]) -> Iterator[Check]:
    root = facts.get("store", {}).get("graphRoot") if engine.name == PODMAN else facts.get("DockerRootDir")
    if not root or not Path(root).exists():  # it runs elsewhere, or this user may not look
        return
    free = shutil.disk_usage(root).free
    text = f"{root}, {format_size(free)} free"
    remedy = "upshift image prune removes images that Upshift has built."
    if free < _LITTLE_FOR_IMAGES:
        yield _contained(
            "disk", text, status="problem" if free < _TOO_LITTLE_FOR_IMAGES else "warning", remedy=remedy
        )
    else:
        yield _contained("disk", text)


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
