"""What is in an image, from the cheapest source that knows: :func:`contents_of`.

::

    configuration ── table of known images ── a look into it, once: by the engine that has it,
    (read anyway)    (by its official name)   or by its layers, streamed and stored nowhere
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from upshift.errors import ImageError
from upshift.images.base import Announce, Contents, Parent
from upshift.images.checking.torch_releases import cuda_of, minor
from upshift.images.parents import declared
from upshift.images.parents.known import Known, known
from upshift.images.reference import Reference

if TYPE_CHECKING:
    from upshift.images.containers.engine import ContainerEngine
    from upshift.images.registries.client import Registries


def contents_of(
    parent: Parent,
    *,
    registries: Registries | None,
    engine: ContainerEngine | None = None,
    look: bool = True,
    thorough: bool = False,
    announce: Announce | None = None,
) -> Contents:
    """What is in an image.

    Parameters
    ----------
    parent
        The image.
    registries
        How its registry is read; None: it is not.
    engine
        The container engine on this machine, which may have the image.
    look
        Whether an image may be looked into: one that the engine has is asked itself, of another one that no
        table knows the layers are read, once.
    thorough
        Whether it has to be known where its Python and packages are, which names of images often do not
        say: for a builder that puts packages there itself.
    announce
        Told before layers are read, and where the engine does not answer.

    Raises
    ------
    ImageError
        Its layers cannot be read.
    """
    said = declared.contents(parent)
    named = known(parent.reference)
    table = named.contents if named else None
    seen = _looked_into(parent, engine, announce) if look and engine is not None else None
    unknown = table is None or (table.python is None and said.python is None)
    unknown = unknown or (thorough and table is not None and table.python != "" and not table.interpreter)
    if seen is None and unknown and look:
        seen = _surveyed(parent, registries, announce)
    return _settled(seen, said, table)


def known_image(name: str) -> Known | None:
    """What is known of an image by its name; None: nothing, or it is no name of an image."""
    try:
        return known(Reference.parse(name))
    except ImageError:
        return None


def _looked_into(parent: Parent, engine: ContainerEngine, announce: Announce | None) -> Contents | None:
    if not parent.in_engine or parent.platform != engine.platform:
        return None
    from upshift.images.parents.look import look

    return look(parent, engine, announce)


def _surveyed(parent: Parent, registries: Registries | None, announce: Announce | None) -> Contents | None:
    if registries is None or not parent.layers:
        return None
    from upshift.images.parents.survey import survey

    return survey(parent, registries, announce)


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
        externally_managed=next(
            (s.externally_managed for s in sources if s.externally_managed is not None), None
        ),
        cuda=minor(cuda) if cuda else _of_packages(packages.packages) or cuda,
        stacks=stacks,
        packages=packages.packages,
        complete=packages.complete,
        lacks=table.lacks if seen is None and table is not None else frozenset(),
        glibc=_one(sources, "glibc"),
        source=table.source if seen is None and table is not None and table.python else first.source,
    )
    return _with_python(settled)


def _one(sources: list[Contents], field: str) -> str | None:
    return next((value for source in sources if (value := getattr(source, field)) is not None), None)


def _of_packages(packages: Mapping[str, str] | None) -> str | None:
    return cuda_of((packages or {}).get("torch", "")) or None


def _with_python(contents: Contents) -> Contents:
    """Where packages are follows from the version, which a tag like ``slim`` does not say."""
    if not contents.site_packages and contents.interpreter == "/usr/local/bin/python3" and contents.python:
        folder = f"/usr/local/lib/python{minor(contents.python)}/site-packages"
        return attrs.evolve(contents, site_packages=folder)
    return contents
