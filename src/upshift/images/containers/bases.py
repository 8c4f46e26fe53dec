"""The part of an image that a container engine builds: a user's Dockerfile, and Debian packages
(:func:`build_base`).

::

    the user's Dockerfile ── docker build ──▶ base ── RUN apt-get install ──▶ base, on which packages are laid

A base has a name by which it is found again, so that a change of requirements does not rebuild it. Podman's
builder and both of Docker's write different things. Only the current instruction is read from them and, after
a failure, the last lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import attrs

from upshift.errors import ImageError, RecipeError, location
from upshift.images.base import (
    DEFAULT_REPOSITORY,
    HOME_LABEL,
    PROJECT_LABEL,
    Ingredients,
    Parent,
    Progress,
    Recipe,
    Reference,
    Tell,
)
from upshift.images.cache import build_folder, build_lock
from upshift.images.containers.engine import PODMAN, ContainerEngine, full_disk
from upshift.images.containers.transfer import platform_of, tls_of
from upshift.images.recipes.dockerfiles import instructions
from upshift.model.configuration import home, make_folder

BASE_LABEL = "dev.upshift.base"
"""Label of a base, and so of every image on top of it: a digest of what it was made from."""

UNFINISHED = "localhost/upshift-unfinished"
"""Repository for layers of failed builds, which Docker without BuildKit keeps for the next try."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_AT_WORK = re.compile(r"(?:(?:Step|STEP) \d+/\d+ ?: |#\d+ \[(?:\S+ +)?\d+/\d+\] )(.*)")
_MADE = re.compile(r" ---> ([0-9a-f]{12,64})")
_PLACE = re.compile(r"(?:^\S*[Dd]ockerfile:(\d+)$)|(?:parse error (?:on )?line (\d+))")
_NOISE = re.compile(
    r"DEPRECATED: .*| +Install the buildx component.*| +https://docs\.docker\.com/go/buildx/|-+"
    r"| *BuildKit is currently disabled.*| *environment-variable\.|Sending build context.*| ---> .*|--> .*"
    r"|Removing intermediate container .*|#\d+ (?:\[internal\]|sha256:|transferring|DONE|CACHED|exporting).*"
)
_OF_BUILDKIT = re.compile(r"^#\d+ (?:\d+\.\d+ )?")
_KEPT = 30  # lines that are shown where a build fails
_NETWORK = re.compile(
    r"dial tcp|no such host|i/o timeout|connection refused|TLS handshake|toomanyrequests|x509:", re.IGNORECASE
)
_NO_MIRROR = re.compile(r"Could not resolve|Temporary failure resolving|Could not connect|Cannot initiate")
_NO_SUCH_PACKAGE = re.compile(
    r"Unable to locate package (\S+)|Package '?([^\s']+)'? has no installation candidate"
    r"|Version '\S+' for '(\S+)' was not found"
)

_WAITING = Progress(stage="build", text="another process builds the same")


def base_of(engine: ContainerEngine, ingredients: Ingredients, parent: Parent | None) -> Parent | None:
    """The base of a recipe, if the engine has it."""
    return engine.inspect(_names(ingredients.recipe, parent)[-1])


def build_base(
    engine: ContainerEngine, ingredients: Ingredients, parent: Parent | None, *, tell: Tell
) -> Parent:
    """Build the base of a recipe, unless the engine has it."""
    recipe, names = ingredients.recipe, _names(ingredients.recipe, parent)
    with build_lock(names[-1].rpartition(":")[2], waiting=lambda: tell(_WAITING)):
        found = None if ingredients.rebuild else engine.inspect(names[-1])
        if found is not None:
            return found
        with build_folder() as folder:
            if recipe.dockerfile is not None:
                context = folder / "context"
                context.mkdir()
                for path in recipe.context:
                    assert ingredients.context_root is not None
                    _place(ingredients.context_root / path, context / path)
                args = _options(engine, recipe.dockerfile)
                args += [
                    w for name, value in recipe.build_args.items() for w in ("--build-arg", f"{name}={value}")
                ]
                again = ingredients.rebuild or (engine.name == PODMAN and _mounts_files(recipe.dockerfile))
                build = _Build(engine, ingredients, folder, names[0], tell, again)
                build.run(recipe.dockerfile, context, args)
            if recipe.apt_packages:
                user = (parent if parent is not None else _there(engine, names[0])).user
                context = folder / "nothing"
                context.mkdir()
                args = tls_of(engine, parent.reference.registry) if parent is not None else []
                build = _Build(engine, ingredients, folder, names[-1], tell, ingredients.rebuild)
                with _named(engine, parent, names) as below:
                    build.run(with_packages(below, recipe, user), context, args)
    return _there(engine, names[-1])


@contextlib.contextmanager
def _named(engine: ContainerEngine, parent: Parent | None, names: Sequence[str]) -> Iterator[str]:
    """A name for the image below, since BuildKit takes a bare id for a name."""
    if parent is None or not parent.in_engine:
        yield names[0] if parent is None else parent.pinned
        return
    name = f"{names[-1].replace(':base-', ':below-')}-{this_home()}"
    engine.run(["tag", parent.id, name])
    try:
        yield name
    finally:
        engine.run(["rmi", "--no-prune", name], check=False)


def with_packages(below: str, recipe: Recipe, user: str | None) -> str:
    """The Dockerfile that installs Debian packages on an image, whose user does not change."""
    install = (
        f"apt-get -q install -y --no-install-recommends {' '.join(map(shlex.quote, recipe.apt_packages))}"
    )
    command = f"export DEBIAN_FRONTEND=noninteractive && apt-get -q update && {install}"
    lines = ["# Rendered by Upshift.", f"FROM {below}", "USER root"]
    lines += [
        f"ENV {name}={_quoted(value)}" for name, value in recipe.environment.items() if "\n" not in value
    ]
    # As a list: a SHELL of the image's would take the command otherwise.
    lines.append(f"RUN {json.dumps(['/bin/sh', '-c', f'{command} && rm -rf /var/lib/apt/lists/*'])}")
    return "\n".join([*lines, *([f"USER {user}"] if user else [])]) + "\n"


def _names(recipe: Recipe, parent: Parent | None) -> list[str]:
    """The names of the Dockerfile's image, and of the same with Debian packages."""
    said: list[object] = [recipe.platform, recipe.dockerfile, dict(recipe.context), dict(recipe.build_args)]
    names = [_name(said)]
    if recipe.apt_packages:
        said += [parent and parent.digest, recipe.apt_packages, dict(recipe.environment)]
        names.append(_name(said))
    return names


def _name(said: object) -> str:
    text = json.dumps(said, sort_keys=True)
    return f"{DEFAULT_REPOSITORY}:base-{hashlib.sha256(text.encode()).hexdigest()}"


def _there(engine: ContainerEngine, name: str) -> Parent:
    found = engine.inspect(name)
    if found is None:
        raise ImageError(f"{engine.title} has built {name}, and does not have it")
    return found


@attrs.define(slots=False, eq=False)
class _Build:
    """One ``docker build``, whose output is kept if it fails."""

    _engine: ContainerEngine
    _ingredients: Ingredients
    _folder: Path
    _name: str
    _tell: Tell
    _again: bool
    _instruction: str = ""
    _line: int | None = None
    _layer: str | None = None
    _last: deque[str] = attrs.field(factory=lambda: deque(maxlen=_KEPT))
    _shown: Progress = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._shown = Progress(stage="build", text=f"{self._engine.title} begins")

    def run(self, dockerfile: str, context: Path, args: Sequence[str]) -> None:
        """Build; raises the ImageError that a failure means."""
        engine, recipe = self._engine, self._ingredients.recipe
        written, log = self._folder / "Dockerfile", self._folder / "output"
        written.write_text(dockerfile, encoding="utf-8")
        with_buildkit = engine.name != PODMAN and engine.buildkit
        command = ["build", "--file", str(written), "--tag", self._name]
        command += platform_of(engine, recipe.platform)
        labels = {BASE_LABEL: self._name.rpartition("-")[2], HOME_LABEL: this_home()}
        labels[PROJECT_LABEL] = self._ingredients.project
        command += [word for pair in labels.items() for word in ("--label", "=".join(pair))]
        command += ["--no-cache"] if self._again else []
        command += ["--progress", "plain"] if with_buildkit else ["--force-rm"]
        environment = {} if engine.name == PODMAN else {"DOCKER_BUILDKIT": str(int(with_buildkit))}
        try:
            with log.open("w", encoding="utf-8") as kept:
                status, last = engine.stream(
                    [*command, *args, str(context)],
                    lambda line: self._take(line, kept),
                    idle=lambda: self._tell(self._shown),
                    environment=environment,
                )
        finally:
            remove_unfinished(engine)
        if status != 0:
            engine.check()
            if self._layer is not None and not with_buildkit:
                engine.run(["tag", self._layer, f"{UNFINISHED}:{this_home()}"], check=False)
            raise self._failure(dockerfile, _COLOURS.sub("", "\n".join(last)), _keep(log))

    def _take(self, line: str, kept: TextIO) -> None:
        line = _COLOURS.sub("", line).rstrip()
        with contextlib.suppress(OSError):  # a full disk fails the build, too
            kept.write(f"{line}\n")
        at_work, made, place = _AT_WORK.fullmatch(line), _MADE.fullmatch(line), _PLACE.search(line)
        if place is not None:
            self._line = int(place[1] or place[2])
        if at_work is not None:
            self._instruction = at_work[1]
        elif made is not None and not self._instruction.startswith("FROM"):
            self._layer = made[1]
        if not line or _NOISE.fullmatch(line):
            return
        line = _OF_BUILDKIT.sub("", line)
        if at_work is None:
            self._last.append(line)
        self._shown = Progress(stage="build", text=line)
        self._tell(self._shown)

    def _failure(self, dockerfile: str, said: str, log: str | None) -> ImageError:
        ingredients = self._ingredients
        full = full_disk(self._engine.name, said)
        if full is not None:
            return full
        whole = [] if log is None else [f"All that was said: {log}"]
        if dockerfile == ingredients.recipe.dockerfile:
            of_parent = not self._instruction or self._instruction.startswith("FROM")
            kind = ImageError if of_parent and _NETWORK.search(said) else RecipeError
            place = ingredients.dockerfile
            line = self._line or _line_of(dockerfile, self._instruction)
            return kind(
                "the Dockerfile fails" if self._instruction else "the Dockerfile cannot be built",
                where=None if place is None else location(str(place), line) if line else str(place),
                why="\n".join([*filter(None, [self._instruction]), *self._last, *whole]),
                fix="Correct this instruction; or what it needs and does not find, before it.",
            )
        kind, what, fix = cause_of(said, ", ".join(ingredients.recipe.apt_packages))
        why = "\n".join([*self._last, *whole])
        return kind(what, where=ingredients.origins.get("apt_packages"), why=why, fix=fix)


def cause_of(said: str, packages: str) -> tuple[type[ImageError], str, str]:
    """Why Debian packages could not be installed."""
    if "apt-get: not found" in said or '"/bin/sh": stat' in said or "/bin/sh: no such file" in said:
        fix = "Build on an image of Debian or Ubuntu, or install them in a Dockerfile."
        return RecipeError, f"the image has no apt-get to install {packages}", fix
    missing = dict.fromkeys("".join(names) for names in _NO_SUCH_PACKAGE.findall(said))
    if _NO_MIRROR.search(said):
        what = "the Debian packages cannot be loaded: their server cannot be reached"
        fix = "See that containers reach the network: name servers, firewall, proxy (http_proxy)."
        return ImageError, what, fix
    if missing:
        what = f"the image's distribution has no such Debian package: {', '.join(missing)}"
        fix = "Correct its name or version; packages.debian.org and packages.ubuntu.com know them."
        return RecipeError, what, fix
    what = f"the Debian packages cannot be installed: {packages}"
    return RecipeError, what, "See the output of apt-get; the package lists of an old image may be gone."


def _line_of(dockerfile: str, instruction: str) -> int | None:
    wanted = " ".join(instruction.split())
    for one in instructions(dockerfile):
        if " ".join(f"{one.name} {one.value}".split()) == wanted:
            return one.line
    return None


def _options(engine: ContainerEngine, dockerfile: str) -> list[str]:
    registries = set()
    for one in instructions(dockerfile):
        words = [word for word in one.value.split() if not word.startswith("--")]
        if one.name == "FROM" and words and "/" in words[0] and "$" not in words[0]:
            with contextlib.suppress(ImageError):  # what is invalid the engine will say
                registries.add(Reference.parse(words[0]).registry)
    return tls_of(engine, *registries) if len(registries) == 1 else []  # the option is for all of them


def _mounts_files(dockerfile: str) -> bool:
    """Whether it mounts files of its context, which Podman 4 ignores when it looks for a cached layer."""
    return any(one.name == "RUN" and one.copied != () for one in instructions(dockerfile))


def _quoted(value: str) -> str:
    """A value as Dockerfiles take it, with special characters escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _place(source: Path, to: Path) -> None:
    """Link or copy a file into another folder; links stay links."""
    if source.is_dir() and not source.is_symlink():
        to.mkdir(parents=True, exist_ok=True)
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, to, follow_symlinks=False)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, to, follow_symlinks=False)


# -- what builds leave behind --------------------------------------------------------------------


def this_home() -> str:
    """A digest of ``UPSHIFT_HOME``, for the labels of its images, which do not show the path."""
    return hashlib.sha256(str(home().resolve()).encode()).hexdigest()[:16]


def unfinished(engine: ContainerEngine) -> list[str]:
    """The names of layers that failed builds of this ``UPSHIFT_HOME`` left."""
    command = ["images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={UNFINISHED}:*"]
    names = engine.run(command).stdout.split()
    return [name for name in names if name == f"{UNFINISHED}:{this_home()}"]


def remove_unfinished(engine: ContainerEngine) -> None:
    """Remove them; those below another image stay."""
    with contextlib.suppress(ImageError):  # the engine is gone: the next build removes them
        for name in unfinished(engine):
            engine.run(["rmi", name], check=False)


def logs() -> Path:
    """The folder with logs of failed builds; ``upshift gc`` removes old ones."""
    return home() / "logs" / "builds"


def _keep(log: Path) -> str | None:
    """Keep the log of a failed build; its path, or None where it cannot be written."""
    try:
        make_folder(logs())
        file, kept = tempfile.mkstemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), suffix=".log", dir=logs())
        os.close(file)
        shutil.copyfile(log, kept)
    except OSError:
        return None
    return kept
