"""What registries answer: documents of images, Docker's and OCI's, and what went wrong, as errors for people.

https://github.com/opencontainers/image-spec/blob/main/manifest.md, version 1.1, read in November 2026
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from upshift.errors import ImageError
from upshift.images.base import DOCKER_HUB, Parent, Reference, is_digest, platform_name, shortened
from upshift.images.registries.credentials import VARIABLE
from upshift.images.registries.session import LoginNeeded, said
from upshift.images.registries.transport import NoAnswer, RegistryAnswer, host_of

INDEXES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
"""Media types of what lists one image for each platform."""

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIGURATIONS = {
    OCI_MANIFEST: "application/vnd.oci.image.config.v1+json",
    DOCKER_MANIFEST: "application/vnd.docker.container.image.v1+json",
}
"""Media types of images, and those of their configurations."""

ACCEPT = {"Accept": ", ".join(sorted({*CONFIGURATIONS, *INDEXES}))}
"""The header that asks for these."""

_ANOTHER = "Name another image."

_ECR = re.compile(r"[0-9]+\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_ARTIFACTS = re.compile(r"([a-z0-9-]+\.)*gcr\.io|[a-z0-9-]+-docker\.pkg\.dev")
_AZURE = re.compile(r"([a-z0-9]+)\.azurecr\.(io|cn|us)")


def document_of(what: str, reference: Reference, content: bytes) -> dict[str, Any]:
    """What the text of a document says."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ImageError(
            what,
            why=f"{reference.registry} answers with something else than a document of a registry",
            fix="Check the name of the registry.",
        )
    return document


def is_index(manifest: Mapping[str, Any]) -> bool:
    """Whether a document lists images, and is none itself."""
    return "manifests" in manifest or str(manifest.get("mediaType")) in INDEXES


def chosen(reference: Reference, index: Mapping[str, Any], platform: str) -> str:
    """The digest of the manifest for a platform, out of a list."""
    there = dict[str, str]()
    listed = index.get("manifests")
    for entry in listed if isinstance(listed, list) else []:
        described = entry.get("platform") if isinstance(entry, dict) else None
        # Of an unknown system are notes about images: who built them, and how.
        if isinstance(described, dict) and described.get("os") != "unknown":
            there.setdefault(_platform(described), str(entry.get("digest")))
    if is_digest(there.get(platform)):
        return there[platform]
    raise _not_for(reference, platform, list(there))


def configuration_of(reference: Reference, manifest: Mapping[str, Any]) -> str:
    """The digest of the configuration of an image."""
    described = manifest.get("config")
    kind = described.get("mediaType") if isinstance(described, dict) else manifest.get("mediaType")
    if isinstance(described, dict) and str(kind) in CONFIGURATIONS.values():
        return str(described.get("digest"))
    why = f"what is there is {kind or 'something else'}"
    if manifest.get("schemaVersion") == 1:
        why = "its manifest has the form of before 2016"
    raise ImageError(f"{reference} is not a container image", why=why, fix=_ANOTHER)


def layers_of(manifest: Mapping[str, Any] | None) -> list[Any]:
    layers = (manifest or {}).get("layers")
    return list(layers) if isinstance(layers, list) else []


def parent_of(
    reference: Reference, digest: str, platform: str, manifest: dict[str, Any], config: dict[str, Any]
) -> Parent:
    """What a manifest and a configuration say of an image."""
    own = _platform(config)
    if own != platform:
        raise _not_for(reference, platform, [own])
    try:
        return _read(reference, digest, platform, manifest, config)
    except (AttributeError, KeyError, TypeError, ValueError):
        why = "its manifest or configuration is malformed"
        raise ImageError(f"{reference} is not a container image", why=why, fix=_ANOTHER) from None


def damaged(what: str, reference: Reference) -> ImageError:
    return ImageError(
        what,
        why=f"the content from {reference.registry} does not match its digest",
        fix="Ask who runs the registry; something on the way to it may change what it sends.",
    )


def refuse_other(what: str, reference: Reference, content: bytes, digest: str) -> None:
    """Raise :func:`damaged` for content that is not what a digest says, and for what is not a digest."""
    algorithm, _, stated = digest.partition(":")
    if not is_digest(digest) or hashlib.new(algorithm, content).hexdigest() != stated:
        raise damaged(what, reference)


def hasher_of(what: str, digest: str) -> Any:
    """What computes a digest of this kind."""
    if not is_digest(digest):
        raise ImageError(what, why=f"{digest[:80]!r} is not a digest", fix="Ask who made the image.")
    return hashlib.new(digest.partition(":")[0])


def _read(
    reference: Reference, digest: str, platform: str, manifest: dict[str, Any], config: dict[str, Any]
) -> Parent:
    settings = config.get("config") or {}
    layers = manifest.get("layers") or []
    if not all(is_digest(layer["digest"]) for layer in layers):
        raise ValueError
    return Parent(
        reference=reference,
        digest=digest,
        platform=platform,
        environment=dict(entry.partition("=")[::2] for entry in _texts(settings.get("Env"))),
        labels={_text(name): _text(value) for name, value in (settings.get("Labels") or {}).items()},
        user=_text(settings.get("User") or "") or None,
        layers=tuple(layer["digest"] for layer in layers),
        bytes=sum(int(layer.get("size") or 0) for layer in layers),
        config=config,
        manifest=manifest,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, type(None))):
        raise TypeError
    return tuple(map(_text, value or ()))


