"""A parent image (:func:`read_parent`) and what is in it (:func:`contents_of`), from the cheapest source.

::

    configuration ── table of known images ── inspection, once: by the engine that has it,
    (read anyway)    (by its official name)   or by its layers, streamed and not stored

What a digest stands for never changes, and one small request tells the digest of a name. So an image is read
in full once, which is also what registries count as a pull; it is cached in
``UPSHIFT_HOME/cache/images/parents``. While its registry cannot be reached, the cached record is used.

Sources for what configurations say: docker-library/python ``Dockerfile-linux.template``
(``PYTHON_VERSION``); the Dockerfiles of NVIDIA's container-images/cuda (``CUDA_VERSION``); pytorch/pytorch
``Dockerfile`` (``PYTORCH_VERSION``); images of Debian (``debian.sh`` in the history) and Ubuntu
(``org.opencontainers.image.version``). Read on 2026-11-21.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import ImageError
from upshift.images import cache
from upshift.images.base import WARNING, Announce, Contents, Finding, Parent, Reference
from upshift.images.parents.known import GLIBC, KnownImage, cuda_of, known, minor
from upshift.images.registries.answers import LoginRefused, Unavailable, parent_of

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.registries.client import Registries

_FORMAT = 1

_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_DEBIAN = re.compile(r"debian\.sh .*'(buster|bullseye|bookworm|trixie)'")


@attrs.frozen(kw_only=True)
class _Remembered:
    digest: str
    read: float  # when, in seconds since the epoch
    parent: Parent


def read_parent(registries: Registries, reference: Reference, platform: str) -> tuple[Parent, Finding | None]:
    """An image for one platform, and a finding where it is a cached record that may be out of date.

    Where the registry refuses the login, that finding is an error: an equal image may be found by the cached
    record, but none is built on it.
    """
    before = _recall(reference, platform)
    if before is not None and reference.digest is not None:
        return before.parent, None
    try:
        digest = reference.digest or registries.digest(reference)
    except Unavailable as error:
        if before is None:
            raise
        return before.parent, _taken_for(before, error)
    except LoginRefused as error:
        if before is None:
            raise
        return before.parent, Finding.of(error, "parent_image")
    if before is not None and digest == before.digest:
        return before.parent, None
    parent = registries.parent(reference, platform)
    if digest is not None:
        _remember(parent, digest)
    return parent, None


def _taken_for(before: _Remembered, error: ImageError) -> Finding:
    read = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(before.read))
    return Finding(
        severity=WARNING,
        field="parent_image",
        what=f"{before.parent.reference} is taken for what it was on {read}: it cannot be asked for now",
        evidence=error.in_short,
        fix=error.fix,
    )


def _file(reference: Reference, platform: str) -> Path:
    name = hashlib.sha256(f"{reference.full} {platform}".encode()).hexdigest()[:32]
    return cache.folder(cache.PARENTS) / f"{name}.{_FORMAT}.json"


def _recall(reference: Reference, platform: str) -> _Remembered | None:
    def read(text: str) -> _Remembered:
        said: Any = json.loads(text)
        own = parent_of(reference, said["own"], platform, said["manifest"], said["config"])
        return _Remembered(digest=said["digest"], read=float(said["read"]), parent=own)

    return cache.recalled(_file(reference, platform), read)


def _remember(parent: Parent, digest: str) -> None:
    said = {
        "digest": digest,
        "own": parent.digest,
        "read": time.time(),
        "manifest": parent.manifest,
        "config": parent.config,
    }
    cache.remember(_file(parent.reference, parent.platform), json.dumps(said))


def contents_of(
    parent: Parent,
    *,
    registries: Registries | None,
    engine: ContainerEngine | None = None,
    whole: bool = False,
    announce: Announce | None = None,
) -> Contents:
    said, named = declared(parent), known(parent.reference)
    table = named.contents if named else None
    seen = None
    if engine is not None and parent.in_engine and parent.platform == engine.platform:
        from upshift.images.parents.inspecting import inspect_running

        seen = inspect_running(parent, engine, announce)
    unknown = table is None or (table.python is None and said.python is None)
    unknown = unknown or (
        whole and table is not None and table.python != "" and not _settled(None, said, table).whole
    )
    if seen is None and unknown and registries is not None and parent.layers:
        from upshift.images.parents.inspecting import inspect_layers

        seen = inspect_layers(parent, registries, announce)
    return _settled(seen, said, table)


def known_image(name: str) -> KnownImage | None:
    """What is known of an image by its name; None: nothing, or it is not a valid image name."""
    try:
        return known(Reference.parse(name))
    except ImageError:
        return None


def declared(parent: Parent) -> Contents:
    """What the configuration of an image says; the rest is None."""
    environment = parent.environment
    torch = version(environment.get("PYTORCH_VERSION"))
    return Contents(
        python=version(environment.get("PYTHON_VERSION")),
        cuda=version(environment.get("CUDA_VERSION")),
        packages={"torch": torch} if torch else None,
        complete=False,
        glibc=_glibc(parent),
        source="its configuration",
    )


def version(text: str | None) -> str | None:
    """The version at the beginning of a text."""
    found = _NUMBERS.match(text or "")
    return found[0] if found else None


def _glibc(parent: Parent) -> str | None:
    labels = parent.labels
    if labels.get("org.opencontainers.image.ref.name") == "ubuntu":
        return GLIBC.get(f"ubuntu {labels.get('org.opencontainers.image.version', '')}")
    history = parent.config.get("history")
    for step in history if isinstance(history, list) else ():
        found = _DEBIAN.search(str(step.get("created_by", "")) if isinstance(step, dict) else "")
        if found:
            return GLIBC[f"debian {found[1]}"]
    return None


def _settled(seen: Contents | None, said: Contents, table: Contents | None) -> Contents:
    """One answer of three sources: inspection, then configuration, then the table of names."""
    sources = [source for source in (seen, said, table) if source is not None]
    first = sources[0]
    packages = next(
        (source for source in (seen, table, said) if source and source.packages is not None), first
    )
    cuda = said.cuda or next((source.cuda for source in sources if source.cuda is not None), None)
    stacks: dict[str, str] = {}
    for source in reversed(sources):
        stacks |= source.stacks
    settled = Contents(
        python=_one(sources, "python"),
        interpreter=_one(sources, "interpreter"),
        site_packages=_one(sources, "site_packages"),
        cuda=minor(cuda) if cuda else cuda_of((packages.packages or {}).get("torch", "")) or cuda,
        compat=seen.compat if seen is not None else None,
        stacks=stacks,
        packages=packages.packages,
        complete=packages.complete,
        lacks=table.lacks if seen is None and table is not None else frozenset(),
        users=seen.users if seen is not None else None,
        glibc=_one(sources, "glibc"),
        source=table.source if seen is None and table is not None and table.python else first.source,
    )
    # Where packages are follows from the version, which a tag like "slim" does not say.
    if not settled.site_packages and settled.interpreter == "/usr/local/bin/python3" and settled.python:
        folder = f"/usr/local/lib/python{minor(settled.python)}/site-packages"
        return attrs.evolve(settled, site_packages=folder)
    return settled


def _one(sources: list[Contents], field: str) -> str | None:
    return next((value for source in sources if (value := getattr(source, field)) is not None), None)
