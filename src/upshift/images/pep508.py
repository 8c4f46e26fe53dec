"""Requirements and versions, as PEP 508 and PEP 440 have them; the package ``packaging`` knows how to read
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from upshift.errors import MissingExtra
from upshift.runtime.accelerators.compatibility import parse

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def normalized(name: str) -> str:
    """The name of a package as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parsed(text: str) -> Requirement | None:
    """A requirement of PEP 508; None: it is none."""
    module = packaging_of("requirements")
    try:
        return module.Requirement(text)  # type: ignore[no-any-return]
    except module.InvalidRequirement:
        return None


def applies(requirement: Requirement, environment: Mapping[str, str] | None = None) -> bool:
    """Whether a requirement counts, by its marker, where ``environment`` differs from this process.

    One that is invalid is left to the installer.
    """
    module = packaging_of("markers")
    try:
        return requirement.marker is None or requirement.marker.evaluate(dict(environment or {}))
    except (module.UndefinedComparison, module.UndefinedEnvironmentName):
        return True


def pinned(requirement: Requirement) -> list[str]:
    """The exact versions that a requirement names: ``["2.1"]`` of ``torch==2.1``."""
    pins = (one for one in requirement.specifier if one.operator == "==")
    return [pin.version for pin in pins if not pin.version.endswith(".*")]


def written(requirement: Requirement) -> str:
    """A requirement in a form that does not depend on the version of the package ``packaging``."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    place = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}{place}{marker}"


def packaging_of(module: str) -> Any:
    """A module of the package ``packaging``; raises MissingExtra where that is not installed."""
    import importlib

    try:
        return importlib.import_module(f"packaging.{module}")
    except ImportError:
        raise MissingExtra(
            "requirements of an image cannot be read: packaging is not installed",
            fix="pip install 'upshift[images]'",
        ) from None


def minor(version: str) -> str:
    """``2.1`` of ``2.1.0+cu121``."""
    return ".".join(map(str, parse(version)[:2]))


def cuda_of(version: str) -> str | None:
    """The CUDA in a local version: ``12.1`` of ``2.1.0+cu121``; empty for ``+cpu`` and ``+rocm…``; None: none
    is said.
    """
    _, plus, local = version.partition("+")
    if not plus:
        return None
    if local.startswith("cu") and local[2:].isdigit() and len(local) > 3:
        return f"{local[2:-1]}.{local[-1]}"
    return "" if local == "cpu" or local.startswith(("rocm", "xpu")) else None


def rocm_of(version: str) -> str | None:
    """The ROCm in a local version: ``6.4`` of ``2.9.0+rocm6.4``; None: it does not say one."""
    _, _, local = version.partition("+")
    return local[4:] if local.startswith("rocm") and local[4:5].isdigit() else None


def cuda_in(packages: Mapping[str, str]) -> str | None:
    """The CUDA that packages bring; empty: their PyTorch is built without; None: they do not say."""
    said = cuda_of(packages.get("torch", ""))
    if said:
        return said
    for name, version in sorted(packages.items()):
        if re.fullmatch(r"nvidia-cuda-runtime(?:-cu\d+)?", name):
            return minor(version)
        found = re.fullmatch(r"cupy-cuda(\d+)x?", name)
        if found is not None:
            return found[1]
    # Wheels of PyTorch before 1.13 have CUDA in them and say it nowhere.
    return "" if said == "" or parse(packages.get("torch")) >= (1, 13) else None
