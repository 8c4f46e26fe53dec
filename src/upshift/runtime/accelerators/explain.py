"""Why a framework sees fewer devices than a step was granted, and what to do: from evidence to a finding.

Pure functions. Each cause has a function that looks for it; the first that answers names what is to be
mended first: a wheel without CUDA needs no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from upshift.model.spec.hardware import Device
from upshift.runtime.accelerators import compatibility, words
from upshift.runtime.accelerators.evidence import PLATFORMS, VISIBILITY, Evidence, leaves_out_gpus
from upshift.runtime.accelerators.vendor import MAKERS

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
        f"granted: {words.models(evidence)}",
        f"{words.framework(evidence)} is built for {framework.built_for or 'CPUs only'}",
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
    return (*found, f"in {words.place(evidence)}")


# -- the causes, in the order in which they are looked for ----------------------------------------


def _cpu_only(evidence: Evidence) -> DeviceFault | None:
    if evidence.framework.built_for is not None:
        return None
    return DeviceFault(
        cause="cpu-only",
        sentence=f"{words.framework(evidence)} is built for CPUs only: it cannot use {words.grant(evidence)}",
        remedy=words.install(evidence),
    )


def _other_platform(evidence: Evidence) -> DeviceFault | None:
    built_for = evidence.framework.built_for or ""
    if built_for.partition(" ")[0] == _BUILT_FOR[evidence.vendor]:
        return None
    maker = MAKERS[evidence.vendor]
    return DeviceFault(
        cause="other-platform",
        sentence=f"{words.framework(evidence)} is built for {built_for}, and what was granted is of {maker}: "
        f"{words.models(evidence)}",
        remedy=words.install(evidence),
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
            sentence=f"{name}={now} hides devices{before}: {words.sight(evidence)}",
            remedy=words.unset(name),
        )
    name = PLATFORMS.get(evidence.framework.name, "")
    now = evidence.visible.get(name, "")
    if not leaves_out_gpus(now):
        return None
    return DeviceFault(
        cause="hidden",
        sentence=f"{name}={now} keeps {words.framework(evidence)} from {words.grant(evidence)}",
        remedy=words.let_compute(evidence, name),
    )


def _shown(value: str) -> int:
    """How many devices a list of them shows; what is negative ends it."""
    names = [name.strip() for name in value.split(",")]
    end = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return end


def _missing_devices(evidence: Evidence) -> DeviceFault | None:
    missing = words.listed([file.path for file in evidence.files if file.problem == "missing"])
    if not missing:
        return None
    if evidence.container:
        return DeviceFault(
            cause="devices",
            sentence=f"the devices were not passed into {words.place(evidence)}: there is no {missing}",
            remedy=words.pass_devices(evidence),
        )
    return DeviceFault(
        cause="devices",
        sentence=f"there is no {missing} on this machine: nothing can use {words.grant(evidence)}",
        remedy=words.load_module(evidence),
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
        sentence=f"{words.listed([file.path for file in closed])} cannot be opened: {first.problem}{owner}",
        remedy=words.give_access(evidence, first),
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
        remedy=words.restart(evidence),
    )


def _no_libraries(evidence: Evidence) -> DeviceFault | None:
    driver, says = evidence.driver, evidence.framework.problem or ""
    if driver is not None and (driver.library is None or driver.code == _STUB):
        what = "only a stub of" if driver.code == _STUB else "no"
        return DeviceFault(
            cause="no-libraries",
            sentence=f"there is {what} libcuda.so.1, the driver's library, in {words.place(evidence)}: "
            f"{words.framework(evidence)} cannot use {words.grant(evidence)}",
            remedy=words.driver_library(evidence),
        )
    if not any(words_of_it in says.lower() for words_of_it in _MISSING_LIBRARIES):
        return None
    return DeviceFault(
        cause="no-libraries",
        sentence=f"{words.framework(evidence)} does not find the CUDA libraries that it needs: {says}",
        remedy=words.cuda_libraries(evidence),
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
        sentence=f"{words.framework(evidence)} is built for CUDA {cuda}, and the NVIDIA driver{version} "
        f"runs CUDA up to {runs or 'an older one'}",
        remedy=words.older_build(evidence, cuda),
    )


def _no_kernels(evidence: Evidence) -> DeviceFault | None:
    architectures = evidence.framework.architectures
    for capability in evidence.capabilities:
        if compatibility.has_kernels(architectures, capability) is False:
            return DeviceFault(
                cause="no-kernels",
                sentence=f"{words.framework(evidence)} has no kernels for "
                f"{words.model(evidence, capability)}, which is of {words.capability(capability)}; "
                f"it has them for {', '.join(architectures)}",
                remedy=words.with_kernels(evidence, capability),
            )
    return None


def _unknown(evidence: Evidence) -> DeviceFault:
    return DeviceFault(
        cause="unknown",
        sentence=f"{words.sight(evidence)}; why is not known ({'; '.join(facts(evidence))})",
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
