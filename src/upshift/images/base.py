"""The forms of this room: what an image is made from, what is known of it, what was found and built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.images.reference import Reference

RECIPE_LABEL = "dev.upshift.recipe"
"""Label of every image that Upshift builds: the digest of its recipe."""

LOCK_LABEL = "dev.upshift.lock"
"""Label with what the requirements of the recipe were resolved to: a requirements file with hashes."""

HOME_LABEL, PROJECT_LABEL = "dev.upshift.home", "dev.upshift.project"
"""Labels of images in a container engine: a digest of the ``UPSHIFT_HOME`` that built it, and the project's
name.
"""

LEAST_PYTHON = "3.10"
"""What runs beside a step needs it."""

ERROR, WARNING, NOTE = SEVERITIES = ("error", "warning", "note")
"""Severities of a finding. With one of the first, nothing is built and nothing runs."""


@attrs.frozen(kw_only=True)
class Recipe:
    """Everything that a user asks to be in an image; plain data, the same on every machine.

    Parameters
    ----------
    parent
        The image to build on, as the user named it, or the default. With ``dockerfile``: None where
        the user named none, since the Dockerfile says it.
    platform
        ``linux/amd64``.
    dockerfile
        The text of the user's Dockerfile, which makes the parent of all that follows.
    context
        What that Dockerfile copies: path in the context to what is there, as :mod:`.recipes.context` says it.
    build_args
        Arguments of that Dockerfile.
    apt_packages
        Debian packages.
    requirements
        Lines of a requirements file, files read and flattened; nothing of Upshift's own.
    files
        Files of this machine that requirements name (wheels, constraints): the name there to a digest.
    installer
        ``"uv"`` or ``"pip"``: by whose rules packages are chosen. uv installs either way.
    installer_args
        Further options of the installer, as given on its command line.
    environment
        Environment variables while building, and later.
    user
        The user that the container runs as.
    skip_build
        The parent is used as it is.
    """

    parent: str | None
    platform: str
    dockerfile: str | None = None
    context: Mapping[str, str] = attrs.field(factory=dict)
    build_args: Mapping[str, str] = attrs.field(factory=dict)
    apt_packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    files: Mapping[str, str] = attrs.field(factory=dict)
    installer: str = "uv"
    installer_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    user: str | None = None
    skip_build: bool = False

    @property
    def adds_nothing(self) -> bool:
        """Whether the parent is the image."""
        return self.skip_build or not (
            self.dockerfile or self.apt_packages or self.requirements or self.environment or self.user
        )

    @property
    def needs_engine(self) -> bool:
        """Whether a container engine has to make part of it: what a Dockerfile says, and Debian packages."""
        return not self.skip_build and (self.dockerfile is not None or bool(self.apt_packages))

    def digest(self, parent: str | None) -> str:
        """What an image is found by that was made from this on a parent of this digest: ``sha256:…``.

        The parent is None where only the Dockerfile knows it.
        """
        return _digest([attrs.asdict(self), parent])

    def identity(self, parent: str | None, lock: Lock | None) -> str:
        """What is in an image made from this: the parent, the locked packages, and what else was asked."""
        if lock is None:
            return self.digest(parent)
        asked = attrs.asdict(self)
        for name in ("requirements", "files", "installer", "installer_args"):
            del asked[name]  # only what they were resolved to counts
        return _digest([asked, parent, lock.text])


def _digest(said: object) -> str:
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@attrs.frozen(kw_only=True)
class Locked:
    """One package of a lock.

    Parameters
    ----------
    name, version
        Normalized name, and version with its local part: ``2.4.1+cu124``.
    source
        Where it is from, if not from an index: ``git+https://…@COMMIT``, ``https://…``, ``./tiny-1.0….whl``.
    hashes
        Of the files that may be installed: ``sha256:…``.
    wheel
        Whether that is a wheel; else it is sources, which may have to be compiled.
    """

    name: str
    version: str
    source: str | None = None
    hashes: tuple[str, ...] = ()
    wheel: bool = True

    @property
    def line(self) -> str:
        """As a line of a requirements file; a comment has what such a line cannot say."""
        named = f"{self.name}=={self.version}"
        if self.source is not None:
            named = self.source if self.source.startswith("./") else f"{self.name} @ {self.source}"
        hashes = "".join(f" --hash={one}" for one in self.hashes)
        comment = "" if self.source is None else f" {self.name} {self.version}"
        comment += "" if self.wheel else " sources"
        return f"{named}{hashes}" + (f"  #{comment}" if comment else "")

    @classmethod
    def parse(cls, line: str) -> Locked:
        """The inverse of :attr:`line`; raises ValueError where it is none."""
        said, _, comment = line.partition("  # ")
        requirement, *hashes = said.split(" --hash=")
        *described, last = comment.split(" ") if comment else [""]
        wheel = last != "sources"
        described += [last] if wheel and last else []
        if described:
            name, version = described
            source: str | None = requirement.removeprefix(f"{name} @ ")
        else:
            name, version = requirement.split("==")
            source = None
        return cls(name=name, version=version, source=source, hashes=tuple(hashes), wheel=wheel)


@attrs.frozen(kw_only=True)
class Lock:
    """What requirements were resolved to on one parent: exactly what is installed on top of it."""

    packages: tuple[Locked, ...] = ()

    @property
    def text(self) -> str:
        """As a requirements file with hashes, which installers read."""
        return "".join(f"{package.line}\n" for package in self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """The packages by name."""
        return {package.name: package.version for package in self.packages}

    @classmethod
    def parse(cls, text: str) -> Lock:
        """The inverse of :attr:`text`; raises ValueError where it is none."""
        return cls(packages=tuple(Locked.parse(line) for line in text.splitlines() if line.strip()))


@attrs.frozen(kw_only=True)
class Ingredients:
    """A recipe, with where its parts are on this machine and what the user should know about them.

    Parameters
    ----------
    recipe
        The recipe.
    context_root
        The folder that the Dockerfile copies from.
    dockerfile
        Where the Dockerfile is.
    paths
        Where the files of the recipe are, by the same names.
    notes
        Lines for the user: ``upshift==0.3 in requirements: this very Upshift is used``.
    repository, tag
        What the user wants the image to be called.
    rebuild, update
        Whether to build even where an equal image exists, and whether to resolve requirements again.
    accept
        Names of findings that the user overrules.
    origins
        Which level said what, by field of the settings.
    base
        What the user's Dockerfile builds on; None: there is none, or it cannot be told.
    project
        Name of the project's folder: who the image is of. The recipe does not know it.
    """

    recipe: Recipe
    context_root: Path | None = None
    dockerfile: Path | None = None
    paths: Mapping[str, Path] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()
    repository: str | None = None
    tag: str | None = None
    rebuild: bool = False
    update: bool = False
    accept: tuple[str, ...] = ()
    origins: Mapping[str, str] = attrs.field(factory=dict)
    base: str | None = None
    project: str = ""

    @property
    def is_the_parent(self) -> bool:
        """Whether the parent is the image, also by its name."""
        named = self.repository is not None or self.tag is not None
        return self.recipe.skip_build or (self.recipe.adds_nothing and not named)


@attrs.frozen(kw_only=True)
class Parent:
    """What a registry or a container engine says of an image, for one platform. Nothing is downloaded.

    Parameters
    ----------
    reference
        How it is called.
    digest
        In a registry of the manifest for the platform; of an engine that has it from none, the image's id.
    platform
        ``linux/amd64``.
    environment, labels, user, entrypoint, working_dir
        Of its configuration.
    layers
        Digests of its layers as they are stored, lowest first; empty where an engine says it.
    bytes
        Size of the layers as they are stored.
    config
        The configuration as it was read.
    manifest
        The manifest as it was read; None where an engine says it.
    in_engine
        Whether the container engine has it already.
    """

    reference: Reference
    digest: str
    platform: str
    environment: Mapping[str, str] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    working_dir: str | None = None
    layers: tuple[str, ...] = ()
    bytes: int | None = None
    config: Mapping[str, Any] = attrs.field(factory=dict)
    manifest: Mapping[str, Any] | None = None
    in_engine: bool = False

    @property
    def id(self) -> str:
        """Its id in the engine that has it."""
        identity = str(self.config["Id"])
        return identity if identity.startswith("sha256:") else f"sha256:{identity}"

    @property
    def pinned(self) -> str:
        """What it is called that cannot change: its digest, or of one that only an engine has its id."""
        return self.id if self.in_engine else self.reference.with_digest(self.digest).full


@attrs.frozen(kw_only=True)
class Contents:
    """What is in an image, as far as it is known; None where it is not.

    Parameters
    ----------
    python
        Full or minor version of the Python that steps run with: ``"3.11.7"``; empty: there is none.
    interpreter
        Its path in the image.
    site_packages
        Where its packages are.
    cuda
        Version of CUDA: ``"12.1"``; empty: there is none.
    compat
        Whether it has NVIDIA's libraries for drivers that are older than its CUDA (``cuda-compat``).
    stacks
        What computes on devices of other vendors: vendor (``"amd"``) to the version of its software
        (of ROCm: ``"6.2.4"``); empty: there is none. A vendor that is missing: not known.
    packages
        Python packages: normalized name to version, local parts included (``2.1.0+cu121``). None:
        not known, which is not the same as none.
    complete
        Whether there are no packages but these.
    lacks
        Packages that are known not to be there, where ``packages`` are not all there are.
    users
        Names of the users that it has.
    glibc
        Version of the C library; empty where it is musl.
    source
        Where this is from, in words for evidence: ``its configuration``, ``the table of known images``.
    """

    python: str | None = None
    interpreter: str | None = None
    site_packages: str | None = None
    cuda: str | None = None
    compat: bool | None = None
    stacks: Mapping[str, str] = attrs.field(factory=dict)
    packages: Mapping[str, str] | None = None
    complete: bool = True
    lacks: frozenset[str] = frozenset()
    users: frozenset[str] | None = None
    glibc: str | None = None
    source: str = "its configuration"

    @property
    def whole(self) -> bool:
        """Whether all is known that packages are installed by: its Python, where that is, and all it has."""
        return bool(
            self.python
            and self.interpreter
            and self.site_packages
            and self.packages is not None
            and self.complete
        )


@attrs.frozen(kw_only=True)
class Needs:
    """What the steps that run in an image need of it.

    Parameters
    ----------
    gpus
        Vendors of the accelerators that are asked for (``"nvidia"``); empty: none.
    architectures
        Compute capabilities of the devices that they may get, where known: ``"9.0"``.
    driver
        Version of NVIDIA's driver where they run, where known.
    python
        Minor version of Python that they need, where one of them travels by value: ``"3.11"``.
    imports
        Distributions that the steps' code imports: normalized name to the version on this machine.
    launchers
        Packages that start several processes of a step: ``"accelerate"``.
    """

    gpus: frozenset[str] = frozenset()
    architectures: tuple[str, ...] = ()
    driver: str | None = None
    python: str | None = None
    imports: Mapping[str, str] = attrs.field(factory=dict)
    launchers: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that was found out about an image before it is built.

    Parameters
    ----------
    severity
        :data:`ERROR`, :data:`WARNING` or :data:`NOTE`.
    field
        Of the settings, or ``"request"``.
    what
        In a sentence.
    name
        What the user overrules it by; None: nobody can.
    evidence
        What says so: ``"CUDA_VERSION=12.1.1 in its configuration"``.
    fix
        What to do about it.
    source
        Where a fact that is not from the image was read, and when.
    """

    severity: str
    field: str
    what: str
    name: str | None = None
    evidence: str | None = None
    fix: str | None = None
    source: str | None = None


@attrs.frozen(kw_only=True)
class Image:
    """An image that a backend can run.

    Parameters
    ----------
    reference
        What the backend is given: ``registry/name@sha256:…``, or an id that the container engine has.
    recipe
        Digest of its recipe.
    interpreter
        Path of its Python; None: ``python3`` on its PATH.
    user
        The user that the container runs as; None: as the backend has it.
    name
        For people: ``registry/name:tag``.
    """

    reference: str
    recipe: str
    interpreter: str | None = None
    user: str | None = None
    name: str | None = None


@attrs.frozen(kw_only=True)
class Progress:
    """How far the making of an image is.

    Parameters
    ----------
    stage
        ``"resolve"``, ``"install"``, ``"pack"``, ``"build"``, ``"push"``, ``"load"`` or ``"pull"``.
    text
        What happens, in words; of the engine's own builder a line of its output.
    done, total
        Bytes, where they are known.
    """

    stage: str
    text: str
    done: int | None = None
    total: int | None = None


Tell = Callable[[Progress], None]
"""Takes progress, at once, from any thread. What it raises ends the building: nobody wants it any more."""

Announce = Callable[[str], None]
"""Takes a line about something that takes long, before it begins."""
