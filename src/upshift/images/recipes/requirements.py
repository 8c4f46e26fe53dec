"""Requirements from lists and files, flattened to the lines of one requirements file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs

from upshift.errors import SettingsError
from upshift.images.recipes.projects import Found, dependencies
from upshift.images.recipes.reading import (
    UPSHIFT,
    RequirementLine,
    digest_of,
    hashes_split,
    lines_of,
    listed,
    name_in,
    no_requirement,
    normalized,
    option_in,
    parsed,
    pinned,
    read_text,
    written,
)
from upshift.model.settings.secrets import secret_in, unexpanded_in

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_ARCHIVES = (".whl", ".tar.gz", ".zip")
_KEPT = frozenset(
    {"--extra-index-url", "--find-links", "--index-url", "--no-binary", "--no-index", "--only-binary"}
)
_FLAGS = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes"})
_FOR_UV = {
    "--pre": "--prerelease=allow",
    "--require-hashes": "--require-hashes",
    "--trusted-host": "--allow-insecure-host={}",
}
_KNOWN = _KEPT | set(_FOR_UV) | {"--constraint", "--editable", "--prefer-binary", "--requirement"}
_OTHER_TOOLS = frozenset({"metaflow", "zenml"})
_ADDRESS = re.compile(r"(?:[a-z]+\+)?(?:https?|ssh|git)://.*")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_WITH_EXTRAS = re.compile(r"(.*?)(\[[^\]]*\])?(\s*;.*)?", re.DOTALL)


@attrs.frozen(kw_only=True)
class Requirements:
    lines: tuple[str, ...] = ()  # as of a requirements file, without what Upshift brings itself
    paths: Mapping[str, Path] = attrs.field(factory=dict)  # files of this machine that the lines name
    notes: tuple[str, ...] = ()  # lines for the user
    # Options of the installer that stand for lines which it does not read from a file
    installer_args: tuple[str, ...] = ()


class RequirementsReader:
    """Reads requirements from several sources; paths start from the project."""

    def __init__(self, project: Path) -> None:
        self.lines: dict[str, None] = {}
        self.paths: dict[str, Path] = {}
        self.notes: dict[str, None] = {}
        self.installer_args: dict[str, None] = {}
        self.names: set[str] = set()
        self._project = project
        self._reading: list[Path] = []
        self._asked: dict[str, list[tuple[Requirement, str]]] = {}

    @property
    def found(self) -> Requirements:
        return Requirements(
            lines=tuple(self.lines),
            paths=self.paths,
            notes=tuple(self.notes),
            installer_args=tuple(self.installer_args),
        )

    def listed(self, items: Iterable[str], where: str) -> None:
        """A list in the settings; raises SettingsError where an item is none, or names what is not there."""
        for line in listed(items, where):
            self._line(line, self._project)

    def file(self, path: Path, where: str) -> None:
        """A requirements file, and those that it includes; raises SettingsError where it is invalid."""
        path = path.resolve()
        if path in self._reading:
            raise SettingsError(f"{self._shown(path)} includes itself", where=where)
        text = read_text(path, where)
        self._reading.append(path)
        for line in lines_of(text, self._shown(path)):
            self._line(line, path.parent)
        self._reading.pop()

    def pins(self, found: Found, folder: Path) -> None:
        """What a project or an environment needs; packages that are named already take precedence."""
        lines, notes = found
        for note in notes:
            self.note(note)
        named = frozenset(self.names)
        for line in lines:
            requirement = parsed(hashes_split(line.text)[0])
            if requirement is None or normalized(requirement.name) not in named:
                self._line(line, folder)

    def note(self, text: str) -> None:
        self.notes[text] = None

    def _line(self, line: RequirementLine, folder: Path) -> None:
        if secret_in(line.text) is not None:
            raise no_requirement(line)
        if any(not character.isprintable() and character != "\t" for character in line.text):
            raise SettingsError(
                f"a requirement holds a line break or another control character: {line.text!r}",
                where=line.where,
                why="It would be several lines of a requirements file.",
                fix="Write each requirement on its own line.",
            )
        if unexpanded_in(line.text):
            raise SettingsError(
                "a requirement refers to a variable in an address, and nothing puts in its value",
                where=line.where,
                why="pip and uv read it as ${TOKEN}, with braces and in capitals.",
                fix="Write https://me:${TOKEN}@host/simple.",
            )
        option = option_in(line.text)
        if option is None:
            self._requirement(line, folder)
        else:
            self._option(*option, line, folder)

    def _option(self, name: str, value: str | None, line: RequirementLine, folder: Path) -> None:
        if name not in _KNOWN:
            raise SettingsError(
                f"{line.text.split()[0]} is not an option of a requirements file",
                where=line.where,
                fix="Options of the installer go into python_package_installer_args.",
            )
        if (value is None) != (name in _FLAGS):
            missing = "names nothing" if value is None else "takes no value"
            raise SettingsError(f"{name} {missing}", where=line.where)
        value = value or ""
        if " -" in value:
            raise SettingsError(
                f"{line.text} are several options", where=line.where, fix="Write each on its own line."
            )
        if name == "--requirement":
            self.file(self._local(value, line, folder), line.where)
        elif name == "--constraint":
            self._constraint(self._local(value, line, folder), line)
        elif name == "--editable":
            self._requirement(RequirementLine(value, line.where), folder)
        elif name == "--find-links" and not _ADDRESS.fullmatch(value):
            raise SettingsError(
                f"--find-links {value} is a folder of this machine",
                where=line.where,
                fix="Name the wheels themselves, by their paths.",
            )
        elif name in _KEPT:
            self.lines[f"{name} {value}" if value else name] = None
        elif name in _FOR_UV:
            self.installer_args[_FOR_UV[name].format(value)] = None

    def _local(self, value: str, line: RequirementLine, folder: Path) -> Path:
        if _ADDRESS.fullmatch(value):
            raise SettingsError(
                f"{value} is not on this machine",
                where=line.where,
                why="Its content may change at any time without notice.",
                fix="Keep a copy in the project, and name that.",
            )
        return folder / os.path.expanduser(value)

    def _constraint(self, path: Path, line: RequirementLine) -> None:
        shown = self._shown(path.resolve())
        for inner in lines_of(read_text(path, line.where), shown):
            kind = secret_in(inner.text)
            if kind is not None or inner.text.startswith("-"):
                raise SettingsError(
                    f"a file of constraints holds {kind or 'an option'}",
                    where=inner.where,
                    fix="Put options into the requirements, and all constraints into one file.",
                )
        self.lines[f"--constraint {self._taken(path, line)}"] = None

    def _requirement(self, line: RequirementLine, folder: Path) -> None:
        text, options = hashes_split(line.text)
        requirement = parsed(text)
        with_address = text if requirement is None else requirement.url or ""
        try:
            urlsplit(with_address)
        except ValueError:  # brackets in the name of the host
            raise no_requirement(line) from None
        if requirement is not None and not (requirement.url or "").startswith(("file:", ".", "/")):
            self._named(requirement, options, line)
            return
        address = requirement.url if requirement is not None else text
        assert address is not None
        if _ADDRESS.fullmatch(address):
            self._address(address, options, line)
            return
        match = _WITH_EXTRAS.fullmatch(address)
        assert match is not None
        place, extras, marker = match[1].strip(), match[2] or "", (match[3] or "").strip()
        if requirement is not None:
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            marker = f"; {requirement.marker}" if requirement.marker else ""
        local = unquote(urlsplit(place).path) if place.startswith("file:") else os.path.expanduser(place)
        if requirement is None and not _is_path(local):
            raise no_requirement(line)
        path = folder / local
        if os.path.isdir(path):
            self._folder(path, extras, line)
        elif not os.path.isfile(path):  # both say no to a name that is too long
            raise SettingsError(
                f"there is no file {self._shown(path)}",
                where=line.where,
                fix="A path starts from the folder of the file that names it; in a list, from the project.",
            )
        else:
            self._archive(path, " ".join(filter(None, (extras, marker))), options, line)

    def _named(self, requirement: Requirement, options: str, line: RequirementLine) -> None:
        name = normalized(requirement.name)
        if re.search(r"\b(?:extras|dependency_groups)\b", _QUOTED.sub("", str(requirement.marker or ""))):
            raise SettingsError(
                f"{line.text!r} asks for extras or groups in its marker",
                where=line.where,
                why="Only a lock has them (PEP 751).",
                fix="Name what is to be installed, without that part of the marker.",
            )
        if name == UPSHIFT:
            self._upshift(written(requirement), requirement.extras)
            return
        if name in _OTHER_TOOLS:
            self.note(
                f"{line.text} in requirements: steps need nothing of {name} here; it is installed as asked, "
                "with all that it needs"
            )
        if requirement.marker is None and not requirement.url:
            self._refuse_contradiction(name, requirement, line)
        self.names.add(name)
        self.lines[f"{written(requirement)} {options}".rstrip()] = None

    def _refuse_contradiction(self, name: str, requirement: Requirement, line: RequirementLine) -> None:
        for other, where in self._asked.setdefault(name, []):
            pins = [
                (pin, two.specifier)
                for one, two in ((requirement, other), (other, requirement))
                for pin in pinned(one)
            ]
            if pins and not any(allowed.contains(pin, prereleases=True) for pin, allowed in pins):
                raise SettingsError(
                    f"no {requirement.name} is both {requirement.specifier} and {other.specifier}",
                    where=" and ".join(dict.fromkeys((where, line.where))),
                    fix="Ask for one of them.",
                )
        self._asked[name].append((requirement, line.where))

    def _address(self, address: str, options: str, line: RequirementLine) -> None:
        egg = _EGG.search(address)
        name = normalized(egg[1] if egg else name_in(address))
        if name == UPSHIFT:
            self._upshift(address, ())
            return
        if egg:
            bare = _EGG.sub("", address).replace("#&", "#")
            address = f"{egg[1]} @ {bare}"
        if egg or urlsplit(address).path.endswith(_ARCHIVES):
            self.names.add(name)
        self.lines[f"{address} {options}".rstrip()] = None

    def _folder(self, path: Path, extras: str, line: RequirementLine) -> None:
        if not os.path.samefile(path, self._project):
            if (path / "src" / UPSHIFT).is_dir() and (path / "pyproject.toml").is_file():
                self._upshift(line.text, ())
                return
            raise SettingsError(
                f"{line.text} is a folder with sources",
                where=line.where,
                why="The code of the project travels by itself; other packages have to be wheels.",
                fix="Build a wheel (uv build --wheel), and name that.",
            )
        self.note(
            f"{line.text} in requirements: the project's code travels by itself; what it needs is installed"
        )
        for dependency in dependencies(path / "pyproject.toml", extras.strip("[]"), line.where):
            self._line(dependency, path)

    def _archive(self, path: Path, behind: str, options: str, line: RequirementLine) -> None:
        if not path.name.endswith(_ARCHIVES):
            raise SettingsError(
                f"{self._shown(path)} is not a package",
                where=line.where,
                fix="A wheel is. A requirements file is named by requirements=PATH, or -r PATH in the list.",
            )
        if path.name.endswith(".whl") and path.name.count("-") not in (4, 5):
            raise SettingsError(
                f"{path.name} is not a valid wheel name", where=line.where, fix="Leave it as it was built."
            )
        name = normalized(name_in(path.name))
        if name == UPSHIFT:
            self._upshift(path.name, ())
            return
        self.names.add(name)
        self.lines[f"./{self._taken(path, line)}{behind} {options}".rstrip()] = None

    def _taken(self, path: Path, line: RequirementLine) -> str:
        """The name that a file of this machine has in the recipe."""
        path = path.resolve()
        digest = digest_of(path, line.where)
        name, others = path.name, 1
        while name in self.paths and digest_of(self.paths[name], line.where) != digest:
            others += 1
            name = f"{others}/{path.name}"
        self.paths.setdefault(name, path)
        return name

    def _upshift(self, text: str, extras: Iterable[str]) -> None:
        self.note(f"{text} in requirements: the running version of Upshift is used, and none installed")
        for line in needed_by(frozenset(extras)):
            self._line(RequirementLine(line, f"upshift[{','.join(sorted(extras))}]"), self._project)

    def _shown(self, path: Path) -> str:
        relative = os.path.relpath(path, self._project)
        return os.path.normpath(path) if relative.startswith("..") else relative


def _is_path(text: str) -> bool:
    return "/" in text or text.startswith(".") or text.endswith(_ARCHIVES)


def needed_by(extras: frozenset[str]) -> list[str]:
    """What the extras of the running Upshift need."""
    if not extras:
        return []
    try:
        needed = requires(UPSHIFT) or []
    except PackageNotFoundError:
        return []
    found = []
    for text in needed:
        requirement = parsed(text)
        if requirement is None or requirement.marker is None:
            continue
        if any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ) and not requirement.marker.evaluate({"extra": ""}):
            requirement.marker = None
            found.append(written(requirement))
    return found
