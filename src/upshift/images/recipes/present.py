"""The environment of this process: how to have the same elsewhere, and what of settings it lacks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.errors import MissingExtra, SettingsError
from upshift.images.pep508 import applies, normalized
from upshift.images.recipes.reading import Line
from upshift.images.recipes.requirements import UPSHIFT, Reader

if TYPE_CHECKING:
    from upshift.model.settings.docker import DockerSettings

_INSTALLERS = frozenset({"distribute", "pip", "setuptools", "uv", "wheel"})
_ADDING = frozenset({"apt_packages", "environment", "pyproject_path", "requirements"})
_ADDING |= {"replicate_local_python_environment"}
_DPKG = Path("/var/lib/dpkg/status")


def replicate(reader: Reader, project: Path) -> None:
    """What is installed here, each package in its version, as lines for ``reader``."""
    lines: list[Line] = []
    for name, found in sorted(_installed().items()):
        if name == UPSHIFT:
            reader.note(
                "upshift is installed here: the running version is used, and none installed in the image"
            )
        elif name not in _INSTALLERS:
            lines += _replicated(found, reader, project)
    reader.pins(lines, project)


def _replicated(found: Distribution, reader: Reader, project: Path) -> Iterator[Line]:
    name = found.metadata["Name"]
    origin = _origin_of(found)
    address = str(origin.get("url", ""))
    at = f"installed here ({name})"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        below = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
        yield Line(f"{name} @ {vcs['vcs']}+{address}@{vcs['commit_id']}{below}", at)
    elif address.startswith("file:"):
        path = Path(address.removeprefix("file://"))
        if path.is_file():
            yield Line(f"{name} @ {address}", at)
        elif not path.is_dir() or not os.path.samefile(path, project):
            reader.note(
                f"{name} {found.version} is installed here from {path}, and left out of the image: "
                "build a wheel, and name that in requirements"
            )
    elif address:
        yield Line(f"{name} @ {address}", at)
    else:
        if "+" in found.version:
            reader.note(
                f"{name} {found.version} is a build that the usual index lacks: unless the parent holds it, "
                "name its index in requirements (--extra-index-url …)"
            )
        yield Line(f"{name}=={found.version}", at)


def image_asked(settings: DockerSettings, *, adding: bool) -> str | None:
    """The image that settings ask for, in words; None: an environment without it does as well."""
    if settings.parent_image:
        return f"image {settings.parent_image}"
    if settings.dockerfile:
        return f"the image of {settings.dockerfile}"
    adds = settings.explicit().keys() & _ADDING if adding else ()
    return "its own image" if adds or settings.user or settings.platform else None


def lacking(settings: DockerSettings, *, project: Path) -> tuple[str, ...]:
    """What the settings of an image promise and this environment does not have, one thing each."""
    return (
        *_lacking_packages(settings, project),
        *(f"Debian package {name}" for name in _lacking_debian(settings.apt_packages or ())),
        *(
            f"variable {name}"
            for name, value in (settings.environment or {}).items()
            if os.environ.get(name) != value
        ),
    )


def _lacking_packages(settings: DockerSettings, project: Path) -> Iterator[str]:
    from upshift.images.recipes.recipe import requirements_of

    if not settings.requirements and not settings.pyproject_path:
        return
    try:
        lines = requirements_of(settings, project=project).lines
        from packaging.requirements import Requirement
    except MissingExtra:
        yield "what is in requirements, perhaps (pip install 'upshift[images]' to compare)"
        return
    except SettingsError as error:
        yield f"what is in requirements: {error.in_short}"
        return
    for line in lines:
        text = line.partition(" --")[0]
        if text.startswith(("-", "./")) or "://" in text.partition("@")[0]:
            yield from _lacking_file(text)
            continue
        requirement = Requirement(text)
        if not applies(requirement):
            continue
        found = _version_here(requirement.name)
        if found is None:
            yield str(requirement).partition(";")[0].strip()
        elif not requirement.specifier.contains(found, prereleases=True):
            yield f"{requirement.name}{requirement.specifier} ({found} is here)"


def _lacking_file(line: str) -> Iterator[str]:
    match = re.match(r"\./(?:\d+/)?(([A-Za-z0-9._]+)-([^-]+)(?:-[^\s]*\.whl|\.zip|\.tar\.gz))", line)
    if match is None:
        return
    if _version_here(match[2]) != match[3]:
        yield match[1]


def _lacking_debian(names: Iterable[str]) -> list[str]:
    wanted = {re.split(r"[:=/]", name)[0]: name for name in names}
    if not wanted:
        return []
    try:
        text = _DPKG.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return list(wanted.values())
    found = re.findall(r"^Package: (\S+)\n(?:[^\n]+\n)*?Status: \S+ \S+ installed$", text, re.MULTILINE)
    installed = set(found)
    return [name for package, name in wanted.items() if package not in installed]


def _version_here(name: str) -> str | None:
    try:
        found: str | None = version(name)  # None where a folder is left of a package that was removed
    except PackageNotFoundError:
        return None
    return found


def _installed() -> dict[str, Distribution]:
    """By normalized name; the first on the path counts, as for imports."""
    found: dict[str, Distribution] = {}
    for one in distributions():
        name: str | None = one.metadata["Name"]  # None where a folder is left of a package that was removed
        if name:
            found.setdefault(normalized(name), one)
    return found


def _origin_of(found: Distribution) -> dict[str, Any]:
    """Where a package was installed from, if not from an index (PEP 610)."""
    text = found.read_text("direct_url.json")
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
