"""The words of findings: what frameworks, devices and containers are called, and what to do about a cause.

The causes are those that :mod:`upshift.runtime.accelerators.explain` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.evidence import DeviceFile, Evidence

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
PLATFORMS = {"nvidia": "CUDA", "amd": "ROCm", "intel": "Intel GPUs (XPU)"}
_KINDS = {"a container": "container", "Kubernetes": "pod"}


def framework(evidence: Evidence) -> str:
    """The framework and its version: ``PyTorch 2.13.0+cpu``."""
    found = evidence.framework
    return f"{FRAMEWORKS.get(found.name, found.name)} {found.version}".rstrip()


def grant(evidence: Evidence) -> str:
    """``the 2 GPUs granted``, ``the GPU and 2 slices granted``."""
    slices = sum(device.partition is not None for device in evidence.granted)
    counts = ((len(evidence.granted) - slices, "GPU"), (slices, "slice"))
    parts = [name if number == 1 else f"{number} {name}s" for number, name in counts if number]
    return f"the {' and '.join(parts)} {evidence.whose}"


def models(evidence: Evidence) -> str:
    """``2 × NVIDIA H100``."""
    names = [device.model or device.kind or "GPU" for device in evidence.granted]
    if len(set(names)) > 1:
        return ", ".join(names)
    return names[0] if len(names) == 1 else f"{len(names)} × {names[0]}"


def model(evidence: Evidence, capability: str) -> str:
    """The granted device that has a compute capability."""
    names = [d.model or d.kind for d in evidence.granted if d.compute_capability in (capability, None)]
    return f"the {names[0]}" if names and names[0] else "the device"


def sight(evidence: Evidence) -> str:
    """``PyTorch 2.13.0 sees 1 of the 2 GPUs granted``."""
    devices = evidence.framework.devices
    if not devices and len(evidence.granted) == 1:
        return f"{framework(evidence)} does not see {grant(evidence)}"
    return f"{framework(evidence)} sees {devices or 'none'} of {grant(evidence)}"


def capability(text: str) -> str:
    """``compute capability 9.0``; ``gfx942`` says itself what it is."""
    return f"compute capability {text}" if compatibility.parse(text) else text


def container(kind: str) -> str:
    """The kind of container in words: ``Docker container``."""
    return _KINDS.get(kind, f"{kind} container")


def place(evidence: Evidence) -> str:
    """``this Docker container``, ``this environment``."""
    return f"this {container(evidence.container)}" if evidence.container else "this environment"


def listed(paths: Sequence[str]) -> str:
    """Three of them at most."""
    return ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")


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


def install(evidence: Evidence) -> str:
    """Another build of the framework, for the devices granted."""
    name, vendor = evidence.framework.name, evidence.vendor
    if (name, vendor) == ("torch", "nvidia"):
        return wheel(evidence) or "Install a build of PyTorch for CUDA: pytorch.org/get-started/locally."
    if (name, vendor) == ("torch", "amd"):
        return "Install a build of PyTorch for ROCm: pytorch.org/get-started/locally lists its --index-url."
    if (name, vendor) == ("torch", "intel"):
        return "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/xpu"
    if (name, vendor) == ("tensorflow", "nvidia"):
        return "pip install --upgrade 'tensorflow[and-cuda]'"
    if (name, vendor) == ("jax", "nvidia"):
        return f"pip install --upgrade 'jax[cuda{_jax_cuda(evidence)}]'"
    return f"Install a build of {FRAMEWORKS.get(name, name)} for {PLATFORMS[vendor]}."


def wheel(evidence: Evidence, capability: str | None = None) -> str | None:
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


def older_build(evidence: Evidence, cuda: str) -> str:
    """What to do where a driver does not run a build's CUDA."""
    fitting = wheel(evidence)
    least = compatibility.least_driver(cuda)
    update = f"update the NVIDIA driver to {least} or newer" if least else "update the NVIDIA driver"
    return f"Install a build for an older CUDA{f': {fitting}' if fitting else ''}. Or {update}."


def with_kernels(evidence: Evidence, device: str) -> str:
    """What to do where a build has no kernels for a device of this compute capability."""
    fitting = wheel(evidence, device)
    cuda = compatibility.fitting_cuda(device)
    built = f" (built with {cuda})" if cuda else ""
    return fitting or f"Install a build of it that has kernels for {capability(device)}{built}."


def unset(variable: str) -> str:
    """What to do where a variable hides devices."""
    return (
        f"Leave {variable} alone in the step, in what it imports and in the shell: "
        "a step sees the devices that it was granted, and no others."
    )


def let_compute(evidence: Evidence, variable: str) -> str:
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


def pass_devices(evidence: Evidence) -> str:
    """How a container is started with its devices."""
    return _WAYS_IN.get((evidence.container or "", evidence.vendor), "Start the container with its devices.")


def load_module(evidence: Evidence) -> str:
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


def give_access(evidence: Evidence, file: DeviceFile) -> str:
    """What to do where a device file cannot be opened."""
    if evidence.container:
        return f"Start the container with its devices, which allows them as well: {pass_devices(evidence)}"
    group = (file.owner or "").rpartition(":")[2]
    if group in ("", "root"):
        return f"Let the user read and write it: sudo chmod a+rw {file.path}."
    return f"Add the user to the file's group, and log in again: sudo usermod -aG {group} $USER"


def restart(evidence: Evidence) -> str:
    """What to do where the halves of the driver differ."""
    if evidence.container:
        return (
            "The library must be the host's, which the NVIDIA Container Toolkit mounts: take libcuda.so.1 "
            "and cuda-compat out of the image. If the host says the same, restart the host."
        )
    return "The driver was updated without a restart: restart the machine, or unload and load its modules."


def driver_library(evidence: Evidence) -> str:
    """What to do where there is no ``libcuda.so.1``."""
    if evidence.container:
        return (
            f"The library comes from the host, with the devices: {pass_devices(evidence)} "
            "NVIDIA_DRIVER_CAPABILITIES must hold compute."
        )
    return (
        "Install the driver's user libraries, of the version of the driver; if they are there, run ldconfig."
    )


def cuda_libraries(evidence: Evidence) -> str:
    """What to do where the libraries of CUDA are missing."""
    if evidence.framework.name == "torch":
        return wheel(evidence) or "Install PyTorch again, with the packages that it needs: nvidia-…"
    return install(evidence)
