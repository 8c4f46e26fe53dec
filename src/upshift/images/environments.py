"""The Python environments that steps run in without an image: found by content, or made.

::

    UPSHIFT_HOME/environments/DIGEST         the environment, at the path at which it was made
    UPSHIFT_HOME/environments/DIGEST.json    there once it is complete: its Python
    UPSHIFT_HOME/environments/DIGEST.lock    held by whoever makes it

The digest is of what exactly is installed, so that no environment changes once it is there.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from upshift.errors import ImageError, MissingExtra, RecipeError
from upshift.images.base import LEAST_PYTHON, Contents, Image, Lock, Progress, Recipe, Tell, digest_of_data
from upshift.images.building.packages import (
    installer_options,
    load_lock,
    resolve,
    save_lock,
    write_requirements,
)
from upshift.images.cache import build_folder
from upshift.images.output import follow
from upshift.images.parents.known import minor
from upshift.images.recipes.reading import read_text
from upshift.images.recipes.recipe import make_ingredients
from upshift.images.uv import find_uv, run_uv
from upshift.model.configuration import home
from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.docker_fields import THIS_PLATFORM
from upshift.model.settings.environment import PythonEnvironment
from upshift.runtime.accelerators.compatibility import parse

LOOK = 0.5
"""Seconds between two checks of an environment that another process makes."""
_ASKED = (
    "import importlib.metadata as m, json, platform, sys; "
    "found = {f'{one.metadata[\"Name\"]}=={one.version}' for one in m.distributions()}; "
    "print(json.dumps([platform.python_version(), sorted(found)]))"
)
_CONDA = ("micromamba", "mamba", "conda")


@attrs.frozen(kw_only=True)
class PreparedEnvironment:
    """An environment that could be made, or exists."""

    digest: str  # of its content, which is what results are reused for
    python: str | None = None  # the interpreter that is there already; None: it is in a folder of ours
    recipe: Recipe | None = None  # of what uv installs
    paths: Mapping[str, Path] = attrs.field(factory=dict)  # files that its requirements name
    lock: Lock | None = None  # what its requirements were resolved to
    conda: Path | None = None
    minor: str | None = None  # the version of Python that a step needs that travels by value: "3.11"
    where: str | None = None  # the user's line

    @property
    def same(self) -> object:
        """Equal for environments that are made once."""
        return self.digest, self.minor

    noun = "environment"

    @property
    def folder(self) -> Path:
        name = digest_of_data([self.digest, sys.base_prefix]).partition(":")[2][:32]
        return (home() / "environments").resolve() / name

    @property
    def interpreter(self) -> str:
        return self.python or str(self.folder / "bin" / "python")

    @property
    def image(self) -> Image:
        """The environment as a spec has it: an image with only an interpreter."""
        return Image(reference="", recipe=self.digest, interpreter=self.interpreter, name=self.interpreter)

    @property
    def is_there(self) -> bool:
        """Whether nothing has to be made."""
        return self.python is not None or self._complete.exists()

    @property
    def _complete(self) -> Path:
        return self.folder.with_suffix(".json")

    def make(self, tell: Tell) -> Image:
        """Make it, unless it exists; an exception in ``tell`` ends that."""
        if not self.is_there:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with open(self.folder.with_suffix(".lock"), "ab") as lock:
                while not _locks(lock.fileno()):
                    tell(Progress(stage="install", text="another run makes this environment"))
                    time.sleep(LOOK)
                if not self.is_there:
                    self._make(tell)
        if self.python is None:
            _refuse(str(json.loads(self._complete.read_text())["python"]), self)
        return self.image

    def _make(self, tell: Tell) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # of a process that was killed
        if self.conda is not None:
            self._by_conda(self.conda, tell)
        else:
            self._by_uv(tell)
        version, packages = _asked(self.interpreter, self.where)
        draft = self.folder.with_suffix(".new")
        draft.write_text(json.dumps({"python": version, "packages": packages}))
        os.replace(draft, self._complete)

    def _by_uv(self, tell: Tell) -> None:
        assert self.recipe is not None and self.lock is not None
        uv = find_uv("the environment of a step cannot be made")
        with build_folder() as folder:
            write_requirements(folder, self.lock.text.splitlines(), self.paths)
            options = [word for option in installer_options(self.recipe) for word in option]
            for command in (
                [uv, "venv", "--python", sys.executable, str(self.folder)],
                [
                    *(uv, "pip", "install", "--python", self.interpreter, "--no-deps"),
                    *("--requirements", "requirements.txt", *options),
                ],
            ):
                first = Progress(stage="install", text=", ".join(self.lock.versions))
                run_uv(command, folder=folder, tell=tell, first=first, where=self.where, locked=True)

    def _by_conda(self, file: Path, tell: Tell) -> None:
        program = next(filter(None, map(shutil.which, _CONDA)), None)
        if program is None:
            raise MissingExtra(
                f"the environment of {file.name} cannot be made: none of {', '.join(_CONDA)} is on the PATH",
                where=self.where,
                fix="Install micromamba, or load the module that has conda.",
            )
        create = ["create", "--yes"] if Path(program).name == "micromamba" else ["env", "create"]
        command = [program, *create, "--prefix", str(self.folder), "--file", str(file)]
        tell(Progress(stage="install", text=f"{Path(program).name} {' '.join(create)}"))
        going_on = Progress(stage="install", text=f"packages of {file.name}")
        last: deque[str] = deque(maxlen=10)
        status = follow(command, last.append, idle=lambda: tell(going_on), folder=file.parent, stdout=True)
        if status != 0:
            raise RecipeError(
                f"{Path(program).name} cannot make the environment of {file.name}",
                where=self.where,
                why="\n".join(last).strip() or f"It ended with {status}.",
                fix=f"Correct {file.name}.",
            )


def prepare(
    settings: PythonEnvironment,
    *,
    project: Path,
    minor: str | None = None,  # the version of Python that is needed: ``"3.11"``; None: any from 3.10
    where: str | None = None,  # the user's line
) -> PreparedEnvironment:
    """Find out what exactly is in an environment; nothing is made.

    Raises
    ------
    ImageError
        Its requirements cannot be met, or its Python will not do.
    SettingsError
        A file is missing, or is none of the kind.
    MissingExtra
        uv is not installed.
    """
    if settings.python is not None:
        python = os.path.abspath(project / os.path.expanduser(settings.python))
        version, packages = _asked(python, where)
        known = PreparedEnvironment(
            digest=digest_of_data(["python", version, packages]), python=python, minor=minor, where=where
        )
        _refuse(version, known)
        return known
    if settings.conda is not None:
        file = project / settings.conda
        text = read_text(file, where or "conda")
        return PreparedEnvironment(
            digest=digest_of_data(["conda", text, os.uname().machine]), conda=file, minor=minor, where=where
        )
    asked = DockerSettings(
        requirements=None if settings.requirements is None else list(settings.requirements),
        pyproject_path=settings.lock,
    )
    origins = {"requirements": where, "pyproject_path": where} if where else {}
    ingredients = make_ingredients(asked, project=project, platform=THIS_PLATFORM, origins=origins)
    recipe, version = ingredients.recipe, ".".join(map(str, sys.version_info[:3]))
    base = digest_of_data(["uv", version])
    lock = load_lock(recipe.digest(base))
    if lock is None:
        here = Contents(python=version, glibc=platform.libc_ver()[1] or None, packages={})
        with build_folder() as folder:
            lock = resolve(recipe, ingredients.paths, here, folder, where=where)
        save_lock(recipe.digest(base), lock)
    known = PreparedEnvironment(
        digest=recipe.identity(base, lock),
        recipe=recipe,
        paths=ingredients.paths,
        lock=lock,
        minor=minor,
        where=where,
    )
    _refuse(version, known)
    return known


def _asked(python: str, where: str | None) -> tuple[str, Sequence[str]]:
    try:
        done = subprocess.run([python, "-I", "-c", _ASKED], capture_output=True, text=True, timeout=60)
        version, packages = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = str(error) if isinstance(error, OSError) else "It does not report its version."
        raise ImageError(
            f"{python} is no Python that steps can run with",
            where=where,
            why=why,
            fix="Name the interpreter of an environment that this machine and the nodes see.",
        ) from None
    return version, packages


def _refuse(version: str, known: PreparedEnvironment) -> None:
    """Raise where steps cannot run with this version of Python."""
    if parse(version) < parse(LEAST_PYTHON):
        raise ImageError(
            f"{known.interpreter} is Python {version}",
            where=known.where,
            why=f"Steps need Python {LEAST_PYTHON} or newer.",
            fix="Name a newer one, or ask for it in the environment.",
        )
    if known.minor not in (None, minor(version)):
        raise ImageError(
            f"{known.interpreter} is Python {version}, and the step needs {known.minor}",
            where=known.where,
            why="The step is no function of a module: it travels by value, for the same version.",
            fix=f"Use an environment with Python {known.minor}, or define the step at the top of a file.",
        )


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
