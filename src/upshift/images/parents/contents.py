"""What is in an image, from the cheapest source that knows: :func:`contents_of`.

::

    configuration ── table of known images ── a look into it, once: by the engine that has it,
    (read anyway)    (by its official name)   or by its layers, streamed and stored nowhere

Sources for what configurations say: docker-library/python ``Dockerfile-linux.template``
(``PYTHON_VERSION``); the Dockerfiles of NVIDIA's container-images/cuda (``CUDA_VERSION``); pytorch/pytorch
``Dockerfile`` (``PYTORCH_VERSION``); images of Debian (``debian.sh`` in the history) and Ubuntu
(``org.opencontainers.image.version``). Read on 2026-11-21.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from upshift.errors import ImageError
from upshift.images.base import Announce, Contents, Parent
from upshift.images.parents.known import GLIBC, Known, known
from upshift.images.pep508 import cuda_of, minor
from upshift.images.reference import Reference

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.registries.client import Registries

_NUMBERS = re.compile(r"\d+(?:\.\d+)+")
_DEBIAN = re.compile(r"debian\.sh .*'(buster|bullseye|bookworm|trixie)'")


def contents_of(
    parent: Parent,
    *,
    registries: Registries | None,
    engine: ContainerEngine | None = None,
    whole: bool = False,
    announce: Announce | None = None,
) -> Contents:
    """What is in an image. Raises ImageError: its layers cannot be read."""
    said, named = declared(parent), known(parent.reference)
    table = named.contents if named else None
    seen = None
    if engine is not None and parent.in_engine and parent.platform == engine.platform:
        from upshift.images.parents.look import look

        seen = look(parent, engine, announce)
    unknown = table is None or (table.python is None and said.python is None)
    unknown = unknown or (
        whole and table is not None and table.python != "" and not _settled(None, said, table).whole
    )
    if seen is None and unknown and registries is not None and parent.layers:
        from upshift.images.parents.layers import survey

        seen = survey(parent, registries, announce)
    return _settled(seen, said, table)


def known_image(name: str) -> Known | None:
    """What is known of an image by its name; None: nothing, or it is no name of an image."""
    try:
        return known(Reference.parse(name))
    except ImageError:
        return None


def declared(parent: Parent) -> Contents:
    """What the configuration of an image says; what it does not say is None."""
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
    """One answer of three: what was seen, then what the configuration says, then what a name promises."""
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
