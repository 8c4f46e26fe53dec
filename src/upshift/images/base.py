"""The records of this package: what an image is called (:class:`Reference`, ``python:3.11-slim``), what it is
made from, what is known of it, what was found and built.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import ImageError, UpshiftError
from upshift.model.settings import docker_fields as names

DOCKER_HUB = "docker.io"
"""The registry of names that begin with none."""

DEFAULT_REPOSITORY = "upshift"
"""Where images go whose settings name no ``target_repository``."""

TAG_PREFIX = "upshift-"
"""Of the tags that Upshift finds its images by."""

HUB_ALIASES = ("index.docker.io", "registry-1.docker.io")
_LIBRARY = "library/"  # where Docker Hub keeps the official images

_REGISTRY = re.compile(names.REGISTRY)
_REPOSITORY = re.compile(names.REPOSITORY)
_TAG = re.compile(names.TAG)
_DIGEST = re.compile(names.DIGEST)
_FIGURES = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_ID = re.compile(names.ID)
_LONGEST = 255


@attrs.frozen(kw_only=True)
class Reference:
    """The full name of an image; a digest names one image for ever, a tag may move."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a name as Docker does: without a registry it is Docker Hub's, without a tag ``latest``."""
        if "://" in text:
            raise _wrong(text, "it begins with a scheme", f"write it without: {text.split('://', 1)[1]!r}")
        if _ID.fullmatch(text):
            raise _wrong(text, "this is the id of an image in an engine", "give the image a name: docker tag")
        rest, at, digest = text.partition("@")
        if at and not _DIGEST.fullmatch(digest):
            raise _wrong(
                text, f"{digest!r} is not a digest", "a digest is sha256: and 64 characters of 0-9a-f"
            )
        first, slash, after = rest.partition("/")
        registry, path = DOCKER_HUB, rest
        if slash and (_begins_with_registry(rest) or first != first.lower()):
            registry, path = first, after
            if not _REGISTRY.fullmatch(registry):
                raise _wrong(text, f"{registry!r} is not a registry", "a registry is HOST or HOST:PORT")
            registry = DOCKER_HUB if registry.lower() in HUB_ALIASES else registry.lower()
        repository, colon, tag = path.partition(":")
        if colon and not _TAG.fullmatch(tag):
            why = f"{tag!r} is not a tag" if tag else "nothing follows the colon"
            raise _wrong(text, why, "a tag is up to 128 letters, digits, '_', '.' and '-'")
        if not _REPOSITORY.fullmatch(repository):
            raise _wrong(text, *_why_not(repository))
        if registry == DOCKER_HUB and "/" not in repository:
            repository = _LIBRARY + repository
        if len(registry) + 1 + len(repository) > _LONGEST:
            raise _wrong(text, f"it is longer than {_LONGEST} characters", "choose a shorter one")
        return cls(
            registry=registry,
            repository=repository,
            tag=tag or (None if digest else "latest"),
            digest=digest or None,
        )

    @property
    def name(self) -> str:
        """Registry and repository, in full."""
        return f"{self.registry}/{self.repository}"

    @property
    def full(self) -> str:
        """With the registry, which engines other than Docker's may ask for."""
        return self.name + self._which

    @property
    def version(self) -> str:
        """What a registry is asked for: the digest, or else the tag."""
        return self.digest or self.tag or "latest"

    def with_tag(self, tag: str) -> Reference:
        """The image of this tag in the same repository; raises ImageError where it is not a tag."""
        if not _TAG.fullmatch(tag):
            text = f"{self.name}:{tag}"
            raise _wrong(
                text, f"{tag!r} is not a tag", "a tag is up to 128 letters, digits, '_', '.' and '-'"
            )
        return attrs.evolve(self, tag=tag, digest=None)

    def with_digest(self, digest: str) -> Reference:
        """The image of this digest in the same repository; the tag, which may move, is dropped."""
        return attrs.evolve(self, tag=None, digest=digest)

    @property
    def _which(self) -> str:
        return (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def brief(self) -> str:
        """For messages: with a short digest."""
        return shortened(str(self))

    def __str__(self) -> str:
        """As people write it: without Docker Hub's own prefixes."""
        if self.registry != DOCKER_HUB:
            return self.full
        return self.repository.removeprefix(_LIBRARY) + self._which


def shortened(text: str) -> str:
    """A text with its digests cut short."""
    return _FIGURES.sub(r"\1…", text)


def is_digest(text: object) -> bool:
    """Whether this is the digest of something in a registry: ``sha256:`` and 64 hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def digest_of(content: bytes) -> str:
    """The digest of some content, as registries write it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def digest_of_data(said: object) -> str:
    """The digest of plain data, the same on every machine."""
    return digest_of(json.dumps(said, sort_keys=True, separators=(",", ":")).encode())


def whole_id(described: Mapping[str, Any]) -> str:
    """The id of an image that an engine describes; Podman leaves out what kind of digest it is."""
    identity = str(described["Id"])
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def layers_in(described: Mapping[str, Any]) -> list[str]:
    """The layers of an image that an engine describes, by what they hold, lowest first."""
    return [str(one) for one in (described.get("RootFS") or {}).get("Layers") or ()]


def platform_name(system: str, architecture: str, variant: str | None) -> str:
    """``linux/amd64``; a variant that is its architecture's usual one is left out, as Docker does."""
    if variant and (architecture, variant) not in (("arm64", "v8"), ("amd64", "v1")):
        return f"{system}/{architecture}/{variant}"
    return f"{system}/{architecture}"


def tag_of(recipe: str) -> str:
    """The tag by which an image with this digest of its recipe is found again."""
    return TAG_PREFIX + recipe.partition(":")[2]


def repository_in(registry: str | None, named: str | None) -> Reference:
    """The repository that an image goes to: ``named`` below the target's registry, unless it names one
    itself.
    """
    named = named or DEFAULT_REPOSITORY
    if _begins_with_registry(named):
        return Reference.parse(named)
    if registry is None:
        raise ImageError(
            "there is no registry to put the image into",
            why="The target names none, and target_repository does not begin with one.",
            fix='Give the target one: registry = "registry.example.org/ml".',
        )
    return Reference.parse(f"{registry.rstrip('/')}/{named}")


def _begins_with_registry(text: str) -> bool:
    first, slash, _ = text.partition("/")
    return bool(slash) and (any(mark in first for mark in ".:") or first == "localhost")


def _why_not(repository: str) -> tuple[str, str]:
    if not repository:
        return "nothing names the repository", "write REGISTRY/NAME:TAG, or NAME:TAG for Docker Hub"
    if any(character.isspace() for character in repository):
        return "it has white space in it", "write it without"
    if _REPOSITORY.fullmatch(repository.lower()):
        return "the name has upper case letters", f"write {repository.lower()!r}"
    allowed = "parts between slashes are a-z, 0-9, and single '.', '_', '__' or '-' between these"
    return f"{repository!r} is not a valid repository name", allowed


def _wrong(text: str, why: str, fix: str) -> ImageError:
    return ImageError(f"{text!r} is not a valid image name", why=why, fix=fix)


RECIPE_LABEL = "dev.upshift.recipe"
"""Label of every image that Upshift builds: the digest of its recipe."""

LOCK_LABEL = "dev.upshift.lock"
"""Label with what the requirements of the recipe were resolved to: a requirements file with hashes."""

HOME_LABEL, PROJECT_LABEL = "dev.upshift.home", "dev.upshift.project"
"""Labels of images in a container engine: a digest of the ``UPSHIFT_HOME`` that built it, and the project's
name.
"""

LEAST_PYTHON = "3.10"
"""The oldest Python that steps can run with."""

ERROR, WARNING, NOTE = SEVERITIES = ("error", "warning", "note")
"""Severities of a finding. With one of the first, nothing is built and nothing runs."""


@attrs.frozen(kw_only=True)
class Recipe:
    """Everything that a user asks for in an image; plain data, the same on every machine."""

    # The image to build on, as the user named it, or the default. With `dockerfile`: None where the user
    # named none, since the Dockerfile says it
    parent: str | None
    platform: str  # `linux/amd64`
    # The text of the user's Dockerfile, which makes the parent of all that follows
    dockerfile: str | None = None
    # What that Dockerfile copies: path in the context to what is there, as `.recipes.context` says it
    context: Mapping[str, str] = attrs.field(factory=dict)
    build_args: Mapping[str, str] = attrs.field(factory=dict)  # arguments of that Dockerfile
    apt_packages: tuple[str, ...] = ()  # Debian packages
    # Lines of a requirements file, files read and flattened; nothing of Upshift's own
    requirements: tuple[str, ...] = ()
    # Files of this machine that requirements name (wheels, constraints): the name there to a digest
    files: Mapping[str, str] = attrs.field(factory=dict)
    installer: str = "uv"  # `"uv"` or `"pip"`: by whose rules packages are chosen. uv installs either way
    installer_args: tuple[str, ...] = ()  # further options of the installer, as given on its command line
    # Environment variables while building, and later
    environment: Mapping[str, str] = attrs.field(factory=dict)
    user: str | None = None  # the user that the container runs as
    skip_build: bool = False  # the parent is used as it is

    @property
    def adds_nothing(self) -> bool:
        """Whether the parent is used as it is."""
        return self.skip_build or not (
            self.dockerfile or self.apt_packages or self.requirements or self.environment or self.user
        )

    @property
    def needs_engine(self) -> bool:
        """Whether a container engine has to make part of it: what a Dockerfile says, and Debian packages."""
        return not self.skip_build and (self.dockerfile is not None or bool(self.apt_packages))

    def digest(self, parent: str | None) -> str:
        """The digest by which an image of this recipe on this parent is found: ``sha256:…``.

        The parent is None where only the Dockerfile names it.
        """
        return digest_of_data([attrs.asdict(self), parent])

    def identity(self, parent: str | None, lock: Lock | None) -> str:
        """The digest of what is in an image: the parent, the locked packages, and the rest of the recipe."""
        if lock is None:
            return self.digest(parent)
        asked = attrs.asdict(self)
        for name in ("requirements", "files", "installer", "installer_args"):
            del asked[name]  # the lock counts instead
        return digest_of_data([asked, parent, lock.text])


@attrs.frozen(kw_only=True)
class LockedPackage:
    # name, version: normalized name, and version with its local part: `2.4.1+cu124`
    name: str
    version: str
    # Where it is from, if not from an index: `git+https://…@COMMIT`, `https://…`, `./tiny-1.0….whl`
    source: str | None = None
    hashes: tuple[str, ...] = ()  # of the files that may be installed: `sha256:…`
    wheel: bool = True  # whether that is a wheel; else it is sources, which may have to be compiled

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
    def parse(cls, line: str) -> LockedPackage:
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
    """The packages that requirements were resolved to: exactly what is installed on top of one parent."""

    packages: tuple[LockedPackage, ...] = ()

    @property
    def text(self) -> str:
        """As a requirements file with hashes, which installers read."""
        return "".join(f"{package.line}\n" for package in self.packages)

    @property
    def versions(self) -> dict[str, str]:
        return {package.name: package.version for package in self.packages}

    @classmethod
    def parse(cls, text: str) -> Lock:
        """The inverse of :attr:`text`; raises ValueError where it is none."""
        return cls(packages=tuple(LockedPackage.parse(line) for line in text.splitlines() if line.strip()))


@attrs.frozen(kw_only=True)
class Ingredients:
    """A recipe, with where its parts are on this machine and what the user should know about them."""

    recipe: Recipe
    context_root: Path | None = None  # the folder that the Dockerfile copies from
    dockerfile: Path | None = None  # where the Dockerfile is
    # Where the files of the recipe are, by the same names
    paths: Mapping[str, Path] = attrs.field(factory=dict)
    # Lines for the user: `upshift==0.3 in requirements: this very Upshift is used`
    notes: tuple[str, ...] = ()
    # repository, tag: what the user wants the image to be called
    repository: str | None = None
    tag: str | None = None
    # rebuild, update: whether to build even where an equal image exists, and whether to resolve requirements
    # again
    rebuild: bool = False
    update: bool = False
    accept: tuple[str, ...] = ()  # names of findings that the user overrules
    origins: Mapping[str, str] = attrs.field(factory=dict)  # which level said what, by field of the settings
    base: str | None = None  # what the user's Dockerfile builds on; None: there is none, or it cannot be told
    project: str = ""  # name of the project's folder: who the image is of. The recipe does not know it

    @property
    def is_the_parent(self) -> bool:
        """Whether the parent is used as it is, under its own name."""
        named = self.repository is not None or self.tag is not None
        return self.recipe.skip_build or (self.recipe.adds_nothing and not named)


@attrs.frozen(kw_only=True)
class Parent:
    """The manifest and configuration of an image, as a registry or an engine gives them for one platform."""

    reference: Reference  # how it is called
    # In a registry of the manifest for the platform; of an engine that has it from none, the image's id
    digest: str
    platform: str  # `linux/amd64`
    # environment, labels, user: of its configuration
    environment: Mapping[str, str] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)
    user: str | None = None
    # Digests of its layers as they are stored, lowest first; empty where an engine says it
    layers: tuple[str, ...] = ()
    bytes: int | None = None  # size of the layers as they are stored
    config: Mapping[str, Any] = attrs.field(factory=dict)  # the configuration as it was read
    manifest: Mapping[str, Any] | None = None  # the manifest as it was read; None where an engine says it
    in_engine: bool = False  # whether the container engine has it already

    @property
    def id(self) -> str:
        """Its id in the engine that has it."""
        return whole_id(self.config)

    @property
    def pinned(self) -> str:
        """A name that cannot move: by digest, or the id where only an engine has it."""
        return self.id if self.in_engine else self.reference.with_digest(self.digest).full


