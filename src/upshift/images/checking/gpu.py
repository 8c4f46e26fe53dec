"""Whether an image computes on the devices that a step asks for: :func:`findings`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from upshift.images.base import ERROR, NOTE, WARNING, Contents, Finding, Ingredients, Needs, Parent
from upshift.images.checking.debian import cuda_of as cuda_of_debian
from upshift.images.checking.official import OFFICIAL, compiles_for, fits, nearest
from upshift.images.checking.torch_releases import (
    COMPANIONS,
    CUDA_ON_PYPI,
    READ,
    cuda_of,
    minor,
    newest_torch,
    rocm_of,
)
from upshift.images.checking.wanted import Wanted
from upshift.images.parents.contents import known_image
from upshift.images.parents.known import TABLE
from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.compatibility import parse

_DRIVERS = f"NVIDIA, 'CUDA Compatibility' and 'CUDA Toolkit Release Notes', read on {READ}"
_ROCM = "rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0"
_NEURON = (
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training-neuronx:"
    "2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
)


@attrs.frozen(kw_only=True)
class Stack:
    """What a step computes with on GPUs of NVIDIA.

    Parameters
    ----------
    cuda
        Version of CUDA; empty: none; None: not known.
    torch
        Version of PyTorch, where there is one.
    why
        Evidence.
    field
        Of the settings that it comes from.
    """

    cuda: str | None
    torch: str | None
    why: str
    field: str = "parent_image"


def findings(
    ingredients: Ingredients, parent: Parent | None, contents: Contents, needs: Needs, wanted: Wanted
) -> Iterator[Finding]:
    """What speaks against an image on the devices that are asked for.

    Parameters
    ----------
    ingredients, parent, contents, needs
        As for :func:`upshift.images.checking.checks.check`.
    wanted
        What is to be installed.
    """
    if "nvidia" in needs.gpus:
        yield from _nvidia(ingredients, parent, contents, needs, wanted)
    if "amd" in needs.gpus and contents.stacks.get("amd") == "" and not _brings_rocm(wanted):
        yield _lacks("AMD", "ROCm", _ROCM, name_of(ingredients, parent), contents)
    neuron = any(name.startswith(("neuronx", "torch-neuron", "jax-neuron")) for name in wanted.requirements)
    if "neuron" in needs.gpus and contents.stacks.get("neuron") == "" and not neuron:
        yield _lacks("AWS Neuron", "Neuron SDK", _NEURON, name_of(ingredients, parent), contents)


def stack_of(contents: Contents, wanted: Wanted) -> Stack:
    """What there is to compute with, once the requirements are installed."""
    torch = wanted.requirements.get("torch")
    have = (contents.packages or {}).get("torch")
    if torch is not None and torch.url:
        return Stack(cuda=None, torch=None, why=f"requirements say {str(torch)!r}", field="requirements")
    if torch is not None and wanted.installs("torch", contents):
        return _of_torch(wanted.torch_pins(contents), f"requirements say {str(torch)!r}", wanted)
    for name in ("tensorflow", "jax"):
        requirement = wanted.requirements.get(name)
        extras = " ".join(requirement.extras) if requirement else ""
        if requirement is not None and "cuda" in extras:
            major = re.search(r"cuda(\d+)", extras)
            cuda = major[1] if major else _of_tensorflow(str(requirement.specifier))
            return Stack(
                cuda=cuda, torch=None, why=f"requirements say {str(requirement)!r}", field="requirements"
            )
    for name in wanted.requirements:
        found = re.fullmatch(r"(?:nvidia-cuda-runtime-cu|cupy-cuda)(\d+)x?", name)
        if found:
            return Stack(cuda=found[1], torch=have, why=f"requirements name {name}", field="requirements")
    if have is None and contents.complete and contents.packages is not None:
        bringer = next((name for name in wanted.brings() if name in COMPANIONS), None)
        if bringer is not None:
            return _of_torch(wanted.torch_pins(contents), f"{bringer} in requirements brings PyTorch", wanted)
    return Stack(cuda=contents.cuda, torch=have, why=contents.source)


def _of_torch(pins: Sequence[str], why: str, wanted: Wanted) -> Stack:
    local = re.search(r"\+([a-z]+[\d.]*)", " ".join(pins))
    build = local[1] if local else wanted.torch_build
    version = newest_torch([re.sub(r"\+[a-z0-9.]+", "", pin) for pin in pins])
    if build is not None and build != "auto":
        version = f"{version}+{build}" if version else None
        return Stack(cuda=cuda_of(f"0+{build}"), torch=version, why=why, field="requirements")
    cuda = CUDA_ON_PYPI.get(minor(version or "")) if wanted.machine == "x86_64" else None
    return Stack(cuda=cuda, torch=version, why=why, field="requirements")


def _of_tensorflow(specifier: str) -> str | None:
    pinned = re.search(r"[=~]=\s*([\d.]+)", specifier)
    return compatibility.TENSORFLOW_CUDA.get(minor(pinned[1])) if pinned else None


def name_of(ingredients: Ingredients, parent: Parent | None) -> str:
    """What messages call the image."""
    return str(parent.reference) if parent else ingredients.recipe.parent or "the image"


def source_of(ingredients: Ingredients, parent: Parent | None, contents: Contents) -> str | None:
    """Where the facts of a finding on an image were read; None: in the image itself."""
    named = known_image(name_of(ingredients, parent)) if contents.source == TABLE else None
    return named.source if named else None


def _brings_rocm(wanted: Wanted) -> bool:
    named = (str(requirement.specifier) for requirement in wanted.requirements.values())
    return (wanted.torch_build or "").startswith("rocm") or any("+rocm" in text for text in named)


def _nvidia(
    ingredients: Ingredients, parent: Parent | None, contents: Contents, needs: Needs, wanted: Wanted
) -> Iterator[Finding]:
    stack = stack_of(contents, wanted)
    name = name_of(ingredients, parent)
    fix = _instead(ingredients, stack, needs, wanted)
    installed = cuda_of_debian(ingredients.recipe.apt_packages)
    if stack.cuda == "" and installed is not None:
        why = f"apt_packages name {installed[1]}"
        stack = Stack(cuda=installed[0], torch=stack.torch, why=why, field="apt_packages")
    if stack.cuda == "":
        rocm = rocm_of(stack.torch or "")
        with_rocm = f"; it is for GPUs of AMD, with ROCm {rocm}" if rocm else ""
        what = f"A GPU of NVIDIA is asked for, and {name} has no CUDA."
        if stack.field == "requirements":
            what = "A GPU of NVIDIA is asked for, and the PyTorch of the requirements is built without CUDA."
            fix = "Leave the index of CPU builds, and +cpu, out of the requirements."
        yield Finding(
            severity=ERROR,
            field=stack.field,
            what=what,
            evidence=stack.why + with_rocm,
            fix=fix,
            source=source_of(ingredients, parent, contents) if stack.field == "parent_image" else None,
        )
        return
    if not stack.cuda:
        if parent is not None and stack.cuda is None and stack.field == "parent_image":
            yield Finding(
                severity=NOTE,
                field="parent_image",
                what=f"Whether {name} has CUDA is not known.",
                evidence="neither its configuration nor a table says it, and it was not looked into",
                fix=f"If it has none: {fix}",
            )
        return
    yield from _driver(stack, name, needs, fix)
    if parent is not None:
        environment = {**parent.environment, **ingredients.recipe.environment}
        yield from _requirements_of(environment, name, needs, fix)
        yield from _capabilities(environment, name)
    yield from _kernels(stack, name, needs, wanted, fix)


def _instead(ingredients: Ingredients, stack: Stack, needs: Needs, wanted: Wanted) -> str:
    """The nearest official image that fits; of a PyTorch in requirements, another wheel of it."""
    if stack.field == "requirements" and stack.torch is not None:
        wheel = compatibility.torch_wheel(
            wanted.machine,
            capability=next(iter(needs.architectures), None),
            driver=needs.driver,
            installed=stack.torch,
        )
        if wheel is not None:
            index = f"https://download.pytorch.org/whl/cu{wheel[1].replace('.', '')}"
            return f'Say "torch=={wheel[0]}.*" and "--extra-index-url {index}" in requirements.'
    found = nearest(
        driver=needs.driver,
        architectures=needs.architectures,
        python=needs.python,
        torch=stack.torch,
        platform=ingredients.recipe.platform,
    )
    if found is None:
        return "Take an image with a CUDA for this driver and these devices: docs, 'Images for GPUs'."
    return (
        f'parent_image="{found.reference}" fits: PyTorch {found.torch}, CUDA {found.cuda}, '
        f"Python {found.python}."
    )


def _named(field: str) -> str:
    return field if field == "apt_packages" else "the requirements"


def _driver(stack: Stack, name: str, needs: Needs, fix: str) -> Iterator[Finding]:
    assert stack.cuda
    what = f"which {name} has" if stack.field == "parent_image" else f"which {_named(stack.field)} bring"
    if compatibility.driver_runs(stack.cuda, needs.driver, None) is False:
        least = compatibility.least_driver(stack.cuda)
        yield Finding(
            severity=ERROR,
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
        if variable.startswith("NVIDIA_REQUIRE_") and said and not _met(said, needs.driver):
            shown = said if len(said) < 60 else said[:57] + "…"
            yield Finding(
                severity=ERROR,
                field="parent_image",
                what=f"{name} does not start with the NVIDIA driver {needs.driver}, by its own word.",
                evidence=f"{variable}={shown} in its configuration",
                fix=fix,
                source=f"NVIDIA, nvidia-container-runtime README, 'NVIDIA_REQUIRE_*', read on {READ}",
            )


def _met(requirement: str, driver: str) -> bool:
    """Whether any of its alternatives holds: conditions are joined by commas, alternatives by spaces.

    A brand is not known here, and counts as met.
    """
    return any(
        all(_holds(condition, driver) for condition in alternative.split(","))
        for alternative in requirement.split()
    )


def _holds(condition: str, driver: str) -> bool:
    found = re.fullmatch(r"(cuda|driver)(>=|<=|=|!=|<|>)([\d.]+)", condition)
    if not found:
        return True
    have = parse(compatibility.newest_cuda(driver) if found[1] == "cuda" else driver)
    wanted = parse(found[3])
    if not have:
        return True
    have = have[: len(wanted)]
    compared = (have > wanted) - (have < wanted)
    return {
        ">=": compared >= 0,
        "<=": compared <= 0,
        "=": compared == 0,
        "!=": compared != 0,
        "<": compared < 0,
        ">": compared > 0,
    }[found[2]]


def _capabilities(environment: Mapping[str, str], name: str) -> Iterator[Finding]:
    said = environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if said and not {"all", "compute"} & {part.strip() for part in said.split(",")}:
        yield Finding(
            severity=WARNING,
            field="parent_image",
            what=f"{name} asks the container runtime for no libraries to compute with.",
            evidence=f"NVIDIA_DRIVER_CAPABILITIES={said} in its configuration",
            fix='Say environment={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}.',
        )


def _kernels(stack: Stack, name: str, needs: Needs, wanted: Wanted, fix: str) -> Iterator[Finding]:
    assert stack.cuda
    table = compatibility.TORCH_WHEELS.get(wanted.machine, {}).get(minor(stack.torch or ""), {})
    kernels = table.get(stack.cuda)
    for capability in needs.architectures:
        if kernels is not None:
            if compatibility.has_kernels(kernels, capability) is False:
                yield Finding(
                    severity=ERROR,
                    field=stack.field,
                    what=f"PyTorch {stack.torch} has no kernels for compute capability {capability}.",
                    evidence=f"{stack.why}; its wheel for CUDA {stack.cuda} has {', '.join(kernels)}",
                    fix=fix,
                    source=f"pytorch/pytorch RELEASE.md, read on {READ}",
                )
        elif "." in stack.cuda and not compiles_for(stack.cuda, capability):
            what = (
                f"which {name} has" if stack.field == "parent_image" else f"which {_named(stack.field)} bring"
            )
            yield Finding(
                severity=ERROR if stack.torch else WARNING,
                field=stack.field,
                what=f"CUDA {stack.cuda}, {what}, does not know compute capability {capability}.",
                evidence=f"{stack.why}; {capability} needs {compatibility.fitting_cuda(capability)}",
                fix=fix,
                source=_DRIVERS,
            )


def _lacks(vendor: str, needed: str, official: str, name: str, contents: Contents) -> Finding:
    return Finding(
        severity=ERROR,
        field="parent_image",
        what=f"A device of {vendor} is asked for, and {name} has no {needed}.",
        evidence=contents.source,
        fix=f'parent_image="{official}" has it.',
        source=f"tags of the publisher, read on {READ}",
    )
