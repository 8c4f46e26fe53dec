"""Parents that were read from a registry before: :func:`read_parent`.

What a digest stands for never changes, and what a name stands for is asked by one small request. So an image
is read in full once, which is also what registries count as a pull; and where its registry cannot be reached,
or is in trouble, it is taken for what it was. All of it is in ``UPSHIFT_HOME/cache/images/parents``; losing
that costs time, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from upshift.errors import ImageError
from upshift.images import cache
from upshift.images.base import ERROR, WARNING, Finding, Parent
from upshift.images.reference import Reference
from upshift.images.registries.documents import parent_of
from upshift.images.registries.faults import LoginRefused, Unavailable

if TYPE_CHECKING:
    from upshift.images.registries.client import Registries

_FORMAT = 1


@attrs.frozen(kw_only=True)
class _Remembered:
    """What a name stood for, and when that was read, in seconds since the epoch."""

    digest: str
    read: float
    parent: Parent


def read_parent(registries: Registries, reference: Reference, platform: str) -> tuple[Parent, Finding | None]:
    """What an image is for one platform, and what the user should know of how that was found out.

    Where the registry refuses the login, that is an error: what was read before serves to find an equal
    image, and nothing is built on it.

    Raises ImageError: it is not there, or not for this platform; or it cannot be read, and never was before.
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
        refused = Finding(
            severity=ERROR, field="parent_image", what=error.what, evidence=error.why, fix=error.fix
        )
        return before.parent, refused
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
    try:
        said: Any = json.loads(cache.used(_file(reference, platform)).read_text(encoding="utf-8"))
        own = parent_of(reference, said["own"], platform, said["manifest"], said["config"])
        return _Remembered(digest=said["digest"], read=float(said["read"]), parent=own)
    except (OSError, ValueError, KeyError, TypeError, ImageError):
        return None  # never read, or not whole


def _remember(parent: Parent, digest: str) -> None:
    """Keep what was read; where that cannot be, it is read again next time."""
    said = {
        "digest": digest,
        "own": parent.digest,
        "read": time.time(),
        "manifest": parent.manifest,
        "config": parent.config,
    }
    with cache.keeping(_file(parent.reference, parent.platform)) as file:
        file.write_text(json.dumps(said), encoding="utf-8")
