"""A checkup of this machine: what is there, what would stop a step, and what to do about it.

Here is what every step needs: Python, folders, CPUs, memory. Devices and containers have their own modules.
"""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from upshift._version import __version__
from upshift.errors import UpshiftError
from upshift.images.containers.engine import NAMES
from upshift.model.checks import in_bucket
from upshift.model.configuration import Configuration, Target, home
from upshift.model.settings.sizes import format_size
from upshift.report.doctor import Check, Status
from upshift.report.doctor.devices import devices
from upshift.runtime import cgroups, proc
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
        from upshift.report.doctor.containers import containers

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
    allowed, there, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, cgroups.own_cpus()
    text = f"{allowed}" if allowed == there else f"{allowed} of {there}"
    if quota is not None and quota < allowed:
        return _check("CPUs", f"{text}, and a cgroup gives the time of {quota:g}", status="warning")
    return _check("CPUs", text)


def _memory() -> Check:
    there, limit = proc.host_memory(), cgroups.own_limit()
    text = (
        format_size(there) if limit is None else f"{format_size(min(limit, there))} of {format_size(there)}"
    )
    return _check("memory", text if limit is None else f"{text}, limited by a cgroup")


def _limits() -> Check:
    if os.environ.get("UPSHIFT_NO_CGROUPS"):
        return _check("memory limits", "of steps, by a watchdog, as UPSHIFT_NO_CGROUPS asks for")
    if cgroups.can_limit():
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
