"""What can be found out about why a process sees fewer devices than it was granted. Nothing here judges."""

from __future__ import annotations

import functools
import glob
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from upshift.model.spec.hardware import Device
from upshift.model.spec.telemetry import Framework
from upshift.runtime.accelerators.files import device_root

VISIBILITY: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}
"""Environment variables that hide devices.

Sources: NVIDIA, 'CUDA C++ Programming Guide', 'CUDA Environment Variables'; ROCm, 'GPU isolation techniques';
Intel, 'oneAPI Level Zero', 'Environment Variables'. Read on 2026-11-21.
"""

PLATFORMS: Mapping[str, str] = {"jax": "JAX_PLATFORMS"}
"""By framework, the variable that lists what it may compute on.

Source: JAX, 'Configuration options', 'jax_platforms'. Read on 2026-11-21.
"""
_NO_GPUS = {"cpu", "tpu"}

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
"""What frameworks are called."""
_CONTAINERS = {"a container": "container", "Kubernetes": "pod"}

_FILES: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia[0-9]*"),
    "amd": ("dev/kfd", "dev/dri/renderD*"),
    "intel": ("dev/dri/renderD*",),
}
"""Files that a process opens to compute.

Sources: NVIDIA Container Toolkit, 'Device nodes'; ROCm, 'Running ROCm Docker containers'; Intel, 'GPU device
plugin'. Read on 2026-11-21.
"""
_WSL = "dev/dxg"
DEADLINE = 30.0
"""Seconds for the driver to start. Without persistence mode it takes some for each idle GPU."""
GONE = 1.0
"""Seconds that are waited for a process that was killed."""


@attrs.frozen(kw_only=True)
class DeviceFile:
    """A file that a process opens to use a device."""

    path: str  # where it is, or should be
    # why it cannot be opened; ``"missing"`` where it is not there, None where it can
    problem: str | None = None
    owner: str | None = None  # owner, group and mode, as ``ls -l`` shows them

    @property
    def numbered(self) -> bool:
        """Whether it is that of one device: ``/dev/nvidia3``, ``/dev/dri/renderD128``."""
        return self.path[-1].isdigit()


@attrs.frozen(kw_only=True)
class CudaDriver:
    """What the user's half of the driver says when a process starts it."""

    library: str | None = None  # version of the library ``libcuda.so.1`` that is found; None: none is
    code: int | None = None  # what ``cuInit`` returned; None: it was not called
    problem: str | None = None  # its words, or those of the dynamic linker
    cuda: str | None = None  # the newest CUDA that it runs
    # compute capability of each device that it shows; None: it shows nothing, because of ``problem``
    capabilities: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class Evidence:
    """All that is known when a framework sees less than was granted."""

    granted: tuple[Device, ...]  # the devices
    framework: Framework  # what it says
    files: tuple[DeviceFile, ...] = ()  # those that the devices of this vendor need
    kernel_driver: str | None = None  # version of the driver's half in the kernel; None: unknown
    driver: CudaDriver | None = None  # the other half; None: it was not asked
    # variables that hide devices: as they were set for the step, and as they are
    intended: Mapping[str, str] = attrs.field(factory=dict)
    visible: Mapping[str, str] = attrs.field(factory=dict)
    container: str | None = None  # what kind of container this is; None: none
    machine: str = "x86_64"  # as ``os.uname().machine`` names it
    whose: str = "granted"  # how the devices are called: those ``granted``, those ``of this machine``

    @property
    def vendor(self) -> str:
        """Of the granted devices."""
        return vendor_of(self.granted)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Compute capabilities of the devices, as the grant names them, else as the driver does."""
        named = tuple(device.compute_capability for device in self.granted if device.compute_capability)
        return named or (self.driver.capabilities if self.driver else None) or ()

    @property
    def build(self) -> str:
        """The framework and its version: ``PyTorch 2.13.0+cpu``."""
        name = self.framework.name
        return f"{FRAMEWORKS.get(name, name)} {self.framework.version}".rstrip()

    @property
    def grant(self) -> str:
        """``the 2 GPUs granted``, ``the GPU and 2 slices granted``."""
        slices = sum(device.partition is not None for device in self.granted)
        counts = ((len(self.granted) - slices, "GPU"), (slices, "slice"))
        parts = [name if number == 1 else f"{number} {name}s" for number, name in counts if number]
        return f"the {' and '.join(parts)} {self.whose}"

    @property
    def models(self) -> str:
        """``2 × NVIDIA H100``."""
        names = [device.model or device.kind or "GPU" for device in self.granted]
        if len(set(names)) > 1:
            return ", ".join(names)
        return names[0] if len(names) == 1 else f"{len(names)} × {names[0]}"

    def model(self, capability: str) -> str:
        """The granted device that has a compute capability."""
        names = [d.model or d.kind for d in self.granted if d.compute_capability in (capability, None)]
        return f"the {names[0]}" if names and names[0] else "the device"

    @property
    def sight(self) -> str:
        """``PyTorch 2.13.0 sees 1 of the 2 GPUs granted``."""
        devices = self.framework.devices
        if not devices and len(self.granted) == 1:
            return f"{self.build} does not see {self.grant}"
        return f"{self.build} sees {devices or 'none'} of {self.grant}"

    @property
    def place(self) -> str:
        """``this Docker container``, ``this environment``."""
        return f"this {container_name(self.container)}" if self.container else "this environment"


def container_name(kind: str) -> str:
    """The kind of container in words: ``Docker container``."""
    return _CONTAINERS.get(kind, f"{kind} container")


def listed(paths: Sequence[str]) -> str:
    """Three of them at most."""
    return ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")


def gather(
    granted: tuple[Device, ...], framework: Framework, driver: CudaDriver | None, intended: Mapping[str, str]
) -> Evidence:
    """All that can be found out in this process."""
    vendor = vendor_of(granted)
    root = device_root()
    return Evidence(
        granted=granted,
        framework=framework,
        files=device_files(vendor, root),
        kernel_driver=kernel_driver(root) if vendor == "nvidia" else None,
        driver=driver,
        intended=intended,
        visible=visibility(vendor, framework.name),
        container=container(root),
        machine=os.uname().machine,
    )


def vendor_of(devices: tuple[Device, ...]) -> str:
    """The vendor of granted devices, which are all of one; a device of an unknown vendor is NVIDIA's."""
    return next((device.vendor for device in devices if device.vendor), "nvidia")


