"""Accelerators by name: what a user, a driver, a scheduler or a cloud calls them becomes one kind."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from difflib import SequenceMatcher

from upshift.errors import SettingsError, user_location
from upshift.model.settings.catalogue import KINDS, Kind

__all__ = ["Kind", "kind_named", "kind_of_model", "members", "most_memory"]

_BRANDS = frozenset(
    (
        *("nvidia", "tesla", "geforce", "amd", "radeon", "instinct", "intel", "habana", "habanalabs"),
        *("aws", "amazon", "google", "cloud", "data", "center", "gpu", "graphics", "generation"),
    )
)
"""Words that say no more than the rest of a name does."""
_SHARING = re.compile(r"-(SHARED|MIG-.*)$", re.IGNORECASE)
"""What a node's label has after the product's name: how the device is shared out."""
_MARKS = re.compile(r"\((r|tm|c)\)")
_COMMON = ("H100", "A100-80GB", "L4", "T4", "MI300X")
"""A few that are shown where no name is near."""
_ALIKE = 0.6
"""How alike a name must be to be shown for another; 1 is the same."""
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
        raise SettingsError(
            f"no accelerator is called {text!r}",
            where=user_location(),
            fix=f"Did you mean {' or '.join(map(repr, close))}?"
            if close
            else "The page reference/accelerators of the documentation has all of them, "
            + ", ".join(_COMMON)
            + " among them.",
        )
    return kind


def kind_of_model(model: str | None) -> Kind | None:
    """The kind of a device, from what its driver or its node's label calls it; None: not known.

    Parameters
    ----------
    model
        ``"NVIDIA H100 80GB HBM3"``, ``"Tesla-T4-SHARED"``, ``"AMD Instinct MI300X"``.
    """
    folded = _folded(_SHARING.sub("", model or ""))
    return _drivers().get(folded) or _known().get(folded)


def members(kind: Kind) -> tuple[Kind, ...]:
    """The kinds that meet this one, itself among them."""
    return tuple(other for other in KINDS if other.meets(kind))


def most_memory(kind: Kind) -> int | None:
    """Bytes on the largest device of this kind."""
    return max((member.memory for member in members(kind) if member.memory is not None), default=None)


@functools.cache
def _known() -> Mapping[str, Kind]:
    return {_folded(text): kind for kind in reversed(KINDS) for text in (*kind.aliases, kind.name)}


@functools.cache
def _drivers() -> Mapping[str, Kind]:
    return {_folded(text): kind for kind in KINDS for text in kind.drivers}


def _folded(text: str) -> str:
    words = re.findall(r"[a-z0-9.]+", _MARKS.sub(" ", text.lower()))
    return "".join(word for word in words if word not in _BRANDS)


def _nearest(text: str) -> list[str]:
    """The name that it is a misspelling or a part of, or up to four that it may as well be."""
    wanted = _folded(text).translate(_LOOKALIKES)
    scores: dict[str, float] = {}
    partly: set[str] = set()
    for folded, kind in _known().items():
        known = folded.translate(_LOOKALIKES)
        score = SequenceMatcher(None, wanted, known).ratio()
        scores[kind.name] = max(score, scores.get(kind.name, 0.0))
        if len(wanted) > 2 and wanted in known:
            partly.add(kind.name)
    best = max(scores.values())
    alike = {name for name, score in scores.items() if score >= max(_ALIKE, best - 0.05)}
    found = alike if best == 1 else alike | partly
    names = [kind.name for kind in KINDS if kind.name in found and not found.intersection(kind.families)]
    return sorted(names, key=lambda name: -scores[name])[:4]
