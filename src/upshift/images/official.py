"""Dated tables of what others publish: PyTorch's images, which findings recommend, and Debian's packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from upshift.images.parents.known import PYTORCH_PYTHON, minor
from upshift.runtime.accelerators import compatibility
from upshift.runtime.accelerators.compatibility import parse

READ = "2026-11-21"
"""When the tables of this module were read."""

PYTHON: Mapping[str, tuple[str, ...]] = {
    "2.27": ("3.6",),  # Ubuntu 18.04
    "2.28": ("3.7",),  # Debian 10
    "2.31": ("3.8", "3.9"),  # Ubuntu 20.04, Debian 11
    "2.35": ("3.10",),  # Ubuntu 22.04
    "2.36": ("3.11",),  # Debian 12
    "2.39": ("3.12",),  # Ubuntu 24.04
    "2.41": ("3.13",),  # Debian 13
}
"""The versions that ``python3`` has in a distribution, which is known here by its C library."""

READ_OF_DEBIAN = "packages.debian.org/python3 and packages.ubuntu.com/python3, read on 2026-11-21"
"""Where that is from."""

_WITH_PYTHON = frozenset(
    {
        "python3",
        "python3-dev",
        "python3-distutils",
        "python3-full",
        "python3-minimal",
        "python3-pip",
        "python3-setuptools",
        "python3-venv",
        "python3-wheel",
        "python-is-python3",
    }
)
# NVIDIA, 'CUDA Installation Guide for Linux', 'Meta Packages'; packages.debian.org. Read on 2026-11-21.
_WITH_CUDA = re.compile(
    r"cuda(?:-(?:toolkit|runtime|libraries|cudart))?(?:-(\d+)-(\d+))?"
    r"|nvidia-cuda-toolkit|libcudart(\d+)(?:\.\d+)?"
)


@attrs.frozen(kw_only=True)
class Official:
    """An official image for GPUs of NVIDIA, and what is in it."""

    reference: str
    torch: str
    cuda: str
    python: str


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
    wheels = compatibility.TORCH_WHEELS.get(machine, {}).get(minor(image.torch), {}).get(image.cuda)
    for capability in architectures:
        if wheels is not None:
            if compatibility.has_kernels(wheels, capability) is False:
                return False
        elif not compiles_for(image.cuda, capability):
            return False
    return True


def compiles_for(cuda: str, capability: str) -> bool:
    """Whether a CUDA release compiles for a device, as far as the tables say."""
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


def brings_python(packages: Iterable[str]) -> bool:
    """Whether there is a ``python3`` once these are installed."""
    return any(_name(package) in _WITH_PYTHON for package in packages)


def cuda_by_debian(packages: Iterable[str]) -> tuple[str | None, str] | None:
    """The version of CUDA that these bring, None where it is not known, and which does; None: none does."""
    for package in packages:
        found = _WITH_CUDA.fullmatch(_name(package))
        if found is not None:
            major = found[1] or found[3]
            return (f"{major}.{found[2]}" if found[2] else major), package
    return None


def _name(package: str) -> str:
    """Without a version, a release or an architecture."""
    return re.split(r"[=/:]", package, maxsplit=1)[0]
