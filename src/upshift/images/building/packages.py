"""Python packages of an image: :func:`resolve` chooses them, :class:`Installer` installs them into a folder.

::

    requirements ──┐
    packages of    ├── uv pip compile ──▶ Lock: what the image lacks ── uv pip install ──▶ folder/packages
    the parent ────┘

uv learns the parent's packages twice: as preferred versions, and as empty wheels, since no index has
``2.1.0+cu121``. So it keeps what fits, and what it replaces is known before anything is built. The lock
decides what is in an image, and so what its results are reused for. It is kept with the image, as a label,
and on this machine, so that an equal recipe has equal contents until somebody asks for new ones.

Wheels are installed by uv on this machine, for the image's Python and platform. Sources are built in a
container of the image, with its compiler, its headers and its packages. Where the image goes to a registry,
that would bring the whole parent to this machine, so pure Python is built here.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import sys
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from upshift.errors import ImageError, RecipeError
from upshift.images import cache
from upshift.images.base import Contents, Lock, LockedPackage, Progress, Recipe, Tell
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.facts import as_this_user, facts_of
from upshift.images.recipes.reading import (
    hashes_split,
    normalized,
    option_in,
    packaging_of,
    read_toml,
    variables_in,
)
from upshift.images.uv import environment_of, find_uv, platform_of, run_uv

SCRIPTS = "bin"
"""Folder of the scripts among what was installed."""

CompileIn = Callable[[], tuple[ContainerEngine, str]]
"""Gives the engine and the image in which to compile what has no wheel."""

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


_FOR_THIS_MACHINE = frozenset({"direct_url.json", "uv_cache.json", "uv_build.json"})
_COMPILED = re.compile(r"^Tag: .*-linux_\w+$", re.MULTILINE)
_INSIDE = "/upshift-build"  # the working folder, in a container that compiles


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
    options = [tuple(argument.split("=", 1)) for argument in recipe.installer_args]
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


def load_lock(recipe: str) -> Lock | None:
    """The lock that this machine keeps for a recipe on its parent (digest); None: it keeps none."""
    return cache.recalled(_file(recipe), Lock.parse)


def save_lock(recipe: str, lock: Lock) -> None:
    cache.remember(_file(recipe), lock.text)


# -- installing ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Installed:
    """A distribution that was installed: its files in the folder, and their size but for metadata."""

    name: str
    version: str
    files: tuple[str, ...] = attrs.field(repr=False)
    bytes: int


@attrs.define(slots=False, eq=False)
class Installer:
    """Installs packages of one recipe into ``folder / "packages"``."""

    _recipe: Recipe
    _paths: Mapping[str, Path]
    _contents: Contents
    _folder: Path
    _where: str | None = None  # the user's line that requires them
    _compile_in: CompileIn | None = None
    _compile_here: bool = True

    def __attrs_post_init__(self) -> None:
        self._uv = find_uv("packages are installed by uv")
        self.packages = self._folder / "packages"
        self.packages.mkdir()

    def install(self, lock: Lock, tell: Tell) -> list[Installed]:
        """Install the packages of a lock; gives them in its order."""
        wheels = [one for one in lock.packages if one.wheel]
        sources = [one for one in lock.packages if not one.wheel]
        here = [self._uv, *self._arguments(), *machine_of(self._recipe, self._contents)]
        if wheels:
            self._run(wheels, tell, here)
        if sources:
            self._build(sources, tell, here)
        found = {one.name: one for one in map(self._installed, self.packages.glob("*.dist-info"))}
        return [found[one.name] for one in lock.packages if one.name in found]

    def _build(self, sources: Sequence[LockedPackage], tell: Tell, here: Sequence[str]) -> None:
        """Install packages that come as sources."""
        if self._compile_in is not None and not self._compile_here:
            self._compile(sources, tell, *self._compile_in())
            return
        before = set(self.packages.glob("*.dist-info"))
        problem: ImageError | None = None
        try:
            self._run(sources, tell, here)
        except ImageError as error:
            problem = error
        new = set(self.packages.glob("*.dist-info")) - before
        compiled = next(filter(_is_compiled, sorted(new)), None)
        if problem is None and compiled is None:
            return
        if self._compile_in is not None:
            for file in {file for folder in new for file in _files_of(folder, self.packages)}:
                (self.packages / file).unlink()
            self._compile(sources, tell, *self._compile_in())
        elif compiled is None:
            assert problem is not None
            raise problem
        else:
            name, _, version = compiled.name.removesuffix(".dist-info").rpartition("-")
            raise RecipeError(
                f"{normalized(name)} {version} has no wheel for the image",
                where=self._where,
                why="It was compiled on this machine, against what is installed here.",
                fix="Choose a version with wheels, name a wheel that was built for the image, or build where "
                "there is a container engine.",
            )

    def _arguments(self) -> tuple[str, ...]:
        """What follows ``uv``, wherever it runs."""
        options = (w for o in installer_options(self._recipe) if o != ("--no-deps",) for w in o)
        target = ("--requirements", "requirements.txt", "--target", "packages", "--no-deps")
        return ("pip", "install", *target, *options)

    def _run(
        self, packages: Sequence[LockedPackage], tell: Tell, command: Sequence[str], text: str | None = None
    ) -> None:
        names = ("--constraint ", "--require-hashes")
        options = [o for o in self._recipe.requirements if o.startswith("-") and not o.startswith(names)]
        write_requirements(self._folder, [*options, *(one.line for one in packages)], self._paths)
        first = Progress(stage="install", text=text or ", ".join(one.name for one in packages))
        run_uv(command, folder=self._folder, tell=tell, first=first, where=self._where, locked=True)

    def _compile(
        self, packages: Sequence[LockedPackage], tell: Tell, engine: ContainerEngine, image: str
    ) -> None:
        """Install packages that come as sources by uv in a container of the image, with this folder, as this
        user.
        """
        name = f"upshift-compile-{uuid.uuid4().hex[:12]}"
        kept = cache.folder(cache.COMPILED) / re.sub(r"[^a-zA-Z0-9]", "-", image)[-32:]
        kept.mkdir(parents=True, exist_ok=True)
        mounts = {
            str(self._folder): _INSIDE,
            str(kept): f"{_INSIDE}/cache",
            str(Path(self._uv).resolve()): "/upshift-uv",
        }
        variables = {
            "HOME": f"{_INSIDE}/home",
            "UV_CACHE_DIR": f"{_INSIDE}/cache",
            "UV_LINK_MODE": "copy",
            "UV_NO_PROGRESS": "1",
            "NO_COLOR": "1",
            "PYTHONPATH": f"{_INSIDE}/packages",  # what builds without isolation finds
        }
        authority = environment_of().get("SSL_CERT_FILE")
        if authority:
            mounts[authority] = variables["SSL_CERT_FILE"] = "/upshift-authorities.crt"
        command = [*engine.command, "run", "--rm", "--pull", "never", "--network", "host", "--name", name]
        command += [*as_this_user(engine, facts_of(engine)), "--workdir", _INSIDE]
        command += [word for pair in mounts.items() for word in ("--volume", ":".join(pair))]
        command += [word for pair in variables.items() for word in ("--env", "=".join(pair))]
        for variable in variables_in(self._recipe.requirements):
            command += ["--env", variable]  # its value is in no argument
        command += ["--entrypoint", "/upshift-uv", image]
        try:
            python = ("--python", self._contents.interpreter or "python3")
            self._run(packages, tell, [*command, *self._arguments(), *python], "compiling in the image")
        except BaseException:  # only the engine's command has ended
            with contextlib.suppress(ImageError):
                engine.run(["rm", "--force", name], check=False)
            raise

    def _installed(self, folder: Path) -> Installed:
        name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
        files = sorted(_files_of(folder, self.packages))
        size = sum((self.packages / file).stat().st_size for file in files if _counts(file))
        return Installed(name=normalized(name), version=version, files=tuple(files), bytes=size)


def _is_compiled(folder: Path) -> bool:
    wheel = folder / "WHEEL"
    return wheel.is_file() and _COMPILED.search(wheel.read_text(encoding="utf-8")) is not None


def _counts(file: str) -> bool:
    """Whether a file is the same on every machine: scripts name an interpreter, and a RECORD its digests."""
    return not file.startswith(f"{SCRIPTS}/") and ".dist-info/" not in file


def _files_of(folder: Path, packages: Path) -> Collection[str]:
    """The files of a distribution, by its ``RECORD``."""
    with open(folder / "RECORD", encoding="utf-8", newline="") as record:
        names = {row[0] for row in csv.reader(record) if row}
    files = set()
    for name in names:
        # Checked when it is packed; what leads out of the folder stays as it is, and is refused there.
        path = os.path.normpath(name)
        if PurePosixPath(path).name not in _FOR_THIS_MACHINE and (packages / path).exists():
            files.add(path)
    return files
