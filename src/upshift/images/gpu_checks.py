"""Whether an image computes on the devices that a step asks for (:func:`findings`), and which one would
(:func:`nearest`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.images.base import ERROR, NOTE, WARNING, Contents, Finding, Ingredients, Lock, Needs, Parent
from upshift.images.parents.contents import known_image
from upshift.images.parents.known import PYTORCH_PYTHON, TABLE, cuda_in, minor, rocm_of
from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.compatibility import parse

_READ = "2026-11-21"
"""When the tables of this module were read."""

_DRIVERS = f"NVIDIA, 'CUDA Compatibility' and 'CUDA Toolkit Release Notes', read on {_READ}"
_ROCM = "rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0"
_NEURON = (
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training-neuronx:"
    "2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# NVIDIA, 'CUDA Installation Guide for Linux', 'Meta Packages'; packages.debian.org. Read on 2026-11-21.
_WITH_CUDA = re.compile(
    r"cuda(?:-(?:toolkit|runtime|libraries|cudart))?(?:-(\d+)-(\d+))?"
    r"|nvidia-cuda-toolkit|libcudart(\d+)(?:\.\d+)?"
)


@attrs.frozen(kw_only=True)
class Subject:
    """An image that is checked, and what its steps need of it."""

    ingredients: Ingredients
    parent: Parent | None  # None: it could not be read
    contents: Contents  # what the parent has
    after: Contents  # what there is once the packages of `lock` are installed
    lock: Lock | None
    needs: Needs

    @property
    def name(self) -> str:
        """What messages call the image."""
        return str(self.parent.reference) if self.parent else self.ingredients.recipe.parent or "the image"

    @property
    def source(self) -> str | None:
        """Where the facts of a finding on it were read; None: in the image itself."""
        named = known_image(self.name) if self.contents.source == TABLE else None
        return named.source if named else None

    @property
    def machine(self) -> str:
        """Its processor, as wheels call it: ``x86_64``."""
        architecture = self.ingredients.recipe.platform.partition("/")[2].partition("/")[0]
        return _MACHINES.get(architecture, architecture)

    @property
    def packages(self) -> Mapping[str, str]:
        """The packages that there will be, as far as they are known."""
        return self.after.packages or {}

    def nearest(self, torch: str | None, cuda: str | None = None) -> Official | None:
        """The official image that fits these needs and is closest to what was asked for."""
        return nearest(
            driver=self.needs.driver,
            architectures=self.needs.architectures,
            python=self.needs.python,
            torch=torch,
            cuda=cuda,
            platform=self.ingredients.recipe.platform,
        )


@attrs.frozen(kw_only=True)
class GpuStack:
    """What a step computes with on GPUs of NVIDIA, and the evidence for it."""

    cuda: str | None  # empty: there is none; None: not known
    torch: str | None
    why: str
    field: str = "parent_image"

    @property
    def which(self) -> str:
        """Where it is from, as a clause that follows its name."""
        whose = {"requirements": "the requirements", "apt_packages": "apt_packages"}
        return f"which {whose[self.field]} bring" if self.field in whose else "which {} has"


def findings(subject: Subject) -> Iterator[Finding]:
    """What speaks against an image on the devices that are asked for."""
    contents, gpus = subject.contents, subject.needs.gpus
    if "nvidia" in gpus:
        yield from _nvidia(subject)
    if "amd" in gpus and contents.stacks.get("amd") == "" and not rocm_of(subject.packages.get("torch", "")):
        yield _lacks("no-rocm", "AMD", "ROCm", _ROCM, subject)
    neuron = any(one.startswith(("neuronx", "torch-neuron", "jax-neuron")) for one in subject.packages)
    if "neuron" in gpus and contents.stacks.get("neuron") == "" and not neuron:
        yield _lacks("no-neuron", "AWS Neuron", "Neuron SDK", _NEURON, subject)


def _stack_of(subject: Subject) -> GpuStack:
    """What there is to compute with, once everything is installed."""
    brought = subject.lock.versions if subject.lock is not None else {}
    torch = subject.packages.get("torch")
    cuda = cuda_in(brought)
    if cuda is not None or "torch" in brought:
        said = f"requirements bring torch {torch}" if "torch" in brought else "requirements bring it"
        return GpuStack(cuda=cuda, torch=torch, why=said, field="requirements")
    debian = cuda_by_debian(subject.ingredients.recipe.apt_packages)
    if subject.contents.cuda == "" and debian is not None:
        return GpuStack(
            cuda=debian[0], torch=torch, why=f"apt_packages name {debian[1]}", field="apt_packages"
        )
    return GpuStack(cuda=subject.contents.cuda, torch=torch, why=subject.contents.source)


def _nvidia(subject: Subject) -> Iterator[Finding]:
    stack, name, parent = _stack_of(subject), subject.name, subject.parent
    fix = _instead(subject, stack)
    if stack.cuda == "":
        rocm = rocm_of(stack.torch or "")
        with_rocm = f"; it is for GPUs of AMD, with ROCm {rocm}" if rocm else ""
        what = f"A GPU of NVIDIA is asked for, and {name} has no CUDA."
        if stack.field == "requirements":
            what = "A GPU of NVIDIA is asked for, and the PyTorch of the requirements is built without CUDA."
            fix = "Leave the index of CPU builds, and +cpu, out of the requirements."
        yield Finding(
            severity=ERROR,
            name="no-cuda",
            field=stack.field,
            what=what,
            evidence=stack.why + with_rocm,
            fix=fix,
            source=subject.source if stack.field == "parent_image" else None,
        )
        return
    if not stack.cuda:
        if parent is not None and stack.field == "parent_image":
            yield Finding(
                severity=NOTE,
                field="parent_image",
                what=f"Whether {name} has CUDA is not known.",
                evidence="neither its configuration nor a table says it, and it was not looked into",
                fix=f"If it has none: {fix}",
            )
        return
    environment = {**(parent.environment if parent else {}), **subject.ingredients.recipe.environment}
    compat = _compat(environment, subject.contents, subject.needs.driver)
    yield from _driver(stack, name, subject.needs, fix, compat)
    if parent is not None:
        yield from _requirements_of(environment, name, subject.needs, fix)
        yield from _capabilities(environment, name)
    yield from _kernels(stack, subject, fix)


def _instead(subject: Subject, stack: GpuStack) -> str:
    """The nearest official image that fits; of a PyTorch in requirements, another wheel of it."""
    needs = subject.needs
    if stack.field == "requirements" and stack.torch is not None:
        wheel = compatibility.torch_wheel(
            subject.machine,
            capability=next(iter(needs.architectures), None),
            driver=needs.driver,
            installed=stack.torch,
        )
        if wheel is not None:
            index = f"https://download.pytorch.org/whl/cu{wheel[1].replace('.', '')}"
            return f'Put "torch=={wheel[0]}.*" and "--extra-index-url {index}" in requirements.'
    found = subject.nearest(stack.torch)
    if found is None:
        return (
            "Take an image with a CUDA for this driver and these devices: docs, 'Choose an image with CUDA'."
        )
    return f'parent_image="{found.reference}" fits: {found.holds}.'


def _compat(environment: Mapping[str, str], contents: Contents, driver: str | None) -> str | None:
    """What says that an image brings its own libraries for an older driver; None: nothing does.

    NVIDIA's images name in NVIDIA_REQUIRE_CUDA the branches of older drivers that their package cuda-compat
    works with, on GPUs for data centers.
    """
    said = environment.get("NVIDIA_REQUIRE_CUDA", "")
    named = [one for one in said.split() if "driver" in one]
    if driver and any(_met(one, driver) for one in named):
        return "NVIDIA_REQUIRE_CUDA names this driver"
    return "it has cuda-compat" if contents.compat else None


def _driver(stack: GpuStack, name: str, needs: Needs, fix: str, compat: str | None) -> Iterator[Finding]:
    assert stack.cuda
    what = stack.which.format(name)
    if compatibility.driver_runs(stack.cuda, needs.driver, None) is False:
        least = compatibility.least_driver(stack.cuda)
        if compat is not None:
            yield Finding(
                severity=NOTE if compat.startswith("NVIDIA") else WARNING,
                field=stack.field,
                what=f"CUDA {stack.cuda}, {what}, runs with driver {needs.driver} by forward compatibility.",
                evidence=f"{stack.why}; {compat}, for GPUs of data centers alone",
                fix=f"On other GPUs, update the driver to {least} or newer.",
                source=_DRIVERS,
            )
            return
        yield Finding(
            severity=ERROR,
            name="driver-too-old",
            field=stack.field,
            what=f"The NVIDIA driver {needs.driver} does not run CUDA {stack.cuda}, {what}.",
            evidence=f"{stack.why}; CUDA {parse(stack.cuda)[0]} needs a driver from {least} on",
            fix=f"{fix} Or update the driver to {least} or newer.",
            source=_DRIVERS,
        )
        return
    newest = compatibility.newest_cuda(needs.driver)
    if newest is not None and parse(stack.cuda) > parse(newest):
        yield Finding(
            severity=NOTE,
            field=stack.field,
            what=f"CUDA {stack.cuda}, {what}, is newer than the driver {needs.driver}, of CUDA {newest}.",
            evidence=f"{stack.why}; releases of one major version run, but compile nothing at run time (PTX)",
            fix=_without_limit(needs),
            source=_DRIVERS,
        )


def _without_limit(needs: Needs) -> str:
    """What to do where code has to be compiled at run time."""
    newest = parse(compatibility.newest_cuda(needs.driver))
    for image in OFFICIAL:
        if parse(image.cuda) <= newest and fits(
            image, driver=needs.driver, architectures=needs.architectures, python=needs.python
        ):
            return f'Where that is needed: parent_image="{image.reference}", or a newer driver.'
    return "Where that is needed: a newer driver."


def _requirements_of(environment: Mapping[str, str], name: str, needs: Needs, fix: str) -> Iterator[Finding]:
    """What the image itself asks of the driver, for which the container would not start."""
    if not needs.driver or environment.get("NVIDIA_DISABLE_REQUIRE", "0").lower() in ("1", "true"):
        return
    for variable, said in sorted(environment.items()):
        if (
            variable.startswith("NVIDIA_REQUIRE_")
            and said
            and not any(_met(alternative, needs.driver) for alternative in said.split())
        ):
            shown = said if len(said) < 60 else said[:57] + "…"
            yield Finding(
                severity=ERROR,
                name="image-refuses-driver",
                field="parent_image",
                what=f"{name} does not start with the NVIDIA driver {needs.driver}, by its own word.",
                evidence=f"{variable}={shown} in its configuration",
                fix=f'{fix} Or start it anyway: environment={{"NVIDIA_DISABLE_REQUIRE": "1"}}.',
                source=f"NVIDIA, nvidia-container-runtime README, 'NVIDIA_REQUIRE_*', read on {_READ}",
            )


def _met(alternative: str, driver: str) -> bool:
    """Whether all conditions of an alternative hold. A brand is not known here, and counts as met."""
    return all(_holds(condition, driver) for condition in alternative.split(","))


_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def _holds(condition: str, driver: str) -> bool:
    found = re.fullmatch(r"(cuda|driver)(>=|<=|=|!=|<|>)([\d.]+)", condition)
    if not found:
        return True
    have = parse(compatibility.newest_cuda(driver) if found[1] == "cuda" else driver)
    wanted = parse(found[3])
    if not have:
        return True
    have = have[: len(wanted)]
    return _COMPARED[found[2]](have, wanted)


def _capabilities(environment: Mapping[str, str], name: str) -> Iterator[Finding]:
    said = environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if said and not {"all", "compute"} & {part.strip() for part in said.split(",")}:
        yield Finding(
            severity=WARNING,
            field="parent_image",
            what=f"{name} asks the container runtime for no libraries to compute with.",
            evidence=f"NVIDIA_DRIVER_CAPABILITIES={said} in its configuration",
            fix='Set environment={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}.',
        )


def _kernels(stack: GpuStack, subject: Subject, fix: str) -> Iterator[Finding]:
    assert stack.cuda
    kernels = _kernels_of(stack.torch, stack.cuda, subject.machine)
    for capability in subject.needs.architectures:
        if _runs_on(capability, stack.cuda, stack.torch, subject.machine):
            continue
        if kernels is not None:
            what = f"PyTorch {stack.torch} has no kernels for compute capability {capability}."
            evidence = f"its wheel for CUDA {stack.cuda} has {', '.join(kernels)}"
        elif "." in stack.cuda:
            what = f"CUDA {stack.cuda}, {stack.which.format(subject.name)}, "
            what += f"does not know compute capability {capability}."
            evidence = f"{capability} needs {compatibility.fitting_cuda(capability)}"
        else:
            continue  # of a release that names no minor version little is known
        yield Finding(
            severity=ERROR if stack.torch else WARNING,
            name="no-kernels",
            field=stack.field,
            what=what,
            evidence=f"{stack.why}; {evidence}",
            fix=fix,
            source=_DRIVERS if kernels is None else f"pytorch/pytorch RELEASE.md, read on {_READ}",
        )


def _lacks(finding: str, vendor: str, needed: str, official: str, subject: Subject) -> Finding:
    return Finding(
        severity=ERROR,
        name=finding,
        field="parent_image",
        what=f"A device of {vendor} is asked for, and {subject.name} has no {needed}.",
        evidence=subject.contents.source,
        fix=f'parent_image="{official}" has it.',
        source=f"tags of the publisher, read on {_READ}",
    )


# -- official images, which findings recommend ----------------------------------------------------


@attrs.frozen(kw_only=True)
class Official:
    """An official image for GPUs of NVIDIA, and what is in it."""

    reference: str
    torch: str
    cuda: str
    python: str

    @property
    def holds(self) -> str:
        """What is in it, for people."""
        return f"PyTorch {self.torch}, CUDA {self.cuda}, Python {self.python}"


def _pytorch(releases: str) -> tuple[Official, ...]:
    images = []
    for release in releases.split():
        torch, cuda, cudnn = release.split("/")
        python = PYTORCH_PYTHON.get(torch) or PYTORCH_PYTHON[minor(torch)]
        reference = f"pytorch/pytorch:{torch}-cuda{cuda}-cudnn{cudnn}-runtime"
        images.append(Official(reference=reference, torch=torch, cuda=cuda, python=python))
    return tuple(images)


OFFICIAL: tuple[Official, ...] = _pytorch(
    "2.14.1/13.2/9 2.14.1/13.0/9 2.14.1/12.6/9 "
    "2.13.0/13.2/9 2.13.0/13.0/9 2.13.0/12.6/9 "
    "2.12.1/13.0/9 2.12.1/12.6/9 "
    "2.11.0/13.0/9 2.11.0/12.8/9 2.11.0/12.6/9 "
    "2.10.0/13.0/9 2.10.0/12.8/9 2.10.0/12.6/9 "
    "2.9.1/13.0/9 2.9.1/12.8/9 2.9.1/12.6/9 "
    "2.8.0/12.9/9 2.8.0/12.8/9 2.8.0/12.6/9 "
    "2.7.1/12.8/9 2.7.1/12.6/9 2.7.1/11.8/9 "
    "2.6.0/12.6/9 2.6.0/12.4/9 2.6.0/11.8/9 "
    "2.5.1/12.4/9 2.5.1/12.1/9 2.5.1/11.8/9 "
    "2.4.1/12.4/9 2.4.1/12.1/9 2.4.1/11.8/9 "
    "2.3.1/12.1/8 2.3.1/11.8/8 "
    "2.2.2/12.1/8 2.2.2/11.8/8 "
    "2.1.2/12.1/8 2.1.2/11.8/8 "
    "2.0.1/11.7/8 "
    "1.13.1/11.6/8"
)
"""The runtime images of PyTorch, newest first: release, CUDA, cuDNN. Each tag was seen in public files that
build on it.
"""


def fits(
    image: Official,
    *,
    driver: str | None = None,
    architectures: Iterable[str] = (),
    python: str | None = None,
    machine: str = "x86_64",
) -> bool:
    """Whether an image runs with a driver, on devices, and for a Python, as far as that is known."""
    if python is not None and python != image.python:
        return False
    if driver is not None and compatibility.driver_runs(image.cuda, driver, None) is False:
        return False
    return all(_runs_on(capability, image.cuda, image.torch, machine) for capability in architectures)


def _kernels_of(torch: str | None, cuda: str, machine: str) -> Sequence[str] | None:
    """The devices that a wheel of PyTorch has kernels for; None: not known."""
    return compatibility.TORCH_WHEELS.get(machine, {}).get(minor(torch or ""), {}).get(cuda)


def _runs_on(capability: str, cuda: str, torch: str | None, machine: str) -> bool:
    """Whether a CUDA release, and the wheel of PyTorch for it, know a device, as far as the tables say."""
    kernels = _kernels_of(torch, cuda, machine)
    if kernels is not None:
        return compatibility.has_kernels(kernels, capability) is not False
    found = compatibility.SUPPORTED_BY_CUDA.get(capability)
    if found is None:
        return True
    first, last = found
    return parse(first)[:2] <= parse(cuda)[:2] and (last is None or parse(cuda)[0] <= last)


def nearest(
    *,
    driver: str | None = None,
    architectures: Iterable[str] = (),
    python: str | None = None,
    torch: str | None = None,
    cuda: str | None = None,
    platform: str = "linux/amd64",
) -> Official | None:
    """The official image that fits and is closest to what was asked for; None: none is known."""
    if platform.split("/")[:2] != ["linux", "amd64"]:
        return None
    capabilities = tuple(architectures)
    fitting = [i for i in OFFICIAL if fits(i, driver=driver, architectures=capabilities, python=python)]
    if not fitting:
        return None
    alike = [image for image in fitting if parse(image.cuda)[0] == parse(cuda)[0]] if cuda else []
    if alike and not torch:
        return min(alike, key=lambda image: _distance(image.cuda, cuda))
    wanted = parse(torch)[:2]
    newer = [image for image in fitting if parse(image.torch)[:2] >= wanted] if wanted else []
    release = (newer[-1] if newer else fitting[0]).torch
    of_it = [image for image in fitting if image.torch == release]
    return next((image for image in of_it if _settled(image, driver)), of_it[-1])


def _distance(one: str, other: str | None) -> int:
    """Between two releases of a major version of CUDA, as far as both say which they are."""
    return sum(abs(a - b) for a, b in zip(parse(one)[1:2], parse(other)[1:2], strict=False))


def _settled(image: Official, driver: str | None) -> bool:
    """Whether a driver has everything of an image's CUDA. An unknown one is assumed to be old."""
    newest = compatibility.newest_cuda(driver)
    return newest is not None and parse(image.cuda) <= parse(newest)


# -- Debian packages --------------------------------------------------------------------------------


def cuda_by_debian(packages: Iterable[str]) -> tuple[str | None, str] | None:
    """The version of CUDA that these bring, None where it is not known, and which does; None: none does."""
    for package in packages:
        found = _WITH_CUDA.fullmatch(bare_name(package))
        if found is not None:
            major = found[1] or found[3]
            return (f"{major}.{found[2]}" if found[2] else major), package
    return None


def bare_name(package: str) -> str:
    """The name of a Debian package, without a version, a release or an architecture."""
    return re.split(r"[=/:]", package, maxsplit=1)[0]
