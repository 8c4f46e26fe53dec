"""Accelerators by name: what a user, a driver, a scheduler or a cloud calls them becomes one kind."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from difflib import get_close_matches

from upshift.config.catalogue import KINDS, Kind
from upshift.errors import SettingsError, user_location

__all__ = ["Kind", "kind_named", "kind_of_model", "members", "most_memory"]

_BRANDS = frozenset(
    "nvidia tesla geforce quadro amd radeon instinct pro intel data center gpu habana habanalabs aws amazon "
    "google cloud graphics accelerator generation".split()
)
"""Words that say no more than the rest of a name does."""
_SHARING = re.compile(r"-(SHARED|MIG-.*)$", re.IGNORECASE)
"""What a node's label has after the product's name: how the device is shared out."""
_LOOKALIKES = str.maketrans({"o": "0", "i": "1", "l": "1"})


def kind_named(text: str) -> Kind:
    """The kind that a user means; case, spaces, dashes and brand names do not count.

    Raises
    ------
    SettingsError
        There is none; the nearest names are shown.
    """
    kind = _known().get(_folded(text))
    if kind is None:
        close = _nearest(text)
        listed = ", ".join(kind.name for kind in KINDS if not kind.families)
        raise SettingsError(
            f"no accelerator is called {text!r}",
            where=user_location(),
            fix=f"Did you mean {' or '.join(map(repr, close))}?" if close else f"Known: {listed}.",
        )
    return kind


def kind_of_model(model: str | None) -> Kind | None:
    """The kind of a device, from what its driver or its node's label calls it; None: not known.

    Parameters
    ----------
    model
        ``"NVIDIA H100 80GB HBM3"``, ``"Tesla-T4-SHARED"``, ``"AMD Instinct MI300X"``.
    """
    return _known().get(_folded(_SHARING.sub("", model))) if model else None


def members(kind: Kind) -> tuple[Kind, ...]:
    """The kinds of a family that are no families themselves; of any other kind, itself."""
    families = {name for other in KINDS for name in other.families}
    return tuple(other for other in KINDS if other.meets(kind) and other.name not in families) or (kind,)


def most_memory(kind: Kind) -> int | None:
    """Bytes on the largest device of this kind."""
    return max((member.memory for member in members(kind) if member.memory is not None), default=None)


@functools.cache
def _known() -> Mapping[str, Kind]:
    return {_folded(text): kind for kind in reversed(KINDS) for text in (*kind.aliases, kind.name)}


def _folded(text: str) -> str:
    words = re.findall(r"[a-z0-9.]+", text.lower())
    return "".join(word for word in words if word not in _BRANDS)


def _nearest(text: str) -> list[str]:
    """Up to three names that look like this one."""
    names = {_folded(kind.name).translate(_LOOKALIKES): kind.name for kind in KINDS}
    return [names[close] for close in get_close_matches(_folded(text).translate(_LOOKALIKES), names, n=3)]
