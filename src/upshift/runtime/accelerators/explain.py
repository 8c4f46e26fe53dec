"""Why a framework sees fewer devices than a step was granted, and what to do: from evidence to a finding.

Pure functions. Each cause has a function that looks for it; the first that answers names what is to be
mended first: a wheel without CUDA needs no driver. What to do about a cause is below them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.evidence import (
    FRAMEWORKS,
    PLATFORMS,
    VISIBILITY,
    DeviceFile,
    Evidence,
    leaves_out_gpus,
    listed,
)
from upshift.runtime.accelerators.vendor import MAKERS

PLATFORM_NAMES = {"nvidia": "CUDA", "amd": "ROCm", "intel": "Intel GPUs (XPU)"}
_BUILT_FOR = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu"}
"""What a framework has to be built for, to use the devices of a vendor."""

# CUDA Driver API, CUresult.
_STUB, _NOT_READY, _MISMATCH, _NO_COMPAT = 34, 802, 803, 804

_MISSING_LIBRARIES = ("cannot dlopen", "cannot open shared object", "unable to load cu")
"""What TensorFlow, PyTorch and JAX say when libraries of CUDA are not there."""


@attrs.frozen(kw_only=True)
class DeviceFault:
    """A cause, and what to do about it."""

    # ``cpu-only``, ``other-platform``, ``hidden``, ``devices``, ``permissions``, ``not-ready``, ``mismatch``,
    # ``no-libraries``, ``old-driver``, ``no-kernels`` or ``unknown``
    cause: str
    sentence: str  # what is wrong
    remedy: str  # what to do
    evidence: tuple[str, ...] = ()  # what else is known


def expected(granted: Sequence[Device]) -> int:
    """How many of the devices granted one process sees: of several MIG instances CUDA shows it one.

    Source: NVIDIA, 'Multi-Instance GPU User Guide', 'CUDA_VISIBLE_DEVICES'. Read on 2026-11-21.
    """
    whole = [d for d in granted if d.partition is None or d.vendor not in (None, "nvidia")]
    return len(whole) or min(len(granted), 1)


def judged(vendor: str) -> bool:
    """Whether frameworks show devices of this vendor in a way that can be counted."""
    return vendor in _BUILT_FOR


def falls_short(evidence: Evidence) -> bool:
    """Whether the framework plainly cannot use what was granted. Not to know is no shortage."""
    if not judged(evidence.vendor):
        return False
    devices = evidence.framework.devices
    if devices is not None and devices < expected(evidence.granted):
        return True
    return _no_kernels(evidence) is not None


def explain(evidence: Evidence) -> DeviceFault:
    """The cause, as far as the evidence goes."""
    found = next(filter(None, (look(evidence) for look in _CAUSES)), None)
    return attrs.evolve(found or _unknown(evidence), evidence=facts(evidence))


def facts(evidence: Evidence) -> tuple[str, ...]:
    """All that is known, a few words each."""
    framework, driver = evidence.framework, evidence.driver
    found = [
        f"granted: {evidence.models}",
        f"{evidence.build} is built for {framework.built_for or 'CPUs only'}",
        f"{framework.name} sees {'an unknown number' if framework.devices is None else framework.devices}",
    ]
    if framework.architectures:
        found.append(f"{framework.name} has kernels for {', '.join(framework.architectures)}")
    if framework.problem:
        found.append(f"{framework.name} says: {framework.problem}")
    if evidence.kernel_driver:
        found.append(f"driver {evidence.kernel_driver}")
    if driver is not None:
        found.append(f"libcuda.so.1 of version {driver.library}" if driver.library else "no libcuda.so.1")
        if driver.cuda:
            found.append(f"the driver runs CUDA up to {driver.cuda}")
        if driver.problem:
            found.append(f"the driver says: {driver.problem}")
        if driver.capabilities is not None:
            found.append(f"the driver shows {len(driver.capabilities)}")
    found += [f"{file.path}: {file.problem or 'can be opened'}" for file in evidence.files]
    found += [f"{name}={value}" for name, value in evidence.visible.items()]
    return (*found, f"in {evidence.place}")


# -- the causes, in the order in which they are looked for ----------------------------------------


def _cpu_only(evidence: Evidence) -> DeviceFault | None:
    if evidence.framework.built_for is not None:
        return None
    return DeviceFault(
        cause="cpu-only",
        sentence=f"{evidence.build} is built for CPUs only: it cannot use {evidence.grant}",
        remedy=_install(evidence),
    )


def _other_platform(evidence: Evidence) -> DeviceFault | None:
    built_for = evidence.framework.built_for or ""
    if built_for.partition(" ")[0] == _BUILT_FOR[evidence.vendor]:
        return None
    maker = MAKERS[evidence.vendor]
    return DeviceFault(
        cause="other-platform",
        sentence=f"{evidence.build} is built for {built_for}, and what was granted is of {maker}: "
        f"{evidence.models}",
        remedy=_install(evidence),
    )


def _hidden(evidence: Evidence) -> DeviceFault | None:
    for name in VISIBILITY[evidence.vendor]:
        was, now = evidence.intended.get(name), evidence.visible.get(name)
        changed = was is not None and now != was
        if now is None or not (changed or _shown(now) < expected(evidence.granted)):
            continue
        before = f" (the step started with {name}={was})" if changed else ""
        return DeviceFault(
            cause="hidden",
            sentence=f"{name}={now} hides devices{before}: {evidence.sight}",
            remedy=_unset(name),
        )
    name = PLATFORMS.get(evidence.framework.name, "")
    now = evidence.visible.get(name, "")
    if not leaves_out_gpus(now):
        return None
    return DeviceFault(
        cause="hidden",
        sentence=f"{name}={now} keeps {evidence.build} from {evidence.grant}",
        remedy=_let_compute(evidence, name),
    )


def _shown(value: str) -> int:
    """How many devices a list of them shows; what is negative ends it."""
    names = [name.strip() for name in value.split(",")]
    end = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return end


def _missing_devices(evidence: Evidence) -> DeviceFault | None:
    missing = listed([file.path for file in evidence.files if file.problem == "missing"])
    if not missing:
        return None
    if evidence.container:
        return DeviceFault(
            cause="devices",
            sentence=f"the devices were not passed into {evidence.place}: there is no {missing}",
            remedy=_pass_devices(evidence),
        )
    return DeviceFault(
        cause="devices",
        sentence=f"there is no {missing} on this machine: nothing can use {evidence.grant}",
        remedy=_load_module(evidence),
    )


def _permissions(evidence: Evidence) -> DeviceFault | None:
    # Of the numbered ones those of others may be closed: it takes as many as were granted.
    enough = sum(file.numbered and file.problem is None for file in evidence.files) >= len(evidence.granted)
    closed = [file for file in evidence.files if file.problem is not None and not (enough and file.numbered)]
    if not closed:
        return None
    first = closed[0]
    owner = f" ({first.owner})" if first.owner else ""
    return DeviceFault(
        cause="permissions",
        sentence=f"{listed([file.path for file in closed])} cannot be opened: {first.problem}{owner}",
        remedy=_give_access(evidence, first),
    )


def _not_ready(evidence: Evidence) -> DeviceFault | None:
    if evidence.driver is None or evidence.driver.code != _NOT_READY:
        return None
    return DeviceFault(
        cause="not-ready",
        sentence=f"the NVIDIA driver is not ready ({evidence.driver.problem})",
        remedy="Machines with NVSwitch need the fabric manager, of the driver's version: "
        "systemctl status nvidia-fabricmanager",
    )


def _mismatch(evidence: Evidence) -> DeviceFault | None:
    driver, kernel = evidence.driver, evidence.kernel_driver
    if driver is None or driver.code in (None, 0):
        return None
    differ = kernel is not None and driver.library not in (None, "unknown", kernel)
    if not differ and driver.code not in (_MISMATCH, _NO_COMPAT):
        return None
    versions = f": {kernel} is loaded, and the library is of {driver.library}" if differ else ""
    return DeviceFault(
        cause="mismatch",
        sentence=f"the NVIDIA driver's kernel module and its library are of different versions{versions}",
        remedy=_restart(evidence),
    )


def _no_libraries(evidence: Evidence) -> DeviceFault | None:
    driver, says = evidence.driver, evidence.framework.problem or ""
    if driver is not None and (driver.library is None or driver.code == _STUB):
        what = "only a stub of" if driver.code == _STUB else "no"
        return DeviceFault(
            cause="no-libraries",
            sentence=f"there is {what} libcuda.so.1, the driver's library, in {evidence.place}: "
            f"{evidence.build} cannot use {evidence.grant}",
            remedy=_driver_library(evidence),
        )
    if not any(words_of_it in says.lower() for words_of_it in _MISSING_LIBRARIES):
        return None
    return DeviceFault(
        cause="no-libraries",
        sentence=f"{evidence.build} does not find the CUDA libraries that it needs: {says}",
        remedy=_cuda_libraries(evidence),
    )


def _old_driver(evidence: Evidence) -> DeviceFault | None:
    platform, _, cuda = (evidence.framework.built_for or "").partition(" ")
    says = evidence.driver.cuda if evidence.driver else None
    if platform != "cuda" or compatibility.driver_runs(cuda, evidence.kernel_driver, says) is not False:
        return None
    runs = says or compatibility.newest_cuda(evidence.kernel_driver)
    version = f" {evidence.kernel_driver}" if evidence.kernel_driver else ""
    return DeviceFault(
        cause="old-driver",
        sentence=f"{evidence.build} is built for CUDA {cuda}, and the NVIDIA driver{version} "
        f"runs CUDA up to {runs or 'an older one'}",
        remedy=_older_build(evidence, cuda),
    )


def _no_kernels(evidence: Evidence) -> DeviceFault | None:
    architectures = evidence.framework.architectures
    for capability in evidence.capabilities:
        if compatibility.has_kernels(architectures, capability) is False:
            return DeviceFault(
                cause="no-kernels",
                sentence=f"{evidence.build} has no kernels for "
                f"{evidence.model(capability)}, which is of {compatibility.capability_name(capability)}; "
                f"it has them for {', '.join(architectures)}",
                remedy=_with_kernels(evidence, capability),
            )
    return None


def _unknown(evidence: Evidence) -> DeviceFault:
    return DeviceFault(
        cause="unknown",
        sentence=f"{evidence.sight}; why is not known ({'; '.join(facts(evidence))})",
        remedy="upshift doctor looks at the whole of this machine.",
    )


_CAUSES: tuple[Callable[[Evidence], DeviceFault | None], ...] = (
    _cpu_only,
    _other_platform,
    _hidden,
    _missing_devices,
    _permissions,
    _not_ready,
    _mismatch,
    _no_libraries,
    _old_driver,
    _no_kernels,
)


# -- what to do ----------------------------------------------------------------------------------

MAY_MISS = "UPSHIFT_MAY_MISS"
"""Environment variable: frameworks, with commas between, that may see fewer devices than were granted."""

# By container and vendor. Sources: NVIDIA Container Toolkit, 'Running a Sample Workload' and 'Support for
# Container Device Interface'; ROCm, 'Running ROCm Docker containers'; Apptainer, 'GPU Support'; Kubernetes,
# 'Schedule GPUs'. Read on 2026-11-21.
_WAYS_IN = {
    ("Docker", "nvidia"): "docker run --gpus all …, with the NVIDIA Container Toolkit on the host.",
    ("Docker", "amd"): "docker run --device /dev/kfd --device /dev/dri …",
    ("Docker", "intel"): "docker run --device /dev/dri …",
    ("Podman", "nvidia"): "podman run --device nvidia.com/gpu=all …",
    ("Podman", "amd"): "podman run --device /dev/kfd --device /dev/dri …",
    ("Podman", "intel"): "podman run --device /dev/dri …",
    ("Apptainer", "nvidia"): "apptainer run --nv …",
    ("Apptainer", "amd"): "apptainer run --rocm …",
    ("Kubernetes", "nvidia"): "The pod has to ask for them: resources.limits nvidia.com/gpu.",
    ("Kubernetes", "amd"): "The pod has to ask for them: resources.limits amd.com/gpu.",
    (
        "Kubernetes",
        "intel",
    ): "The pod has to ask for them: resources.limits gpu.intel.com/i915 or gpu.intel.com/xe.",
}
_MODULES = {"nvidia": "nvidia", "amd": "amdgpu", "intel": "i915 or xe"}


def _install(evidence: Evidence) -> str:
    """Another build of the framework, for the devices granted."""
    name, vendor = evidence.framework.name, evidence.vendor
    if (name, vendor) == ("torch", "nvidia"):
        return _wheel(evidence) or "Install a build of PyTorch for CUDA: pytorch.org/get-started/locally."
    if (name, vendor) == ("torch", "amd"):
        return "Install a build of PyTorch for ROCm: pytorch.org/get-started/locally lists its --index-url."
    if (name, vendor) == ("torch", "intel"):
        return "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/xpu"
    if (name, vendor) == ("tensorflow", "nvidia"):
        return "pip install --upgrade 'tensorflow[and-cuda]'"
    if (name, vendor) == ("jax", "nvidia"):
        return f"pip install --upgrade 'jax[cuda{_jax_cuda(evidence)}]'"
    return f"Install a build of {FRAMEWORKS.get(name, name)} for {PLATFORM_NAMES[vendor]}."


def _wheel(evidence: Evidence, capability: str | None = None) -> str | None:
    """The command that installs a PyTorch for these devices and this driver; None: none is known."""
    if (evidence.framework.name, evidence.vendor) != ("torch", "nvidia"):
        return None
    found = compatibility.torch_wheel(
        evidence.machine,
        capability=capability or next(iter(evidence.capabilities), None),
        driver=evidence.kernel_driver,
        driver_cuda=evidence.driver.cuda if evidence.driver else None,
        installed=evidence.framework.version,
    )
    return compatibility.install_torch(*found) if found else None


def _jax_cuda(evidence: Evidence) -> int:
    """The newest CUDA of JAX that driver and devices are known to do; else the oldest."""
    says = evidence.driver.cuda if evidence.driver else None
    for major, least in sorted(compatibility.JAX_CUDA.items(), reverse=True):
        fits = all(compatibility.parse(c) >= compatibility.parse(least) for c in evidence.capabilities)
        if fits and compatibility.driver_runs(str(major), evidence.kernel_driver, says):
            return major
    return min(compatibility.JAX_CUDA)


def _older_build(evidence: Evidence, cuda: str) -> str:
    """What to do where a driver does not run a build's CUDA."""
    fitting = _wheel(evidence)
    least = compatibility.least_driver(cuda)
    update = f"update the NVIDIA driver to {least} or newer" if least else "update the NVIDIA driver"
    return f"Install a build for an older CUDA{f': {fitting}' if fitting else ''}. Or {update}."


