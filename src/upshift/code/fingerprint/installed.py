"""What is installed: the distribution of a module, its version, and what it requires in turn.

``importlib.metadata.packages_distributions`` reads every file list of the environment, each time. Here the
answer is kept in ``UPSHIFT_HOME/fingerprints`` for as long as the folder holds the same
``NAME-VERSION.dist-info`` folders. A library works as those below it do: scikit-learn as NumPy. So what a
distribution requires counts with it, read from its metadata. Of markers only extras are looked at: what is
required elsewhere and installed here anyway counts, too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from upshift.code.fingerprint.facts import keep, kept

Wanted = tuple[str, tuple[str, ...]]
"""A distribution and its extras, by their normalized names."""

_METADATA = (".dist-info", ".egg-info")
_REQUIREMENT = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^]]*)])?[^;]*(?:;(?P<marker>.*))?", re.S)
_GROUP = re.compile(rb"^([^/,\n]*)(/?)[^\n]*\n?(?:\1/[^\n]*\n?)*", re.MULTILINE)
"""Lines of a list of files that follow each other and begin with one folder; or a line with a file."""
_FILES = ("METADATA", "PKG-INFO")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@functools.cache
def modules_in(folder: str) -> dict[str, str]:
    """The top-level modules that are installed in a folder; ``"name version"`` of their distributions."""
    names = metadata_of(folder)
    if not names:
        return {}
    stamp = hashlib.sha256("\n".join([folder, *names]).encode()).hexdigest()
    memo = kept(f"{stamp[:32]}.packages")
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(memo.read_text())
        if known.get("stamp") == stamp and isinstance(known.get("modules"), dict):
            modules: dict[str, str] = known["modules"]
            return modules
    modules = _modules(Path(folder), names)
    keep(memo, json.dumps({"stamp": stamp, "modules": modules}).encode())
    return modules


@functools.cache
def metadata_of(folder: str) -> list[str]:
    """The folders with metadata of what is installed in a folder of ``sys.path``."""
    try:
        names = sorted(name for name in os.listdir(folder or ".") if name.endswith(_METADATA))
    except OSError:
        return []
    return [name for name in names if "-" in name.rpartition(".")[0]]  # else a source folder's own


def split(metadata: str) -> tuple[str, str]:
    """Name and version of a distribution, from the name of the folder with its metadata."""
    name, _, version = metadata.rpartition(".")[0].partition("-")
    return name, version.partition("-py")[0] if metadata.endswith(".egg-info") else version


def _modules(folder: Path, names: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for metadata in names:
        name, version = split(metadata)
        for module in _top_level(folder / metadata) or {name}:
            found.setdefault(module, []).append(f"{name} {version}")
    return {module: ", ".join(sorted(distributions)) for module, distributions in found.items()}


def _top_level(metadata: Path) -> set[str]:
    for record in ("RECORD", "installed-files.txt", "top_level.txt"):
        with contextlib.suppress(OSError):
            groups = _GROUP.finditer((metadata / record).read_bytes())
            found = {_module_of(group[1].decode(errors="replace"), bool(group[2])) for group in groups} - {""}
            if found:
                return found
    return set()


def _module_of(first: str, is_folder: bool) -> str:
    first = first.strip().strip('"')
    if first in ("..", "__pycache__", "bin") or first.endswith((*_METADATA, ".data", ".pth", ".libs")):
        return ""
    return first if is_folder else first.partition(".")[0]


# what distributions require


def required(distribution: str) -> dict[str, str]:
    """The installed distributions that one requires, directly or not, with their versions; by name."""
    return dict(_required(_normal(distribution), tuple(sys.path)))


def all_installed() -> dict[str, str]:
    """All installed distributions with their versions, by normalized name."""
    places = sorted(_places(tuple(sys.path)).items())
    return {name: version for name, (_, version) in places if name != "upshift"}


def editable() -> list[Path]:
    """The folders of distributions that are installed in editable form."""
    return _editable(tuple(sys.path))


@functools.cache
def _editable(path: tuple[str, ...]) -> list[Path]:
    from urllib.parse import unquote, urlsplit  # rarely needed

    found = []
    for name, (metadata, _) in _places(path).items():
        if name == "upshift":
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError):
            said = json.loads(Path(metadata, "direct_url.json").read_text())
            if said.get("dir_info", {}).get("editable"):
                found.append(Path(unquote(urlsplit(said["url"]).path)))
    return found


@functools.cache
def _required(distribution: str, path: tuple[str, ...]) -> dict[str, str]:
    known = _known()
    before = dict(known)
    first: Wanted = (distribution, ())
    seen = {first}
    pending = [first]
    while pending:
        for wanted in _direct(pending.pop(), path, known):
            if (
                wanted not in seen and wanted[0] != "upshift"
            ):  # which has versions of its own for what it writes
                seen.add(wanted)
                pending.append(wanted)
    if known != before:
        keep(_memo(), json.dumps(known).encode())
    places = _places(path)
    names = {name for name, _ in seen} - {distribution}
    return {name: places[name][1] for name in sorted(names) if name in places}


@functools.cache
def _places(path: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Where the metadata of each installed distribution is, and its version; the first of a name counts."""
    found: dict[str, tuple[str, str]] = {}
    for folder in path:
        for metadata in metadata_of(folder):
            name, version = split(metadata)
            found.setdefault(_normal(name), (os.path.join(folder, metadata), version))
    return found


def _direct(wanted: Wanted, path: tuple[str, ...], known: dict[str, Any]) -> list[Wanted]:
    """What a distribution itself requires here."""
    name, extras = wanted
    if name not in _places(path):
        return []
    folder = _places(path)[name][0]
    for file in (os.path.join(folder, name) for name in _FILES):
        with contextlib.suppress(OSError):
            status = os.stat(file)
            stamp = [status.st_mtime_ns, status.st_size]
            key = f"{file}[{','.join(extras)}]"
            if key not in known or known[key][0] != stamp:
                known[key] = [stamp, list(_read(file, extras))]
            return [(name, tuple(more)) for name, more in known[key][1]]
    return []


def _read(file: str, extras: tuple[str, ...]) -> Iterator[Wanted]:
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():  # the description begins
                return
            field, _, text = line.partition(":")
            match = _REQUIREMENT.fullmatch(text) if field.lower() == "requires-dist" else None
            if match is not None and _holds(match["marker"], extras):
                named = (match["extras"] or "").split(",")
                yield (
                    _normal(match["name"]),
                    tuple(sorted(_normal(extra) for extra in named if extra.strip())),
                )


def _holds(marker: str | None, extras: tuple[str, ...]) -> bool:
    named = _EXTRA.findall(marker or "")
    return not named or any(_normal(extra) in extras for extra in named)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@functools.cache
def _known() -> dict[str, Any]:
    """What was read before, by file and extras: the file's stamp, and what it requires."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(_memo().read_bytes())
        if isinstance(known, dict):
            return known
    return {}


def _memo() -> Path:
    stamp = repr((sys.version, sys.platform, *os.uname()[2:])).encode()
    return kept(f"{hashlib.sha256(stamp).hexdigest()[:32]}.requirements")
