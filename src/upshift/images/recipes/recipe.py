"""The recipe of an image: the settings, with everything that they name read and checked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from upshift.errors import MissingExtra, SettingsError, nearest
from upshift.images.base import Ingredients, Recipe
from upshift.images.recipes.projects import installed_here, read_project
from upshift.images.recipes.reading import applies, digest_of, variables_in
from upshift.images.recipes.requirements import Requirements, RequirementsReader
from upshift.model.settings.docker import DockerSettings

_ADDING = frozenset({"apt_packages", "environment", "pyproject_path", "requirements"})
_ADDING |= {"replicate_local_python_environment"}
_DPKG = Path("/var/lib/dpkg/status")

DEFAULT_PARENT = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
"""The official slim Python of the running minor version."""


def make_ingredients(
    settings: DockerSettings | None, *, project: Path, platform: str, origins: Mapping[str, str] = {}
) -> Ingredients:
    """Read everything that the settings name. Nothing is downloaded or resolved."""
    said = settings or DockerSettings()
    _refuse_what_lacks_its_other_half(said, origins)
    requirements = requirements_of(said, project=project, origins=origins)
    notes = list(requirements.notes)
    if said.platform is not None and said.platform != platform:
        notes.append(
            f"platform={said.platform}: the target runs {platform}, which emulates it or cannot run it"
        )
    installer = said.python_package_installer or "uv"
    installer_args = tuple(_rendered(said.python_package_installer_args or {}))
    if requirements.lines and installer == "pip":
        notes.append('python_package_installer="pip": uv installs, and chooses among indexes as pip does')
    dockerfile, context, root, base = None, {}, None, None
    if said.dockerfile is not None:
        from upshift.images.recipes.dockerfiles import base_of, read_context

        read = read_context(
            _below(project, said.dockerfile),
            None if said.build_context_root is None else _below(project, said.build_context_root),
            where=_place(origins, "dockerfile"),
        )
        dockerfile, context, root = read.dockerfile, dict(read.files), read.root
        _refuse_undeclared(said.build_args or {}, dockerfile, said.dockerfile, origins)
        found = base_of(dockerfile, said.build_args or {}, said.platform or platform)
        base = found.image
        if found.unknown is not None:
            notes.append(
                f"FROM {found.unknown} of {said.dockerfile} cannot be told before it is built: what it names "
                "is not checked; build_args= gives values to its ARGs"
            )
        notes += read.notes
    return Ingredients(
        recipe=Recipe(
            parent=said.parent_image or (None if said.dockerfile else DEFAULT_PARENT),
            platform=said.platform or platform,
            dockerfile=dockerfile,
            context=context,
            build_args=dict(sorted((said.build_args or {}).items())),
            apt_packages=tuple(sorted(set(said.apt_packages or ()))),
            requirements=requirements.lines,
            files={
                name: digest_of(path, _place(origins, "requirements"))
                for name, path in sorted(requirements.paths.items())
            },
            installer=installer,
            installer_args=installer_args + requirements.installer_args,
            environment=dict(sorted((said.environment or {}).items())),
            user=said.user,
            skip_build=bool(said.skip_build),
        ),
        context_root=root,
        dockerfile=None if said.dockerfile is None else _below(project, said.dockerfile),
        paths=dict(requirements.paths),
        notes=tuple(notes),
        repository=said.target_repository,
        tag=said.image_tag,
        rebuild=bool(said.prevent_build_reuse),
        accept=tuple(said.accept or ()),
        origins=dict(origins),
        base=base,
        project=project.absolute().name,
    )


def requirements_of(
    settings: DockerSettings, *, project: Path, origins: Mapping[str, str] = {}
) -> Requirements:
    """The requirements of the settings; packages in ``requirements`` take precedence over other sources."""
    if not (settings.requirements or settings.pyproject_path or settings.replicate_local_python_environment):
        return Requirements()
    reader = RequirementsReader(project)
    if isinstance(settings.requirements, str):
        path = _below(project, settings.requirements)
        if not os.path.exists(path) and not path.suffix:
            raise SettingsError(
                f"requirements={settings.requirements!r} is the path of a file that does not exist",
                where=_place(origins, "requirements"),
                fix=f"For the package, write requirements=[{settings.requirements!r}].",
            )
        reader.file(path, _place(origins, "requirements"))
    elif settings.requirements:
        reader.listed(settings.requirements, _place(origins, "requirements"))
    if settings.pyproject_path is not None:
        path = _below(project, settings.pyproject_path)
        reader.pins(read_project(path, _place(origins, "pyproject_path")), path.parent)
    if settings.replicate_local_python_environment:
        reader.pins(installed_here(project), project)
    found = reader.found
    missing = [name for name in variables_in(found.lines) if not os.environ.get(name)]
    if missing:
        raise SettingsError(
            f"requirements refer to ${{{missing[0]}}}, and the variable {missing[0]} is not set",
            where=_place(origins, "requirements"),
            fix=f"export {missing[0]}=… before the run.",
        )
    return found


def _refuse_what_lacks_its_other_half(said: DockerSettings, origins: Mapping[str, str]) -> None:
    if said.skip_build and said.parent_image is None:
        raise SettingsError(
            "skip_build=True uses parent_image as it is, and none is said",
            where=_place(origins, "skip_build"),
            fix="Name the image, or leave skip_build out.",
        )
    for name in ("build_context_root", "build_args"):
        if getattr(said, name) and said.dockerfile is None:
            raise SettingsError(
                f"{name} is for a Dockerfile, and none is said",
                where=_place(origins, name),
                fix=f"Name it with dockerfile=, or leave {name} out.",
            )


def _refuse_undeclared(
    build_args: Mapping[str, str], dockerfile: str, name: str, origins: Mapping[str, str]
) -> None:
    """Raise where a build argument is not declared, of which an engine would only warn."""
    if not build_args:
        return
    from upshift.images.recipes.dockerfiles import declared_arguments, is_predefined

    declared = declared_arguments(dockerfile)
    for argument in build_args:
        if argument not in declared and not is_predefined(argument):
            meant = nearest(argument, declared)
            raise SettingsError(
                f"build_args: {name} declares no ARG {argument}",
                where=_place(origins, "build_args"),
                fix=f"Write ARG {argument} where it is used, or leave it out."
                if meant is None
                else f"Did you mean {meant}, of {name}:{declared[meant]}?",
            )


def _rendered(options: Mapping[str, str | tuple[str, ...] | None]) -> Iterator[str]:
    """Options as on a command line, a word each."""
    for name, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            if len(name) == 1:
                yield from (f"-{name}",) if one is None else (f"-{name}", one)
            else:
                yield f"--{name}" if one is None else f"--{name}={one}"


def _below(project: Path, path: str) -> Path:
    """A path of the settings, which starts from the project or from ``~``."""
    return project / os.path.expanduser(path)


def _place(origins: Mapping[str, str], field: str) -> str:
    return origins.get(field) or f"{field} of DockerSettings"


# -- compared with this process ----------------------------------------------------------------------


def image_asked(settings: DockerSettings, *, adding: bool) -> str | None:
    """The image that settings ask for, in words; None: the settings need no image."""
    if settings.parent_image:
        return f"image {settings.parent_image}"
    if settings.dockerfile:
        return f"the image of {settings.dockerfile}"
    adds = settings.explicit().keys() & _ADDING if adding else ()
    return "its own image" if adds or settings.user or settings.platform else None


def lacking(settings: DockerSettings, *, project: Path) -> tuple[str, ...]:
    """What the settings of an image provide and this environment lacks."""
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