def _with_kernels(evidence: Evidence, device: str) -> str:
    """What to do where a build has no kernels for a device of this compute capability."""
    fitting = _wheel(evidence, device)
    cuda = compatibility.fitting_cuda(device)
    built = f" (built with {cuda})" if cuda else ""
    return (
        fitting
        or f"Install a build of it that has kernels for {compatibility.capability_name(device)}{built}."
    )


def _unset(variable: str) -> str:
    """What to do where a variable hides devices."""
    return (
        f"Leave {variable} alone in the step, in what it imports and in the shell: "
        "a step sees the devices that it was granted, and no others."
    )


def _let_compute(evidence: Evidence, variable: str) -> str:
    """What to do where a variable tells a framework to compute on something else."""
    name = evidence.framework.name
    return (
        f"Leave {variable} alone in the step, in what it imports and in the shell; "
        f"where {FRAMEWORKS.get(name, name)} is to leave the devices to another framework, "
        f"set {MAY_MISS}={name}."
    )


def may_miss(environment: Mapping[str, str]) -> set[str]:
    """The frameworks that may see fewer devices, by the variables of an environment."""
    return {part.strip() for part in environment.get(MAY_MISS, "").split(",")} - {""}


def or_without(name: str, remedy: str) -> str:
    """A remedy, and what to do where the step does not need its devices for this framework."""
    if MAY_MISS in remedy:
        return remedy
    return f"{remedy}\nOr, if this step needs no GPU for it: gpu_count=0, or {MAY_MISS}={name}."


