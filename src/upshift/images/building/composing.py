"""The manifest and configuration of an image that is another one with layers on top. Pure functions."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import ImageError
from upshift.images.base import Parent
from upshift.images.building.layers import Layer

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

# https://github.com/opencontainers/image-spec/blob/main/media-types.md, read on 2026-11-21
_LAYERS = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
_PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIGURATIONS = {
    OCI_MANIFEST: "application/vnd.oci.image.config.v1+json",
    DOCKER_MANIFEST: "application/vnd.docker.container.image.v1+json",
}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where an image sets none
_OF_THE_BUILD = ("container", "container_config", "id", "parent")
_CONFIGURED = (
    *("ArgsEscaped", "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell"),
    *("StopSignal", "User", "Volumes", "WorkingDir"),
)
"""What an image can say of its containers; an engine describes more."""


@attrs.frozen(kw_only=True)
class Additions:
    """What an image has beside its layers and its parent's configuration."""

    # labels, environment: those that are added or replaced
    labels: Mapping[str, str]
    environment: Mapping[str, str] = attrs.field(factory=dict)
    path: str | None = None  # A folder that comes first on `PATH`
    user: str | None = None  # the user that containers run as; None: the parent's


@attrs.frozen(kw_only=True)
class Composed:
    """An image's manifest and configuration, as they are stored, with the configuration's digest."""

    manifest: bytes
    media_type: str
    config: bytes
    config_digest: str


def compose(parent: Parent, layers: Sequence[tuple[Layer, str]], additions: Additions) -> Composed:
    """A parent of a registry with layers on top, the lowest first, each with a word on what is in it.

    Raises ImageError: the parent's manifest is of a form that cannot be built upon.
    """
    media_type = _media_type(parent)
    said = [
        {"mediaType": _LAYERS[media_type], "digest": layer.digest, "size": layer.bytes} for layer, _ in layers
    ]
    config = _configuration(parent.config, layers, additions)
    return _composed(config, [*_layers_of(parent.manifest), *said], media_type)


def compose_in_engine(parent: Parent, layers: Sequence[tuple[Layer, str]], additions: Additions) -> Composed:
    """The same for a parent that an engine has: its layers are named by what they hold, as the engine knows
    them.
    """
    described = parent.config
    ids = [str(one) for one in (described.get("RootFS") or {}).get("Layers") or ()]
    config = {
        "architecture": described["Architecture"],
        "os": described["Os"],
        "config": {
            name: value
            for name, value in (described.get("Config") or {}).items()
            if name in _CONFIGURED and value
        },
        "created": described.get("Created"),
        "rootfs": {"type": "layers", "diff_ids": ids},
        **({"variant": described["Variant"]} if described.get("Variant") else {}),
    }
    below = [{"mediaType": _PLAIN_LAYER, "digest": one, "size": 0} for one in ids]
    said = [{"mediaType": _PLAIN_LAYER, "digest": one.digest, "size": one.bytes} for one, _ in layers]
    return _composed(_configuration(config, layers, additions), [*below, *said], OCI_MANIFEST)


def _composed(config: dict[str, Any], layers: Sequence[Any], media_type: str) -> Composed:
    text = _json(config)
    digest = "sha256:" + hashlib.sha256(text).hexdigest()
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": _CONFIGURATIONS[media_type], "digest": digest, "size": len(text)},
        "layers": list(layers),
    }
    return Composed(manifest=_json(manifest), media_type=media_type, config=text, config_digest=digest)


def _media_type(parent: Parent) -> str:
    manifest = parent.manifest or {}
    said = manifest.get("mediaType") or OCI_MANIFEST  # OCI leaves it to the header
    config = manifest.get("config")
    if not manifest.get("mediaType") and isinstance(config, Mapping):
        of_docker = config.get("mediaType") == _CONFIGURATIONS[DOCKER_MANIFEST]
        said = DOCKER_MANIFEST if of_docker else OCI_MANIFEST
    if said not in _LAYERS or not _layers_of(manifest):
        raise ImageError(
            f"{parent.reference} cannot be built upon",
            why=f"Its manifest is of the form {said}.",
            fix="Take an image in the form of OCI or of Docker's version 2.",
        )
    return str(said)


def _configuration(
    parent: Mapping[str, Any], layers: Sequence[tuple[Layer, str]], additions: Additions
) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(dict(parent))
    container = config["config"] = dict(config.get("config") or {})
    variables = dict(item.partition("=")[::2] for item in container.get("Env") or [])
    variables.update(additions.environment)
    if additions.path is not None:
        variables["PATH"] = f"{additions.path}:{variables.get('PATH') or _PATH}"
    container["Env"] = [f"{name}={value}" for name, value in variables.items()]
    container["Labels"] = {**(container.get("Labels") or {}), **additions.labels}
    if additions.user is not None:
        container["User"] = additions.user
    for obsolete in _OF_THE_BUILD:
        config.pop(obsolete, None)
    # The parent's, so that nothing depends on today.
    created = config["created"] = config.get("created") or "1970-01-01T00:00:00Z"
    root = config["rootfs"] = dict(config.get("rootfs") or {"type": "layers"})
    below = root.get("diff_ids") or []
    root["diff_ids"] = [*below, *(layer.diff_id for layer, _ in layers)]
    if config.get("history") or not below:
        said = [{"created": created, "created_by": f"upshift: {what}"} for _, what in layers]
        config["history"] = [*(config.get("history") or []), *said]
    return config


def _layers_of(manifest: Mapping[str, object] | None) -> list[Any]:
    layers = (manifest or {}).get("layers")
    return list(layers) if isinstance(layers, list) else []


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
