"""The cards of an attempt: records, and their content as who looks at a run meets it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upshift.model.spec.codec import from_json
from upshift.model.spec.telemetry import Card, standing

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store


def read_cards(path: Path) -> tuple[Card, ...]:
    """The records in a file that stand, one on each line; a line that is torn is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                found.append(from_json(Card, line))
    return standing(found)


class Shown:
    """Something that a step had to show. A notebook draws it.

    Attributes
    ----------
    title, media
        What it is called; the media type of its content: ``"image/png"``, ``"text/html"``, ….
    id
        What it is shown under: ``"ID"`` of ``current.card["ID"]``; None: nothing of its own.
    bytes
        Size of the content.
    """

    def __init__(self, card: Card, store: Store) -> None:
        self.card = card
        self.title = card.title
        self.media = card.media
        self.id = card.id
        self.bytes = card.bytes
        self._store = store

    @property
    def content(self) -> bytes:
        """What it is; text is UTF-8.

        Raises
        ------
        BlobMissing, BlobDamaged
            The store does not have it any more.
        """
        return bytes(self._store.read(self.card.digest, self.card.bytes))

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        media, content = self.media, self.content
        if media == "application/vnd.plotly+json":
            return {"application/vnd.plotly.v1+json": json.loads(content)}
        return {media: content.decode() if media.startswith("text/") or media.endswith("xml") else content}

    def __repr__(self) -> str:
        return f"<Card {self.title!r}: {self.media}, {self.bytes:,} bytes>"
