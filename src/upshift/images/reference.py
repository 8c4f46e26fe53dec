"""Names of images, as Docker writes them: ``python:3.11-slim``, ``registry.example.org/ml/base:1``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from upshift.errors import ImageError
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