def _platform(described: Mapping[str, Any]) -> str:
    system, architecture = described.get("os") or "linux", described.get("architecture") or "unknown"
    return platform_name(system, architecture, described.get("variant"))


def _not_for(reference: Reference, platform: str, there: list[str]) -> ImageError:
    return ImageError(
        f"{reference} is not for {platform}",
        why=f"it is for {', '.join(there) or 'nothing that is known'}",
        fix="Name an image for this platform, or set platform in DockerSettings to one of those.",
    )


class Unavailable(ImageError):
    """A registry gives no answer, or is in trouble: in a while it may say what it said before."""


class LoginRefused(ImageError):
    """A registry wants another login, or one at all."""


@contextlib.contextmanager
def told(what: str, reference: Reference) -> Iterator[None]:
    """Turn what happens inside into an :class:`~upshift.errors.ImageError`."""
    try:
        yield
    except NoAnswer as error:
        raise Unavailable(what, why=error.why, fix=error.fix) from None
    except LoginNeeded as error:
        raise _refused(what, reference, error) from None


def unexpected(what: str, reference: Reference, answer: RegistryAnswer) -> ImageError:
    """The error for an answer that is neither what was asked for nor a refusal."""
    status, detail = answer.status, said(answer.body)
    why = f"{host_of(answer.url)} answers {status}"
    if status == 429:
        why = f"{reference.registry} lets nobody ask so often"
        fix = f"Try again later, or log in: {login_command(reference.registry)}"
    elif status == 413:
        fix = "Ask who runs the registry: something in front of it limits the size of a request."
    elif status >= 500:
        fix = "Try again later; see its log."
    elif answer.headers.get("Content-Type", "").startswith("text/html"):
        why += " with a web page: it may be no image registry"
        fix = "Check the name of the registry."
    else:
        fix = "Ask its administrator, who can read its log."
    why += f" ({detail})" if detail else ""
    why += f", {answer.tries} times" if answer.tries > 1 else ""
    kind = Unavailable if status >= 500 or status == 429 else ImageError
    return kind(what, why=why, fix=fix)


def missing(reference: Reference, version: str, there: Sequence[str]) -> ImageError:
    """The error for an image that is not there, with what may have been meant."""
    what = f"there is no image {reference.brief}"
    if not there:
        why = f"{reference.registry} has no repository {reference.repository}, or does not show it"
        return ImageError(what, why=why, fix="Check the name; to read a private one, log in.")
    why = f"{reference.name} is there, and has {shortened(version)} not among its {len(there):,} tags"
    close = get_close_matches(version, there, n=5, cutoff=0.4)
    fix = f"Nearest: {', '.join(close)}." if close else f"There is, for example, {there[-1]}."
    return ImageError(what, why=why, fix=fix)


def keeps_everything(what: str, reference: Reference) -> ImageError:
    """The error for a registry that lets nothing be removed."""
    return ImageError(
        what,
        why=f"{reference.registry} is set up to remove nothing",
        fix="Whoever runs it can allow it; for Docker's own: REGISTRY_STORAGE_DELETE_ENABLED=true.",
    )


def login_command(registry: str) -> str:
    """How a person logs in to a registry, on a command line."""
    if registry == DOCKER_HUB:
        return "docker login"
    if ecr := _ECR.fullmatch(registry):
        password = f"aws ecr get-login-password --region {ecr[1]}"
        return f"{password} | docker login --username AWS --password-stdin {registry}"
    if _ARTIFACTS.fullmatch(registry):
        return f"gcloud auth configure-docker {registry}"
    if azure := _AZURE.fullmatch(registry):
        return f"az acr login --name {azure[1]}"
    return f"docker login {registry} (or podman login {registry})"


def _refused(what: str, reference: Reference, error: LoginNeeded) -> LoginRefused:
    registry, login = reference.registry, error.found.login
    if login is None:
        looked = ", ".join(error.found.looked)
        why = f"{registry} wants a login, and there is none for it in {looked}"
        if not looked:
            why = f"{registry} wants a login, and none is configured on this machine"
        if registry == DOCKER_HUB:
            why += "; it says the same of images that do not exist"
        fix = f"Log in: {login_command(registry)}"
    else:
        name = f"{login.username!r} from " if login.username else ""
        anew = f"log in again: {login_command(registry)}"
        if login.source == VARIABLE:
            anew = f"put another one into {VARIABLE}"  # which goes before what a command would write
        if error.forbidden:
            why = f"{registry} does not allow it to the login {name}{login.source}"
            fix = f"Check the name, ask for the permission, or {anew}"
        else:
            why = f"{registry} does not take the login {name}{login.source}"
            fix = anew[0].upper() + anew[1:]
    why += f" ({error.detail})" if error.detail else ""
    return LoginRefused(what, why="; ".join((why, *error.found.problems)), fix=fix)
