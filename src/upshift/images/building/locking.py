"""What requirements resolve to on one image, which is written down: :func:`resolve`.

::

    requirements ──┐
    packages of    ├── uv pip compile ──▶ pylock.toml ──▶ Lock: what the image has not, each with its hash
    the parent ────┘

uv is told of the parent's packages twice: as the versions that it prefers, and as wheels without content,
since no index has ``2.1.0+cu121``. So it keeps what fits, and what it replaces is known before anything is
built.

A lock decides what is in an image, and so what its results are reused for. It is kept with the image, as a
label, and on this machine, so that an equal recipe has equal contents until somebody asks for new ones.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from upshift.errors import ImageError
from upshift.images import cache
from upshift.images.base import Contents, Lock, LockedPackage, Progress, Recipe, Tell
from upshift.images.recipes.reading import (
    hashes_split,
    normalized,
    option_in,
    packaging_of,
    read_toml,
    variables_in,
)
from upshift.images.uv import find_uv, platform_of, run_uv

_FORMAT = "1"
_WITHOUT_UV = "requirements are resolved and installed by uv"
_WITHOUT_UPSHIFT = 'upshift ; python_version < "0"\n'
"""What a package needs of Upshift is the running one: no environment fits the marker, so none is installed.
"""


def _options(names: str) -> frozenset[str]:
    return frozenset(f"--{name}" for name in names.split())


_WITHOUT_MEANING = _options(
    "system no-system break-system-packages no-break-system-packages compile compile-bytecode "
    "no-compile-bytecode exact strict"
)
"""Options that mean nothing in a folder of its own."""
_FOR_INSTALLING = _options(
    "force-reinstall link-mode no-verify-hashes reinstall reinstall-package require-hashes verify-hashes"
)
"""Options of installing, of which resolving knows nothing."""
_OF_PIP = {
    "--no-cache-dir": "--no-cache",
    "--pre": "--prerelease=allow",
    "--trusted-host": "--allow-insecure-host",
    "--force-reinstall": "--reinstall",
    "--ignore-installed": "--reinstall",
}
"""What options of pip are called by uv."""
_FOR_PIP_ALONE = _options(
    "disable-pip-version-check no-color no-input no-warn-conflicts no-warn-script-location prefer-binary "
    "progress-bar retries root-user-action timeout upgrade-strategy use-pep517 no-python-version-warning "
    "no-clean log"
)
"""Options of pip that change nothing of what is installed."""


def resolve(
    recipe: Recipe,
    paths: Mapping[str, Path],
    contents: Contents,
    folder: Path,
    *,
    tell: Tell = lambda progress: None,
    where: str | None = None,
    kept: Collection[str] = (),
) -> Lock:
    """What the requirements of a recipe bring to an image that holds ``contents``."""
    uv = find_uv(_WITHOUT_UV)
    have = {name: version for name, version in (contents.packages or {}).items() if _is_version(version)}
    write_requirements(folder, recipe.requirements, paths)
    _pretend(have, folder / "present")
    (folder / "kept.txt").write_text("".join(f"{name}=={have[name]}\n" for name in kept if name in have))
    (folder / "without.txt").write_text(_WITHOUT_UPSHIFT)
    options = installer_options(recipe)
    again = {"--reinstall", "--upgrade", "-U"} & {option for option, *_ in options}
    _prefer({} if again else have, folder / "pylock.toml")
    command = [
        *(uv, "pip", "compile", "requirements.txt", "--format", "pylock.toml"),
        *("--output-file", "pylock.toml", "--find-links", "present"),
        *("--constraints", "kept.txt", "--overrides", "without.txt"),
        *("--no-header", "--quiet"),
        *machine_of(recipe, contents),
        *(word for option in options if option[0] not in _FOR_INSTALLING for word in option),
    ]
    run_uv(
        command,
        folder=folder,
        tell=tell,
        first=Progress(stage="resolve", text="requirements"),
        where=where,
        locked=_is_locked(recipe.requirements),
    )
    said = _read(folder / "pylock.toml")
    asked = dict(_hashes_asked(recipe.requirements))
    secrets = {os.environ[name]: name for name in variables_in(recipe.requirements) if os.environ.get(name)}
    packages = []
    for package in said.get("packages", ()):
        found = _locked(package, asked, secrets)
        if found.source is not None or again or have.get(found.name) != found.version:
            packages.append(found)
    return Lock(packages=tuple(sorted(packages, key=lambda one: one.name)))


def machine_of(recipe: Recipe, contents: Contents) -> tuple[str, ...]:
    """The options that say which Python and which platform packages are for."""
    platform = platform_of(recipe.platform, contents.glibc)
    assert platform is not None and contents.python
    return (
        *("--python", sys.executable, "--python-version", contents.python),
        *("--python-platform", platform),
    )


def write_requirements(folder: Path, lines: Sequence[str], paths: Mapping[str, Path]) -> None:
    """Put a requirements file into a folder, with the files that it names."""
    for name, path in paths.items():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def installer_options(recipe: Recipe) -> list[tuple[str, ...]]:
    """The further options of a recipe as uv takes them, each with its value."""
    options = [_split(argument) for argument in recipe.installer_args]
    if recipe.installer == "pip":
        options = [
            (_OF_PIP.get(name, name), *value) for name, *value in options if name not in _FOR_PIP_ALONE
        ]
        if not any(name == "--index-strategy" for name, *_ in options):
            options.append(("--index-strategy=unsafe-best-match",))  # pip takes the best of all indexes
    return [
        (f"{name}={value[0]}",) if value and name.startswith("--") else (name, *value)
        for name, *value in options
        if name not in _WITHOUT_MEANING
    ]


def _is_locked(lines: Sequence[str]) -> bool:
    """Whether these requirements are a lock: versions with hashes, and addresses of what is in no index."""
    asked = [hashes_split(line) for line in lines if option_in(line) is None]
    chosen = [
        bool(hashes) or "://" in requirement or requirement[:2] == "./" for requirement, hashes in asked
    ]
    return all(chosen) and any(hashes for _, hashes in asked)


def _split(argument: str) -> tuple[str, ...]:
    name, equals, value = argument.partition("=")
    return (name, value) if equals else (name,)


def _pretend(have: Mapping[str, str], folder: Path) -> None:
    """Wheels of these names and versions with nothing in them, for versions that no index has."""
    folder.mkdir()
    for name, version in have.items():
        stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            about = f"{stem}.dist-info"
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(
                f"{about}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: upshift\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{about}/RECORD", "")


def _prefer(have: Mapping[str, str], file: Path) -> None:
    """An earlier lock with these versions, which uv keeps where they fit."""
    lines = ['lock-version = "1.0"', 'created-by = "upshift"', *([] if have else ["packages = []"])]
    for name, version in have.items():
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"']
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ImageError("uv has written no lock", why=str(error), fix="Try another version of uv.") from None


def _locked(
    package: Mapping[str, Any], asked: Mapping[str, tuple[str, ...]], secrets: Mapping[str, str]
) -> LockedPackage:
    """A package of a pylock, whose markers hold, since it is for one platform."""
    name, version = normalized(package["name"]), str(package.get("version", "0"))
    source, wheel = None, True
    hashes = _hashes(package.get("wheels") or ())
    if "vcs" in package:
        wheel = False
        vcs = package["vcs"]
        below = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
        source = f"{vcs['type']}+{vcs['url']}@{vcs['commit-id']}{below}"
    elif "archive" in package:
        archive = package["archive"]
        source = archive.get("url") or f"./{archive['path'].removeprefix('./')}"
        wheel, hashes = source.partition("#")[0].endswith(".whl"), _hashes((archive,))
    elif not package.get("wheels"):
        wheel, hashes = False, _hashes((package.get("sdist") or {},))
    for value, variable in secrets.items():
        source = source and source.replace(value, f"${{{variable}}}")
    return LockedPackage(
        name=name, version=version, source=source, hashes=asked.get(name) or hashes, wheel=wheel
    )


def _hashes(files: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(
        sorted({f"{kind}:{value}" for file in files for kind, value in (file.get("hashes") or {}).items()})
    )


def _hashes_asked(lines: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The hashes that the user wrote down, by package: no index overrules them."""
    for line in lines:
        requirement, hashes = hashes_split(line)
        if hashes and option_in(line) is None:
            name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
            if name is not None:
                found = tuple(part.removeprefix("--hash=") for part in hashes.split())
                yield normalized(name[0]), found


def _is_version(text: str) -> bool:
    module = packaging_of("version")
    try:
        module.Version(text)
    except module.InvalidVersion:
        return False
    return True


def _file(recipe: str) -> Path:
    return cache.folder(cache.LOCKS) / f"{recipe.partition(':')[2]}.{_FORMAT}.txt"


def kept_lock(recipe: str) -> Lock | None:
    """The lock that this machine keeps for a recipe on its parent (digest); None: it keeps none."""
    return cache.recalled(_file(recipe), Lock.parse)


def keep_lock(recipe: str, lock: Lock) -> None:
    """Keep a lock for a recipe."""
    cache.remember(_file(recipe), lock.text)
