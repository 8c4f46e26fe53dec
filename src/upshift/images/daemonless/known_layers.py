"""Layers that this machine has made before: what is in a registry need be neither installed nor packed again.

A record says which layer one large distribution became, for one platform, Python and set of indexes. It holds
the distribution's own metadata, so that an installer resolves as if it were there, and the repositories that
have the layer. Losing a record costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from upshift.images import cache
from upshift.images.daemonless.layers import Layer

_FORMAT = 1
_MOST_PLACES = 8


@attrs.frozen(kw_only=True)
class KnownLayer:
    """A distribution that is in a layer of its own.

    Parameters
    ----------
    name, version
        Of the distribution, normalized.
    metadata
        Its ``METADATA``.
    layer
        The layer.
    installed_bytes
        Size of its files.
    scripts
        Its scripts, which are in the last layer of an image.
    places
        Repositories that have it, the latest last.
    """

    name: str
    version: str
    metadata: str = attrs.field(repr=False)
    layer: Layer
    installed_bytes: int
    scripts: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    places: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """For people."""
        return f"{self.name} {self.version}"


class KnownLayers:
    """The records for one kind of image.

    Parameters
    ----------
    circumstances
        All that decides what a version of a distribution consists of: platform, Python, indexes.
    """

    def __init__(self, circumstances: Sequence[object]) -> None:
        text = json.dumps([_FORMAT, *circumstances], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        self._folder = cache.folder(cache.LAYERS) / key[:32]

    def any(self) -> bool:
        """Whether there are records."""
        try:
            with os.scandir(self._folder) as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def find(self, name: str, version: str) -> KnownLayer | None:
        """The record of one version; None where there is none that can be read."""
        try:
            record = json.loads(cache.used(self._file(name, version)).read_text(encoding="utf-8"))
            return KnownLayer(
                name=name,
                version=version,
                metadata=record["metadata"],
                layer=Layer(**record["layer"]),
                installed_bytes=record["installed_bytes"],
                scripts=record["scripts"],
                places=tuple(record["places"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, known: KnownLayer, place: str) -> None:
        """Record that a repository has a layer."""
        places = [*(other for other in known.places if other != place), place][-_MOST_PLACES:]
        record = {
            "metadata": known.metadata,
            "layer": attrs.asdict(known.layer),
            "installed_bytes": known.installed_bytes,
            "scripts": dict(known.scripts),
            "places": places,
        }
        with cache.keeping(self._file(known.name, known.version)) as file:
            file.write_text(json.dumps(record), encoding="utf-8")

    def _file(self, name: str, version: str) -> Path:
        return self._folder / f"{name}-{version}.json".replace("/", "_")