@attrs.frozen(kw_only=True)
class Contents:
    """What is in an image, as far as it is known; None where it is not."""

    # Full or minor version of the Python that steps run with: `"3.11.7"`; empty: there is none
    python: str | None = None
    interpreter: str | None = None  # its path in the image
    site_packages: str | None = None  # where its packages are
    cuda: str | None = None  # version of CUDA: `"12.1"`; empty: there is none
    # Whether it has NVIDIA's libraries for drivers that are older than its CUDA (`cuda-compat`)
    compat: bool | None = None
    # What computes on devices of other vendors: vendor (`"amd"`) to the version of its software (of ROCm:
    # `"6.2.4"`); empty: there is none. A vendor that is missing: not known
    stacks: Mapping[str, str] = attrs.field(factory=dict)
    # Python packages: normalized name to version, local parts included (`2.1.0+cu121`). None: not known,
    # which is not the same as none
    packages: Mapping[str, str] | None = None
    complete: bool = True  # whether there are no packages but these
    # Packages that are known not to be there, where `packages` are not all there are
    lacks: frozenset[str] = frozenset()
    users: frozenset[str] | None = None  # names of the users that it has
    glibc: str | None = None  # version of the C library; empty where it is musl
    # Where this is from, in words for evidence: `its configuration`, `the table of known images`
    source: str = "its configuration"

    @property
    def whole(self) -> bool:
        """Whether all is known that resolving packages needs: its Python, the paths, and all packages."""
        return bool(
            self.python
            and self.interpreter
            and self.site_packages
            and self.packages is not None
            and self.complete
        )