def visibility(vendor: str, *frameworks: str) -> dict[str, str]:
    """The variables of this process that hide devices of a vendor, from all and from these frameworks."""
    names = (*VISIBILITY.get(vendor, ()), *(PLATFORMS[name] for name in frameworks if name in PLATFORMS))
    return {name: os.environ[name] for name in names if name in os.environ}


def leaves_out_gpus(platforms: str) -> bool:
    """Whether a list of what a framework may compute on, as in :data:`PLATFORMS`, has no GPUs in it."""
    return bool(platforms) and {name.strip() for name in platforms.lower().split(",")} <= _NO_GPUS


def device_files(vendor: str, root: Path) -> tuple[DeviceFile, ...]:
    """The files that devices of this vendor need, those that are missing included."""
    patterns = _FILES.get(vendor, ())
    if vendor == "nvidia" and (root / _WSL).exists():
        patterns = (_WSL,)
    files = []
    for pattern in patterns:
        found = sorted(glob.glob(str(root / pattern)))
        files += [_looked_at(path, root) for path in found]
        if not found:
            files.append(
                DeviceFile(path="/" + pattern.replace("[0-9]*", "0").replace("*", "128"), problem="missing")
            )
    return tuple(files)


def _looked_at(path: str, root: Path) -> DeviceFile:
    import stat

    shown = "/" + os.path.relpath(path, root)
    try:
        found = os.stat(path)
        owner = f"{stat.filemode(found.st_mode)} {_user(found.st_uid)}:{_group(found.st_gid)}"
    except OSError:
        owner = None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:  # asked by opening it: rules of a cgroup are not in its mode
        return DeviceFile(path=shown, problem=error.strerror or str(error), owner=owner)
    return DeviceFile(path=shown, owner=owner)


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def kernel_driver(root: Path) -> str | None:
    """Version of NVIDIA's kernel module, as it says itself; None: it is not loaded."""
    import re

    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu …"
    found = re.search(r"^NVRM version:.*?\b(\d{3,}(?:\.\d+)+)", text, re.MULTILINE)
    return found[1] if found else None


def container(root: Path) -> str | None:
    """The kind of container that this process is in; None: in none that leaves a mark."""
    marks = {
        "Apptainer": "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ,
        "Kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "Docker": (root / ".dockerenv").exists(),
        "Podman": (root / "run/.containerenv").exists(),
        "a container": "container" in os.environ,  # systemd's Container Interface
    }
    return next((name for name, is_so in marks.items() if is_so), None)


class DriverQuestion:
    """Asks the CUDA driver in a process of its own, while this one goes on."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _program()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def answer(self) -> CudaDriver:
        """What it says; waits until it does, at most :data:`DEADLINE` seconds."""
        try:
            said, _ = self._process.communicate(timeout=DEADLINE)
            fields = json.loads(said)
            capabilities = fields.pop("capabilities")
            return CudaDriver(**fields, capabilities=None if capabilities is None else tuple(capabilities))
        except subprocess.TimeoutExpired:
            self.close()
            return CudaDriver(problem=f"the driver did not start within {DEADLINE:g} s", library="unknown")
        except (ValueError, TypeError, KeyError):
            code = self._process.returncode
            return CudaDriver(
                problem=f"the driver's library ended the process that asked it ({code})", library="unknown"
            )

    def close(self) -> None:
        """The answer is not wanted any more. A process that the driver does not let go is left to itself."""
        self._process.kill()
        try:
            self._process.communicate(timeout=GONE)
        except subprocess.TimeoutExpired:  # it is stuck in the driver
            assert self._process.stdout is not None
            self._process.stdout.close()


@functools.cache
def _program() -> str:
    source = pkgutil.get_data("upshift.runtime.accelerators", "cuda_driver.py")
    assert source is not None
    return source.decode()
