"""An image composed of a parent and layers (:func:`compose`), and its delivery: to a repository of a registry
(:class:`ToRegistry`), or to a container engine (:class:`ToEngine`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import ImageError
from upshift.images.base import RECIPE_LABEL, Parent, Progress, Reference, Tell, digest_of, layers_in
from upshift.images.building.packing import Layer
from upshift.images.containers.engine import ContainerEngine
from upshift.images.containers.transfer import Composed, ImageToLoad, load
from upshift.images.parents.traces import PATH
from upshift.images.registries.answers import CONFIGURATIONS, DOCKER_MANIFEST, OCI_MANIFEST, layers_of
from upshift.model.settings.sizes import format_size

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries

# https://github.com/opencontainers/image-spec/blob/main/media-types.md, read on 2026-11-21
_LAYERS = {
    OCI_MANIFEST: "application/vnd.oci.image.layer.v1.tar+gzip",
    DOCKER_MANIFEST: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
_PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"
_OF_THE_BUILD = ("container", "container_config", "id", "parent")
_CONFIGURED = (
    *("ArgsEscaped", "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell"),
    *("StopSignal", "User", "Volumes", "WorkingDir"),
)
"""What an image can say of its containers; an engine describes more."""

_AT_ONCE = 4


@attrs.frozen(kw_only=True)
class Additions:
    """What is added to the parent's configuration."""

    # labels, environment: those that are added or replaced
    labels: Mapping[str, str]
    environment: Mapping[str, str] = attrs.field(factory=dict)
    path: str | None = None  # a folder that comes first on `PATH`
    user: str | None = None  # the user that containers run as; None: the parent's


def compose(parent: Parent, layers: Sequence[tuple[Layer, str]], additions: Additions) -> Composed:
    """A parent of a registry with layers on top, the lowest first, each with a word on what is in it."""
    media_type = _media_type(parent)
    said = [
        {"mediaType": _LAYERS[media_type], "digest": layer.digest, "size": layer.bytes} for layer, _ in layers
    ]
    config = _configuration(parent.config, layers, additions)
    return _composed(config, [*layers_of(parent.manifest), *said], media_type)


def compose_in_engine(parent: Parent, layers: Sequence[tuple[Layer, str]], additions: Additions) -> Composed:
    """The same for a parent that an engine has: its layers are named by what they hold, as the engine knows
    them.
    """
    described = parent.config
    ids = layers_in(described)
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
    digest = digest_of(text)
    manifest = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": CONFIGURATIONS[media_type], "digest": digest, "size": len(text)},
        "layers": list(layers),
    }
    return Composed(manifest=_json(manifest), media_type=media_type, config=text, config_digest=digest)


def _media_type(parent: Parent) -> str:
    manifest = parent.manifest or {}
    said = manifest.get("mediaType") or OCI_MANIFEST  # OCI leaves it to the header
    config = manifest.get("config")
    if not manifest.get("mediaType") and isinstance(config, Mapping):
        of_docker = config.get("mediaType") == CONFIGURATIONS[DOCKER_MANIFEST]
        said = DOCKER_MANIFEST if of_docker else OCI_MANIFEST
    if said not in _LAYERS or not layers_of(manifest):
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
        variables["PATH"] = f"{additions.path}:{variables.get('PATH') or PATH}"
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


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@attrs.frozen(kw_only=True)
class KnownLayer:
    """The record of a layer that was built before."""

    what: str  # for people: `"torch 2.4.1"`
    layer: Layer
    bytes: int = 0  # size of its files
    # Its scripts, which are in the last layer of an image
    scripts: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    places: tuple[str, ...] = ()  # repositories and names of engines that have it; the latest last


class _Ended(Exception):
    """Ends the threads of a build that failed elsewhere; never leaves this module."""


