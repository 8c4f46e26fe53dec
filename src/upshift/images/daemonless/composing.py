"""The manifest and configuration of an image that is another one with layers on top. Pure functions."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import ImageError
from upshift.images.base import RECIPE_LABEL, Parent
from upshift.images.daemonless.layers import Layer

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

# https://github.com/opencontainers/image-spec/blob/main/media-types.md, read on 2026-11-21
_LAYERS = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
_CONFIGURATIONS = {
    OCI_MANIFEST: "application/vnd.oci.image.config.v1+json",
    DOCKER_MANIFEST: "application/vnd.docker.container.image.v1+json",
}
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # what engines take where it is not set
)


@attrs.frozen(kw_only=True)
class Composed:
    """An image, as its registry stores it.

    Parameters
    ----------
    manifest, media_type
        The manifest as it is uploaded.
    config, config_digest
        The configuration likewise.
    """

    manifest: bytes
    media_type: str
    config: bytes
    config_digest: str


def compose(
    parent: Parent,
    layers: Sequence[tuple[Layer, str]],
    *,
    recipe: str,
    environment: Mapping[str, str],
    path: str | None,
    user: str | None,
) -> Composed:
    """The parent with layers on top.

    Parameters
    ----------
    parent
        As its registry has it.
    layers
        The new ones, the lowest first, each with a word on what is in it.
    recipe
        Digest of the recipe, for the label.
    environment
        Variables that are added or replaced.
    path
        A folder that comes first on ``PATH``.
    user
        The user that containers run as; None: the parent's.

    Raises
    ------
    ImageError
        The parent's manifest or configuration is of a form that cannot be built upon.
    """
    media_type = _media_type(parent)
    config = _config(parent, layers, recipe=recipe, environment=environment, path=path, user=user)
    text = _json(config)
    digest = "sha256:" + hashlib.sha256(text).hexdigest()
    below = parent.manifest
    assert below is not None
    added = [
        {"mediaType": _LAYERS[media_type], "digest": layer.digest, "size": layer.bytes} for layer, _ in layers
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": _CONFIGURATIONS[media_type], "digest": digest, "size": len(text)},
        "layers": [*_layers_of(below), *added],
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
            f"{parent.reference} cannot be built upon without a container engine",
            why=f"Its manifest is of the form {said}.",
            fix='Build with a container engine: builder = "engine".',
        )
    return str(said)


def _config(
    parent: Parent,
    layers: Sequence[tuple[Layer, str]],
    *,
    recipe: str,
    environment: Mapping[str, str],
    path: str | None,
    user: str | None,
) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(dict(parent.config))
    container = config["config"] = dict(config.get("config") or {})
    variables = dict(item.partition("=")[::2] for item in container.get("Env") or [])
    variables.update(environment)
    if path is not None:
        variables["PATH"] = f"{path}:{variables.get('PATH') or _PATH}"
    container["Env"] = [f"{name}={value}" for name, value in variables.items()]
    container["Labels"] = {**(container.get("Labels") or {}), RECIPE_LABEL: recipe}
    if user is not None:
        container["User"] = user
    for obsolete in ("container", "container_config", "id", "parent"):  # of the build of the parent
        config.pop(obsolete, None)
    created = (
        config.get("created") or "1970-01-01T00:00:00Z"
    )  # the parent's, so that nothing depends on today
    root = config["rootfs"] = dict(config.get("rootfs") or {"type": "layers"})
    root["diff_ids"] = [*(root.get("diff_ids") or []), *(layer.diff_id for layer, _ in layers)]
    said = [{"created": created, "created_by": f"upshift: {what}"} for _, what in layers]
    if config.get("history") or not parent.layers:
        config["history"] = [*(config.get("history") or []), *said]
    return config


def _layers_of(manifest: Mapping[str, object]) -> list[Any]:
    layers = manifest.get("layers")
    return list(layers) if isinstance(layers, list) else []


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
