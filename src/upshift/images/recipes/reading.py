"""Reading the files that settings name, and the lines of requirements files as pip and uv read them.

Source: https://pip.pypa.io/en/stable/reference/requirements-file-format/ (November 2026).
"""

from __future__ import annotations

import errno
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import attrs

from upshift.code.memo import Memo
from upshift.errors import MissingExtra, SettingsError
from upshift.model.checks import small_text
from upshift.model.settings.secrets import secret_in
from upshift.runtime.storage.files import signature_of

if TYPE_CHECKING:
    from packaging.requirements import Requirement

UPSHIFT = "upshift"
_REMEMBERED = 1 << 20  # bytes; the digest of a smaller file is made as fast as it is looked up

_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_OPTION = re.compile(r"(--[a-z][a-z-]*|-[a-z])(?:\s*=\s*|\s+|(?<=^-[a-z]))(.+)|(--?[a-z][a-z-]*)")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_VERSIONED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-\d")
_PACKED = re.compile(r"/([^/]+?)(?:\.git)?/(?:-/)?(?:archive|(?:legacy\.)?(?:zip|tar\.gz)|zipball|tarball)/")
_LONG = {
    "-c": "--constraint",
    "-e": "--editable",
    "-f": "--find-links",
    "-i": "--index-url",
    "-r": "--requirement",
    "--pypi-url": "--index-url",
}


def read_text(path: Path, where: str) -> str:
    """The content of a file that settings name."""
    try:
        return small_text(path)
    except ValueError as error:
        raise _unreadable(path, str(error), where) from None


def read_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    data: dict[str, Any] = tomllib.loads(text)
    return data


def digest_of(path: Path, where: str | None = None) -> str:
    """The digest of a file, the same on every machine: ``sha256:…``. That of a large one is remembered."""
    try:
        return _digest_of(path)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), where) from None


def _unreadable(path: Path, reason: str, where: str | None) -> SettingsError:
    return SettingsError(
        f"{path} cannot be read: {reason}",
        where=where,
        fix="Correct its permissions, or the path, which starts from the project.",
    )


def _digest_of(path: Path) -> str:
    if not path.is_file():  # a device may have no end
        raise OSError(errno.EINVAL, "it is not a file")
    if path.stat().st_size < _REMEMBERED:
        return _hashed(path)
    path = path.resolve()
    memo, seen = Memo("sha256", str(path)), signature_of(str(path))
    known = memo.recall()
    if isinstance(known, str):
        return known
    digest = _hashed(path)
    memo.remember(digest, {str(path): seen})
    return digest


def _hashed(path: Path) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return f"sha256:{hasher.hexdigest()}"


@attrs.frozen
class RequirementLine:
    """A requirement or an option."""

    text: str  # without comment
    where: str  # for people: `requirements.txt:3`


def lines_of(text: str, name: str) -> Iterator[RequirementLine]:
    pending, first = "", 0
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        first = first if pending else number
        if raw.endswith("\\") and not _COMMENT.match(raw):
            pending += raw[:-1].rstrip() + " "
            continue
        said = _COMMENT.sub("", pending + raw).strip()
        pending = ""
        if said:
            yield RequirementLine(said, f"{name}:{first}")
    if pending.strip():
        yield RequirementLine(_COMMENT.sub("", pending).strip(), f"{name}:{first}")


def listed(items: Iterable[str], where: str) -> Iterator[RequirementLine]:
    for item in items:
        for line in lines_of(item, where):
            yield attrs.evolve(line, where=where)


def option_in(text: str) -> tuple[str, str | None] | None:
    """The option that a line is, by its long name, and its value; None: it is a requirement."""
    match = _OPTION.fullmatch(text) if text.startswith("-") else None
    if match is None:
        return (text, None) if text.startswith("-") else None
    name = match[1] or match[3]
    value = match[2]
    return _LONG.get(name, name), value.strip().strip("\"'") if value else None


def hashes_split(text: str) -> tuple[str, str]:
    """A requirement, and its own options behind it: ``--hash=sha256:…``."""
    requirement, space, options = text.partition(" --")
    return requirement.strip(), f"--{' '.join(options.split())}" if space else ""


def name_in(address: str) -> str:
    """The name of the package at an address or in a file name, as far as it can be told.

    A wheel or source archive begins with it. A repository has its name, also where its server packs it:
    ``…/upshift/archive/main.zip``.
    """
    path = unquote(urlsplit(address).path)
    if "+" in address.partition("://")[0]:
        path = path.partition("@")[0]
    last = path.rstrip("/").rpartition("/")[2]
    packed = _PACKED.search(path)
    if _VERSIONED.match(last) or packed is None:
        last = re.split(r"-\d", re.sub(r"\.(?:git|whl|zip|tar\.[a-z0-9]+|tgz)$", "", last))[0]
        return last
    return packed[1]


def variables_in(lines: Iterable[str]) -> tuple[str, ...]:
    """The variables that lines refer to, ``${TOKEN}``; installers insert their values."""
    return tuple(dict.fromkeys(name for line in lines for name in _VARIABLE.findall(line)))


def no_requirement(line: RequirementLine) -> SettingsError:
    """The error for a line that is no requirement, with the reason; a line with a secret is not shown."""
    kind = secret_in(line.text)
    if kind is not None:
        return SettingsError(
            f"a requirement holds {kind}",
            where=line.where,
            why="What is written there is in the records of runs and images, which others can read.",
            fix="Write a variable in its place: https://me:${TOKEN}@host/simple.",
        )
    module = packaging_of("requirements")
    try:
        module.Requirement(line.text)
        reason = None
    except module.InvalidRequirement as error:
        reason = str(error).splitlines()[0]
    return SettingsError(
        f"{line.text!r} is not a requirement",
        where=line.where,
        why=reason,
        fix='Write it as in "torch==2.4.*", "name @ https://…", "./dist/name-1.0-py3-none-any.whl".',
    )


# -- requirements, as PEP 508 and the package packaging have them ------------------------------------


def normalized(name: str) -> str:
    """The name of a package as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parsed(text: str) -> Requirement | None:
    """A requirement of PEP 508; None: the text is none."""
    module = packaging_of("requirements")
    try:
        return module.Requirement(text)  # type: ignore[no-any-return]
    except module.InvalidRequirement:
        return None


def applies(requirement: Requirement, environment: Mapping[str, str] | None = None) -> bool:
    """Whether the marker of a requirement holds; ``environment`` overrides values of this process.

    An invalid marker is left to the installer.
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
