"""A line ``<!-- accelerators -->`` becomes the tables of the accelerators that requests can name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from upshift.model.settings.kinds import KINDS, Kind
from upshift.model.settings.sizes import format_size

PLACE = "<!-- accelerators -->"
_VENDORS = {
    "nvidia": "NVIDIA",
    "amd": "AMD",
    "intel": "Intel GPUs",
    "habana": "Intel Gaudi",
    "neuron": "AWS Neuron",
    "tpu": "Google TPU",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called for each page."""
    return markdown.replace(PLACE, _tables()) if PLACE in markdown else markdown


def _tables() -> str:
    parts = []
    for vendor, title in _VENDORS.items():
        parts += [f"## {title}", f'`gpu_vendor="{vendor}"`']
        parts.append(_table(kind for kind in KINDS if kind.vendor == vendor))
    return "\n\n".join(parts)


def _table(kinds: Iterable[Kind]) -> str:
    rows = [
        (
            f"`{kind.name}`",
            _memory(kind),
            kind.capability or "",
            ", ".join(f"`{name}`" for name in kind.families),
            ", ".join(f"`{alias}`" for alias in kind.aliases),
            ", ".join(f"`{profile}`" for profile in kind.partitions) or _parts(kind),
        )
        for kind in kinds
    ]
    heads = ("name", "memory", "architecture", "also meets", "other spellings", "parts")
    used = [i for i, _ in enumerate(heads) if any(row[i] for row in rows)]
    lines = [[heads[i] for i in used], ["---"] * len(used), *([row[i] for i in used] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _memory(kind: Kind) -> str:
    if kind.memory is None:
        return "differs"
    gibibytes, rest = divmod(kind.memory, 2**30)
    return format_size(kind.memory) if rest else f"{gibibytes} GiB"


def _parts(kind: Kind) -> str:
    if kind.cores:
        return f"{kind.cores} NeuronCores"
    if kind.slices:
        form = "2x4" if kind.slices.dimensions == 2 else "2x2x1"
        counts = "chips" if kind.slices.cores == 1 else f"TensorCores, {kind.slices.cores} a chip"
        return f"slices count {counts}; topology `{form}`; up to {kind.slices.per_machine} chips a machine"
    return ""
