"""Exported pipelines in a bucket: ``exports/DIGEST.json`` is a copy of the order that the blob DIGEST holds.

Somebody may run an exported file months later, and nothing here hears of it. ``gc`` keeps what its pods need
until the export itself is removed, and finds it by this object.
"""

from __future__ import annotations

from upshift.runtime.storage.digest import split
from upshift.runtime.storage.store import Store

EXPORTS = "exports/"


def write_export(store: Store, digest: str, order: bytes) -> None:
    """Write down that a pipeline was exported, by the digest of its order; once more, if it was already."""
    if store.replica is not None:
        store.replica.objects.put(f"{EXPORTS}{split(digest)[1]}.json", order)
