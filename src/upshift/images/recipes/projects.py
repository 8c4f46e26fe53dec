"""Requirements of a project, from ``pyproject.toml`` or a lock of uv, Poetry or PEP 751, or from what is
installed here.

Sources: PEP 621, PEP 751, https://docs.astral.sh/uv/concepts/projects/sync/,
https://python-poetry.org/docs/pyproject/ and the lock files themselves (November 2026).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.errors import SettingsError
from upshift.images.recipes.reading import (
    UPSHIFT,
    RequirementLine,
    no_requirement,
    normalized,
    packaging_of,
    parsed,
    read_text,
    read_toml,
    written,
)
from upshift.images.uv import find_uv

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Found = tuple[list[RequirementLine], list[str]]
"""The lines of what was read, and what the user should know about them."""

_INSTALLERS = frozenset({"distribute", "pip", "setuptools", "uv", "wheel"})
_PYPI = "https://pypi.org/simple"
_LOCKS = ("uv.lock", "pylock.toml", "poetry.lock")
_MACHINES = ("x86_64", "aarch64", "i686", "armv7l", "ppc64le", "s390x", "riscv64")
_OF_A_LOCK = re.compile(r"""(["'])([^"']+)\1\s+(not\s+)?in\s+(extras|dependency_groups)\b""")
_ALWAYS, _NEVER = "python_version > '0'", "python_version < '0'"
_WRITE = "pyproject.toml, uv.lock, pylock.toml, pylock.NAME.toml or poetry.lock"


def read_project(path: Path, where: str) -> Found:
    """What a project file or lock says, whichever it is by its name."""
    name, notes = path.name, []
    if not os.path.isfile(path):
        read_text(path, where)
    if name == "pyproject.toml":
        lock = next((other for other in _LOCKS if (path.parent / other).is_file()), None)
        if lock is not None:
            notes.append(f"{lock} beside {name} has exact versions: pyproject_path={lock!r} installs these")
        lines = dependencies(path, "", where)
    elif name == "uv.lock":
        data = _parsed(_exported(path, where), path, where)
        lines = _well_formed(_of_pylock(data, path, where), path, where)
    elif name == "pylock.toml" or (name.startswith("pylock.") and name.endswith(".toml")):
        lines = _well_formed(_of_pylock(_read(path, where), path, where), path, where)
    elif name == "poetry.lock":
        lines = _well_formed(_of_poetry(_read(path, where), path, where), path, where)
    else:
        raise SettingsError(
            f"pyproject_path={name!r} is not a file that Upshift knows", where=where, fix=f"Name {_WRITE}."
        )
    return lines, notes


def dependencies(path: Path, extras: str, where: str) -> list[RequirementLine]:
    return _well_formed(_of_pyproject(_read(path, where), extras, path, where), path, where)


def _well_formed(lines: Iterator[RequirementLine], path: Path, where: str) -> list[RequirementLine]:
    """The lines of a file; raises SettingsError where its tables and values are not as they should be."""
    try:
        found = list(lines)
        for line in found:
            _text(line.text)
    except SettingsError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        why = "A table, a list or a text in it is something else."
        if isinstance(error, (KeyError, ValueError)):
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SettingsError(
            f"{path.name} is malformed",
            where=where,
            why=why,
            fix="Let the tool that it is for write or check it.",
        ) from None
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} stands where a text belongs")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"a {type(value).__name__} stands where a list of texts belongs")
    return [_text(one) for one in value]


def _of_pyproject(data: Mapping[str, Any], extras: str, path: Path, where: str) -> Iterator[RequirementLine]:
    project, tool = data.get("project"), data.get("tool", {})
    if not isinstance(project, dict) or "dependencies" in project.get("dynamic", ()):
        lock = "poetry.lock" if "poetry" in tool else "a requirements file or a lock"
        raise SettingsError(
            f"{path.name} has no table [project] with its dependencies",
            where=where,
            why="They are in a form of another tool, or made when the project is built.",
            fix=f"Name {lock}.",
        )
    lines = list(_asked(project, filter(None, map(str.strip, extras.split(","))), path, where))
    named = {normalized(name) for name in tool.get("uv", {}).get("sources", {})}
    elsewhere = sorted(named & {normalized(requirement.name) for requirement in lines})
    if elsewhere:
        raise SettingsError(
            f"{path.name} has {', '.join(elsewhere)} from a source of its own (tool.uv.sources)",
            where=where,
            why="A list of requirements cannot say that.",
            fix='uv lock, and pyproject_path="uv.lock".',
        )
    for index in tool.get("uv", {}).get("index", ()):
        if not index.get("explicit"):
            option = "--index-url" if index.get("default") else "--extra-index-url"
            yield RequirementLine(f"{option} {_text(index['url'])}", f"{path.name} (tool.uv.index)")
    for requirement in lines:
        yield RequirementLine(written(requirement), f"{path.name} (project.dependencies)")


def _asked(
    project: Mapping[str, Any], extras: Iterable[str], path: Path, where: str
) -> Iterator[Requirement]:
    """What a project needs, with extras. A requirement of the project itself means its own extras."""
    tables = project.get("optional-dependencies", {})
    known = {normalized(name): _texts(found) for name, found in tables.items()}
    itself, module = normalized(_text(project.get("name", ""))), packaging_of("markers")
    pending: dict[tuple[str | None, frozenset[str]], None] = {(None, frozenset()): None}
    pending |= {(extra, frozenset()): None for extra in extras}
    seen = set()
    while pending:
        one = next(iter(pending))
        del pending[one]
        if one in seen:
            continue
        seen.add(one)
        extra, conditions = one
        if extra is not None and normalized(extra) not in known:
            raise SettingsError(
                f"{path.name} has no extra {extra!r}", where=where, fix=f"Known: {sorted(known)}."
            )
        for text in _texts(project.get("dependencies", [])) if extra is None else known[normalized(extra)]:
            requirement = parsed(text)
            if requirement is None:
                table = "dependencies" if extra is None else "optional-dependencies"
                raise no_requirement(RequirementLine(text, f"{path.name} (project.{table})"))
            markers = conditions | ({str(requirement.marker)} if requirement.marker else set())
            if normalized(requirement.name) == itself:
                pending |= {(inner, markers): None for inner in sorted(requirement.extras)}
                continue
            if markers:
                requirement.marker = module.Marker(" and ".join(f"({marker})" for marker in sorted(markers)))
            yield requirement


def _exported(path: Path, where: str) -> str:
    """A lock of uv in the form of PEP 751; nothing is resolved, without network."""
    uv = find_uv(f"{path.name} cannot be read")
    command = [uv, "export", "--frozen", "--offline", "--no-default-groups", "--no-emit-project"]
    command += ["--no-header", "--no-annotate", "--quiet", "--no-python-downloads"]
    command += ["--python", sys.executable]
    command += ["--format", "pylock.toml", "--no-config", "--project", str(path.parent)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=path.parent)
    if done.returncode:
        said = done.stderr.strip() or f"uv ended with {done.returncode}"
        raise SettingsError(
            f"{path.name} cannot be read",
            where=where,
            why=said,
            fix="uv lock rebuilds it, and needs the pyproject.toml beside it.",
        )
    return done.stdout


def _of_pylock(data: Mapping[str, Any], path: Path, where: str) -> Iterator[RequirementLine]:
    version = str(data.get("lock-version", ""))
    if version.partition(".")[0] != "1":
        raise SettingsError(
            f"{path.name} has lock-version {version or 'none'}",
            where=where,
            fix="Upshift reads version 1 (PEP 751).",
        )
    groups = _texts(data.get("default-groups", []))
    for package in data.get("packages", ()):
        marker = _for_the_default(package["marker"], groups) if package.get("marker") else None
        if normalized(package["name"]) != UPSHIFT and marker != _NEVER:
            yield from _locked({**package, "marker": None if marker == _ALWAYS else marker}, path, where)


def _for_the_default(marker: str, groups: Collection[str]) -> str:
    """A marker of a lock without extras and groups, which only locks know: as for the default groups."""

    def told(found: re.Match[str]) -> str:
        chosen = found[4] == "dependency_groups" and normalized(found[2]) in map(normalized, groups)
        return _NEVER if chosen == bool(found[3]) else _ALWAYS

    replaced = _OF_A_LOCK.sub(told, marker)
    if not re.sub(rf"{_ALWAYS}|{_NEVER}|\band\b|\bor\b|[()\s]", "", replaced):
        return _ALWAYS if packaging_of("markers").Marker(replaced).evaluate() else _NEVER
    return replaced


def _locked(package: Mapping[str, Any], path: Path, where: str) -> Iterator[RequirementLine]:
    """The lines for a package of a pylock."""
    name, marker = package["name"], package.get("marker")
    at = f"{path.name} ({name})"
    files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
    if "version" in package and files and package.get("index", _PYPI).rstrip("/") == _PYPI:
        hashes = sorted(
            {f"--hash={kind}:{value}" for file in files for kind, value in file["hashes"].items()}
        )
        yield RequirementLine(" ".join([_marked(f"{name}=={package['version']}", marker), *hashes]), at)
    elif files:
        yield from _of_another_index(package, at, where)
    elif "vcs" in package:
        vcs = package["vcs"]
        below = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
        yield RequirementLine(
            _marked(f"{name} @ {vcs['type']}+{vcs['url']}@{vcs['commit-id']}{below}", marker), at
        )
    elif "url" in package.get("archive", {}):
        yield RequirementLine(_marked(f"{name} @ {package['archive']['url']}", marker), at)
    elif "path" in package.get("archive", {}):
        yield RequirementLine(_marked(f"{name} @ ./{package['archive']['path']}", marker), at)
    elif package.get("directory", {}).get("path", ".") != ".":
        yield RequirementLine(package["directory"]["path"], at)


def _of_another_index(package: Mapping[str, Any], at: str, where: str) -> Iterator[RequirementLine]:
    """The files themselves: a list of requirements cannot say which package is from which index."""
    seen = set()
    for wheel in package.get("wheels", ()):
        address = wheel.get("url")
        file = str(wheel.get("name") or (address or "").rpartition("/")[2].partition("#")[0])
        markers = _markers_of(file)
        if address is None or markers is None or markers in seen:
            continue
        seen.add(markers)
        kind, value = sorted(wheel["hashes"].items())[-1]
        every = [f"({marker})" for marker in (package.get("marker"), markers) if marker]
        yield RequirementLine(
            _marked(f"{package['name']} @ {address}#{kind}={value}", " and ".join(every)), at
        )
    if not seen:
        raise SettingsError(
            f"{package['name']} of {package.get('index')} has no wheel for Linux in {at.partition(' ')[0]}",
            where=where,
            fix="Lock it for Linux, or build a wheel and name that.",
        )


def _markers_of(wheel: str) -> str | None:
    """The environments that a wheel is for, as a marker; empty: all; None: none with glibc on Linux."""
    utils = packaging_of("utils")
    try:
        tags = utils.parse_wheel_filename(wheel.replace("%2B", "+"))[3]
    except utils.InvalidWheelFilename:
        return None
    for tag in sorted(tags, key=str):
        if tag.platform != "any" and not tag.platform.startswith(("linux_", "manylinux")):
            continue
        markers = []
        if tag.interpreter.startswith("cp") and len(tag.interpreter) > 3:
            version = f"{tag.interpreter[2]}.{tag.interpreter[3:]}"
            markers.append(f"python_version {'>=' if tag.abi.startswith('abi') else '=='} '{version}'")
        if tag.abi.endswith("t") and tag.abi.startswith("cp"):
            continue  # free-threaded
        if tag.platform != "any":
            machine = next((one for one in _MACHINES if tag.platform.endswith(one)), tag.platform)
            markers.append(f"platform_machine == '{machine}'")
        return " and ".join(markers)
    return None


def _of_poetry(data: Mapping[str, Any], path: Path, where: str) -> Iterator[RequirementLine]:
    version = str(data.get("metadata", {}).get("lock-version", ""))
    parts = tuple(int(part) for part in version.split(".") if part.isdigit())
    if not (2, 1) <= parts < (3,):
        raise SettingsError(
            f"{path.name} has lock-version {version or 'none'}",
            where=where,
            why="Before 2.1 a lock does not say which packages are for the project itself.",
            fix="poetry lock, with Poetry 2; or poetry export, and requirements= the file that it writes.",
        )
    for package in data.get("package", ()):
        name, groups = package["name"], package.get("groups", ["main"])
        if "main" not in groups or package.get("optional") or normalized(name) == UPSHIFT:
            continue
        marker = package.get("markers")
        marker = marker.get("main") if isinstance(marker, dict) else marker
        at = f"{path.name} ({name})"
        source = package.get("source", {})
        kind = source.get("type")
        if kind == "git":
            commit = source.get("resolved_reference") or source.get("reference")
            yield RequirementLine(_marked(f"{name} @ git+{source['url']}@{commit}", marker), at)
        elif kind == "url":
            yield RequirementLine(_marked(f"{name} @ {source['url']}", marker), at)
        elif kind in ("file", "directory"):
            yield RequirementLine(
                source["url"] if source["url"].startswith((".", "/")) else f"./{source['url']}", at
            )
        else:
            hashes = sorted({f"--hash={file['hash']}" for file in package.get("files", ())})
            yield RequirementLine(" ".join([_marked(f"{name}=={package['version']}", marker), *hashes]), at)
    sources = (package.get("source", {}) for package in data.get("package", ()))
    for address in dict.fromkeys(one["url"] for one in sources if one.get("type") == "legacy"):
        yield RequirementLine(f"--extra-index-url {address}", path.name)


def _marked(requirement: str, marker: str | None) -> str:
    return f"{requirement} ; {marker}" if marker else requirement


def _read(path: Path, where: str) -> dict[str, Any]:
    return _parsed(read_text(path, where), path, where)


def _parsed(text: str, path: Path, where: str) -> dict[str, Any]:
    try:
        return read_toml(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        fix = "Correct it, or name another file."
        raise SettingsError(f"{path.name} is not valid TOML: {why}", where=where, fix=fix) from None


def installed_here(project: Path) -> Found:
    """The packages of this process with their versions; notes name those that the image cannot get."""
    lines: list[RequirementLine] = []
    notes: list[str] = []
    for name, found in sorted(_installed().items()):
        if name == UPSHIFT:
            notes.append(
                "upshift is installed here: the running version is used, and none installed in the image"
            )
        elif name not in _INSTALLERS:
            lines += _replicated(found, notes, project)
    return lines, notes


def _replicated(found: Distribution, notes: list[str], project: Path) -> Iterator[RequirementLine]:
    name = found.metadata["Name"]
    origin = _origin_of(found)
    address = str(origin.get("url", ""))
    at = f"installed here ({name})"
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        below = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
        yield RequirementLine(f"{name} @ {vcs['vcs']}+{address}@{vcs['commit_id']}{below}", at)
    elif address.startswith("file:"):
        path = Path(address.removeprefix("file://"))
        if path.is_file():
            yield RequirementLine(f"{name} @ {address}", at)
        elif not path.is_dir() or not os.path.samefile(path, project):
            notes.append(
                f"{name} {found.version} is installed here from {path}, and left out of the image: "
                "build a wheel, and name that in requirements"
            )
    elif address:
        yield RequirementLine(f"{name} @ {address}", at)
    else:
        if "+" in found.version:
            notes.append(
                f"{name} {found.version} is a build that the usual index lacks: unless the parent holds it, "
                "name its index in requirements (--extra-index-url …)"
            )
        yield RequirementLine(f"{name}=={found.version}", at)


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