@attrs.frozen(kw_only=True)
class Needs:
    # Vendors of the accelerators that are asked for (`"nvidia"`); empty: none
    gpus: frozenset[str] = frozenset()
    # Compute capabilities of the devices that they may get, where known: `"9.0"`
    architectures: tuple[str, ...] = ()
    driver: str | None = None  # version of NVIDIA's driver where they run, where known
    # Minor version of Python that they need, where one of them travels by value: `"3.11"`
    python: str | None = None
    # Distributions that the steps' code imports: normalized name to the version on this machine
    imports: Mapping[str, str] = attrs.field(factory=dict)
    # Packages that start several processes of a step: `"accelerate"`
    launchers: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class Finding:
    """One result of the checks of an image."""

    severity: str  # ERROR, WARNING or NOTE
    field: str  # of the settings, or `"request"`
    what: str  # in a sentence
    name: str | None = None  # what the user overrules it by; None: nobody can
    evidence: str | None = None  # what says so: `"CUDA_VERSION=12.1.1 in its configuration"`
    fix: str | None = None  # what to do about it
    source: str | None = None  # where a fact that is not from the image was read, and when

    @classmethod
    def of(cls, error: UpshiftError, field: str) -> Finding:
        """An error as a finding, with which nothing is built."""
        return cls(severity=ERROR, field=field, what=error.what, evidence=error.why, fix=error.fix)


@attrs.frozen(kw_only=True)
class Image:
    """An image that a backend can run."""

    # What the backend is given: `registry/name@sha256:…`, or an id that the container engine has; empty: it
    # is an environment on the nodes, which only has an interpreter
    reference: str
    recipe: str  # digest of its recipe
    interpreter: str | None = None  # path of its Python; None: `python3` on its PATH
    user: str | None = None  # the user that the container runs as; None: as the backend has it
    name: str | None = None  # for people: `registry/name:tag`


@attrs.frozen(kw_only=True)
class Progress:
    stage: str  # `"resolve"`, `"install"`, `"pack"`, `"build"`, `"push"`, `"load"` or `"pull"`
    text: str  # what happens, in words; of the engine's own builder a line of its output
    # done, total: bytes, where they are known
    done: int | None = None
    total: int | None = None


Tell = Callable[[Progress], None]
"""Takes progress, from any thread. An exception in it ends the build."""

Announce = Callable[[str], None]
"""Takes a line about something that takes long, before it begins."""
