"""What packages of Debian and Ubuntu bring, as far as it decides whether steps run: Python, and CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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


def brings_python(packages: Iterable[str]) -> bool:
    """Whether there is a ``python3`` once these are installed."""
    return any(_name(package) in _WITH_PYTHON for package in packages)


def cuda_of(packages: Iterable[str]) -> tuple[str | None, str] | None:
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
