"""The packages of a lock, installed into a folder for another machine: :class:`Installer`.

uv on this machine installs wheels for the image's Python and platform. What has no wheel is built in a
container of the image, with its compiler, its headers and its packages. Where the image goes to a registry,
that would take the whole parent to this machine, and what is of Python alone is built here.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import uuid
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from pathlib import Path, PurePosixPath

import attrs

from upshift.errors import ImageError, RecipeError
from upshift.images import cache
from upshift.images.base import Contents, Lock, LockedPackage, Progress, Recipe, Tell
from upshift.images.building.locking import installer_options, machine_of, write_requirements
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.facts import as_this_user, facts_of
from upshift.images.recipes.reading import normalized, variables_in
from upshift.images.uv import environment_of, find_uv, run_uv

SCRIPTS = "bin"
"""Folder of the scripts among what was installed."""

CompileIn = Callable[[], tuple[ContainerEngine, str]]
"""Gives the engine and the image in which to compile what has no wheel."""

_FOR_THIS_MACHINE = frozenset({"direct_url.json", "uv_cache.json", "uv_build.json"})
_COMPILED = re.compile(r"^Tag: .*-linux_\w+$", re.MULTILINE)
_INSIDE = "/upshift-build"  # the working folder, in a container that compiles


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


def record_of(content: bytes, changed: Container[str], places: Mapping[str, str]) -> bytes:
    """A ``RECORD`` as it is in an image: sorted, and without what is about this machine.

    ``changed`` are files that have other content now, and so no digest; ``places`` says where each file is,
    relative to the folder of packages.
    """
    rows = [row for row in csv.reader(io.StringIO(content.decode())) if row]
    kept = {places[name]: ["", ""] if name in changed else rest for name, *rest in rows if name in places}
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([name, *rest] for name, rest in sorted(kept.items()))
    return out.getvalue().encode()


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
