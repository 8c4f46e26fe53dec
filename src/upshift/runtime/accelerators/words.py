"""How frameworks, devices and containers are called in findings and remedies."""

from __future__ import annotations

from collections.abc import Sequence

from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.evidence import Evidence

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
