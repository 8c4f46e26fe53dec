"""Requirements as PEP 508 has them; the package ``packaging`` knows how to read one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from upshift.errors import MissingExtra

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
    """Whether a requirement counts, by its marker; one that makes no sense is left to the installer.

    Parameters
    ----------
    requirement
        The requirement.
    environment
        What differs from this process.
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
    """A module of the package ``packaging``.

    Raises
    ------
    MissingExtra
        It is not installed.
    """
    import importlib

    try:
        return importlib.import_module(f"packaging.{module}")
    except ImportError:
        raise MissingExtra(
            "requirements of an image cannot be read: packaging is not installed",
            fix="pip install 'upshift[images]'",
        ) from None