class BuildThreads:
    """Threads that work on one image. After an error they end the next time that they report progress."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="image")
        self._started: list[Future[Any]] = []
        self._ended = False

    def start(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future = self._pool.submit(work, *args)
        self._started.append(future)
        return future

    def settle(self) -> None:
        """Wait until all of it is done, and raise the first exception."""
        for started in self._started:
            started.result()

    def watched(self, tell: Tell) -> Tell:
        """Wrap a progress callback: it raises once the build has ended, or a thread has failed."""

        def told(progress: Progress) -> None:
            if self._ended:
                raise _Ended
            for started in self._started:
                if started.done():
                    started.result()  # raises its exception
            tell(progress)

        return told

    def __enter__(self) -> BuildThreads:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended = error is not None
        self._pool.shutdown(cancel_futures=True)


@attrs.define(slots=False, eq=False)
class ToRegistry:
    """Pushes layers that a repository lacks; the manifest and the tags come last.

    Blobs without a manifest are removed by the registry in time.
    """

    _registries: Registries
    parent: Parent
    _repository: Reference
    _threads: BuildThreads
    _folder: Path
    _tell: Tell
    compressed: bool = True

    @property
    def repository(self) -> str:
        """As people write it."""
        return str(self._repository.with_tag("x")).removesuffix(":x")

    @property
    def place(self) -> str:
        """The name of the destination in the records of layers."""
        return self._repository.name

    def bring_parent(self) -> None:
        """Begin to copy the parent's layers into the repository."""
        # Those with URLs are where these say.
        layers = [one for one in layers_of(self.parent.manifest) if not one.get("urls")]
        for digest, size in {layer["digest"]: layer["size"] for layer in layers}.items():
            self._threads.start(self._bring, digest, size)

    def has(self, known: Sequence[KnownLayer]) -> Sequence[KnownLayer]:
        """Those that the repository has, or can mount from another one of its registry."""
        return [one for one in known if self._has(one.layer.digest, one.places)]

    def in_order(self, known: Sequence[KnownLayer], new: Sequence[KnownLayer]) -> Sequence[KnownLayer]:
        """By size, whether they are new or not: the same order on every machine."""
        return sorted((*known, *new), key=lambda one: (-one.bytes, one.what))

    def take(self, layer: Layer, file: Path, what: str) -> None:
        """Begin to push a layer."""
        self._threads.start(self._push, layer, file, what)

    def finish(self, layers: Sequence[tuple[Layer, str]], additions: Additions, names: Sequence[str]) -> str:
        """Push the configuration, wait for all layers, and name the image."""
        composed = compose(self.parent, layers, additions)
        self._registries.upload_blob(self._repository, composed.config, composed.config_digest)
        self._threads.settle()
        for tag in names:
            name = self._repository.with_tag(tag)
            digest = self._registries.put_manifest(name, composed.manifest, composed.media_type)
        return str(self._repository.with_digest(digest))

    def _has(self, digest: str, places: Sequence[str] = ()) -> bool:
        if self._registries.has_blob(self._repository, digest):
            return True
        others = [place for place in reversed(places) if "/" in place and place != self._repository.name]
        return any(
            self._registries.mount_blob(self._repository, digest, source)
            for source in map(Reference.parse, others)
            if source.registry == self._repository.registry
        )

    def _push(self, layer: Layer, file: Path, what: str) -> None:
        if not self._has(layer.digest):
            text = f"{what}, {format_size(layer.bytes)}"
            self._registries.upload_blob(self._repository, file, layer.digest, tell=self._tell, text=text)
        file.unlink()

    def _bring(self, digest: str, size: int) -> None:
        """Copy a layer of the parent, through a temporary file."""
        parent = self.parent.reference
        if self._has(digest, [parent.name]):
            return
        text = f"a layer of {parent}, {format_size(size)}"
        file = self._folder / digest.partition(":")[2]
        with open(file, "xb") as opened:
            done = 0
            for block in self._registries.blob(parent, digest):
                opened.write(block)
                done += len(block)
                self._tell(Progress(stage="pull", text=text, done=done, total=size))
        self._registries.upload_blob(self._repository, file, digest, tell=self._tell, text=text)
        file.unlink()


@attrs.define(slots=False, eq=False)
class ToEngine:
    """Loads layers into a container engine, on top of a parent that it has."""

    _engine: ContainerEngine
    parent: Parent
    repository: str
    _folder: Path
    _tell: Tell
    compressed: bool = False
    _files: dict[str, Path] = attrs.field(factory=dict)

    @property
    def place(self) -> str:
        """The name of the destination in the records of layers."""
        return self._engine.name

    def has(self, known: Sequence[KnownLayer]) -> Sequence[KnownLayer]:
        """The first of them, as far as the engine has an image with just these on the same parent."""
        if not known:  # to look into each image takes an engine long
            return []
        below = layers_in(self.parent.config)
        chains = [layers_in(image) for image in self._engine.labelled(RECIPE_LABEL)]
        above = [chain[len(below) :] for chain in chains if chain[: len(below)] == below]
        there: list[KnownLayer] = []
        for one in known:
            wanted = [*(found.layer.diff_id for found in there), one.layer.diff_id]
            if not any(chain[: len(wanted)] == wanted for chain in above):
                break
            there.append(one)
        return there

    def in_order(self, known: Sequence[KnownLayer], new: Sequence[KnownLayer]) -> Sequence[KnownLayer]:
        """The layers that are there first: an engine's layer is one with all that is below it."""
        return [*known, *sorted(new, key=lambda one: (-one.bytes, one.what))]

    def take(self, layer: Layer, file: Path, what: str) -> None:
        """Keep a layer until the image is loaded."""
        self._files[layer.diff_id] = file

    def finish(self, layers: Sequence[tuple[Layer, str]], additions: Additions, names: Sequence[str]) -> str:
        """Load the image, and name it."""
        named = [f"{self.repository}:{tag}" for tag in names]
        image = ImageToLoad(
            parent=self.parent.pinned,
            composed=compose_in_engine(self.parent, layers, additions),
            layers={one.diff_id: self._files[one.diff_id] for one, _ in layers if one.diff_id in self._files},
            name=named[0],
        )
        identity = load(self._engine, image, self._folder, self._tell)
        for name in named[1:]:
            self._engine.run(["tag", named[0], name])
        return identity


Delivery = ToRegistry | ToEngine
"""Takes the layers of one image, and then its configuration and names."""
