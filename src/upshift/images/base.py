"""The forms of this room: what an image is made from, what is known of it, what was found and built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.reference import Reference

RECIPE_LABEL = "dev.upshift.recipe"
"""Label of every image that Upshift builds: the digest of its recipe."""

HOME_LABEL, PROJECT_LABEL = "dev.upshift.home", "dev.upshift.project"
"""Labels of images that a container engine builds, which no recipe knows: a digest of the ``UPSHIFT_HOME``
that had it built first, and the name of the project's folder."""

ERROR, WARNING, NOTE = "error", "warning", "note"
"""Severities of a finding. Of the first kind, nothing is built and nothing runs."""


@attrs.frozen(kw_only=True)
class Recipe:
    """Everything that decides what is in an image; plain data, the same on every machine.

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
        What that Dockerfile copies: path in the context, with slashes, to what is there, in the words
        of :class:`upshift.images.recipes.context.Context`.
    build_args
        Arguments of that Dockerfile.
    apt_packages
        Debian packages.
    requirements
        Lines as of a requirements file (PEP 508, and options such as ``--extra-index-url``), files
        read and flattened; nothing of Upshift's own.
    files
        Files of this machine that requirements name (wheels, constraints): the name there, which is
        relative to the file with the requirements, to a digest.
    installer
        ``"uv"`` or ``"pip"``.
    installer_args
        Further arguments of the installer, as given on its command line.
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

    def digest(self, parent: str | None) -> str:
        """What an image made from this is known by: ``sha256:…``.

        Parameters
        ----------
        parent
            Digest of the parent for the platform; None where only the Dockerfile knows it.
        """
        text = json.dumps([attrs.asdict(self), parent], sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


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
    rebuild
        Whether to build even where an equal image exists.
    origins
        Which level said what, by field of the settings: ``"step"`` or ``"pipeline"``.
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
    origins: Mapping[str, str] = attrs.field(factory=dict)
    base: str | None = None
    project: str = ""


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
    environment, labels
        Of its configuration.
    user, entrypoint, working_dir
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
    config: Mapping[str, object] = attrs.field(factory=dict)
    manifest: Mapping[str, object] | None = None
    in_engine: bool = False


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
    externally_managed
        Whether installers have to be told to touch it (PEP 668).
    cuda
        Version of CUDA: ``"12.1"``; empty: there is none.
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
    glibc
        Version of the C library; empty where it is musl.
    source
        Where this is from, in words for evidence: ``its configuration``, ``the table of known images``.
    """

    python: str | None = None
    interpreter: str | None = None
    site_packages: str | None = None
    externally_managed: bool | None = None
    cuda: str | None = None
    stacks: Mapping[str, str] = attrs.field(factory=dict)
    packages: Mapping[str, str] | None = None
    complete: bool = True
    lacks: frozenset[str] = frozenset()
    glibc: str | None = None
    source: str = "its configuration"


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
class Destination:
    """Where a backend takes its images from.

    Parameters
    ----------
    platform
        What its machines run: ``linux/amd64``.
    engine
        The container engine on this machine that runs the tasks; None: they run elsewhere, and take
        images from the registry.
    registry
        Registry and prefix, as the target has it: ``registry.example.org/ml``.
    builder
        ``"engine"`` or ``"daemonless"``, where the target says so; None: the engine if there is one.
    driver
        Version of NVIDIA's driver there, where it is known.
    parent
        The image to build on for steps that name none, where the target says so; None: the official slim
        Python.
    """

    platform: str
    engine: ContainerEngine | None = None
    registry: str | None = None
    builder: str | None = None
    driver: str | None = None
    parent: str | None = None


@attrs.frozen(kw_only=True)
class Progress:
    """How far the making of an image is.

    Parameters
    ----------
    stage
        ``"resolve"``, ``"install"``, ``"pack"``, ``"build"``, ``"push"`` or ``"pull"``.
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


class Builder(Protocol):
    """Makes images. Two of them give images with the same contents for the same recipe."""

    def problems(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents
    ) -> Sequence[Finding]:
        """What this builder cannot do of it."""

    def find(self, ingredients: Ingredients, parent: Parent | None, contents: Contents) -> Image | None:
        """An image that was made from an equal recipe, if there is one. Takes milliseconds.

        Raises
        ------
        ImageError
            Where it would be cannot be asked.
        """

    def build(
        self, ingredients: Ingredients, parent: Parent | None, contents: Contents, *, tell: Tell
    ) -> Image:
        """Make it, and put it where the destination takes it from. Half an image never gets a name.

        Raises
        ------
        ImageError
            It cannot be made; the reason in the words of whatever said so.
        """