def _pass_devices(evidence: Evidence) -> str:
    """How a container is started with its devices."""
    return _WAYS_IN.get((evidence.container or "", evidence.vendor), "Start the container with its devices.")


def _load_module(evidence: Evidence) -> str:
    """What to do on a machine without device files."""
    module = _MODULES[evidence.vendor]
    problems = {file.path: file.problem for file in evidence.files}
    missing = {path for path, problem in problems.items() if problem == "missing"}
    loaded = evidence.kernel_driver or problems.get("/dev/nvidiactl", "missing") is None
    if loaded and missing == {"/dev/nvidia-uvm"}:
        return "sudo modprobe nvidia-uvm, or sudo nvidia-modprobe -u -c=0, makes it."
    if loaded:
        return "sudo nvidia-modprobe -u -c=0 makes the files."
    return f"Install the driver, or load its kernel module: {module}. dmesg shows why it does not load."


def _give_access(evidence: Evidence, file: DeviceFile) -> str:
    """What to do where a device file cannot be opened."""
    if evidence.container:
        return f"Start the container with its devices, which allows them as well: {_pass_devices(evidence)}"
    group = (file.owner or "").rpartition(":")[2]
    if group in ("", "root"):
        return f"Let the user read and write it: sudo chmod a+rw {file.path}."
    return f"Add the user to the file's group, and log in again: sudo usermod -aG {group} $USER"


def _restart(evidence: Evidence) -> str:
    """What to do where the halves of the driver differ."""
    if evidence.container:
        return (
            "The library must be the host's, which the NVIDIA Container Toolkit mounts: take libcuda.so.1 "
            "and cuda-compat out of the image. If the host says the same, restart the host."
        )
    return "The driver was updated without a restart: restart the machine, or unload and load its modules."


def _driver_library(evidence: Evidence) -> str:
    """What to do where there is no ``libcuda.so.1``."""
    if evidence.container:
        return (
            f"The library comes from the host, with the devices: {_pass_devices(evidence)} "
            "NVIDIA_DRIVER_CAPABILITIES must hold compute."
        )
    return (
        "Install the driver's user libraries, of the version of the driver; if they are there, run ldconfig."
    )


def _cuda_libraries(evidence: Evidence) -> str:
    """What to do where the libraries of CUDA are missing."""
    if evidence.framework.name == "torch":
        return _wheel(evidence) or "Install PyTorch again, with the packages that it needs: nvidia-…"
    return _install(evidence)
