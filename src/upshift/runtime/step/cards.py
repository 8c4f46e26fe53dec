"""``upshift.current.card``: what a step has to show beside its outputs.

A card is rendered in the step's own process (:mod:`upshift.runtime.step.rendering`), its content becomes
a blob, and the supervisor is told its record (:class:`upshift.model.spec.Card`) at once, so that a step
that is killed keeps its cards. Whoever draws a report finds by the media type what there is:

* ``image/*``: as it is. ``text/markdown``: to be rendered. ``text/html``: of the user's own step, to be put
  into a sandboxed frame. All text is UTF-8.
* ``application/vnd.plotly+json``: a figure as ``Plotly.newPlot(element, figure)`` takes it. The blob
  ``script`` of the record is the plotly.js that comes with the Plotly package which made the figure, the
  same blob for all figures of that version: a report embeds it once, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from upshift.model.settings.sizes import format_size
from upshift.model.spec.telemetry import Card
from upshift.runtime.masking import Mask
from upshift.runtime.messages import channel, tell
from upshift.runtime.step.rendering import HTML, LARGEST, Component, Rendered, Unshowable, pictures, rendered

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store

__all__ = ["HTML", "MOST", "Cards", "cards"]

MOST = 100
"""Cards of an attempt."""
_LONGEST = 200
"""Characters of a title."""
_QUIET = 0.5
"""Seconds between two refreshes, at least."""


class _Piece(NamedTuple):
    """One thing that was appended."""

    content: object
    title: str | None
    slot: int
    id: str | None = None


class _Pieces(list[object]):
    """What was appended, by position or by its id."""

    def __init__(self, pieces: Iterable[_Piece]) -> None:
        self._by_id = {piece.id: piece.content for piece in pieces}
        super().__init__(piece.content for piece in pieces)

    def __getitem__(self, key: Any) -> Any:
        return self._by_id[key] if isinstance(key, str) else super().__getitem__(key)


class Cards:
    """The cards of the running step; ``upshift.current.card``, and those that have an id apart from them."""

    def __init__(self, id: str | None = None, root: Cards | None = None) -> None:
        self._id = id
        self._root = self if root is None else root
        self._pieces: list[_Piece] = []
        self._named_ones: dict[str, Cards] = {}
        self._store: Store | None = None
        self._mask: Mask | None = None
        self._count = 0
        self._refreshed = 0.0

    def open(self, store: Store, secrets: Iterable[str]) -> None:
        """From now on cards are kept in a store, without these secrets."""
        known = list(secrets)
        self._store, self._mask = store, Mask(known) if known else None

    def __getitem__(self, id: str) -> Cards:
        """What is shown under this id, apart from what has none."""
        if id not in self._root._named_ones:
            self._root._named_ones[id] = Cards(self._root._line(str(id)), self._root)
        return self._root._named_ones[id]

    def __setitem__(self, id: str, contents: Iterable[object]) -> None:
        found = list(contents)
        self[id].clear()
        self[id].extend(found)

    @property
    def components(self) -> list[object]:
        """What was appended so far; by position, or by the ``id`` that it was appended with."""
        return _Pieces(self._pieces)

    def extend(self, contents: Iterable[object]) -> None:
        """Show all of these, in order."""
        for content in contents:
            self.append(content)

    def clear(self) -> None:
        """Show nothing of what was appended so far."""
        for piece in self._pieces:
            if self._root._store is not None and channel:
                channel.tell(Card(title="", media="", digest="", bytes=0, slot=_place(piece.slot)))
        self._pieces.clear()

    def refresh(self, *_: object) -> None:
        """Show changed components of :mod:`upshift.cards` as they are now, twice a second at most."""
        if time.monotonic() - self._root._refreshed >= _QUIET:
            self._root._refreshed = time.monotonic()
            self.settle()

    def settle(self) -> None:
        """Show as they are now all components that were changed."""
        for card in (self, *self._named_ones.values()):
            for piece in card._pieces:
                if isinstance(piece.content, Component) and piece.content.changed:
                    piece.content.changed = False
                    card._append(piece.content, piece.title, slot=piece.slot)

    def append(self, content: object, title: str | None = None, *, id: str | None = None) -> None:
        """Show something in the report of the run, and in ``upshift show``, while the step still runs.

        A figure of Matplotlib or Plotly, an Altair chart, a Pillow image; a :class:`pathlib.Path` of a
        ``.png``, ``.jpg``, ``.gif``, ``.webp``, ``.svg``, ``.html`` or ``.md`` file; a text, which is
        Markdown, or :class:`upshift.HTML`; rows, as a list of dictionaries or of lists, or a dictionary,
        as a table; anything that shows itself in a notebook, such as a pandas DataFrame.

        What is shown is how it looks now. A step never fails for a card: why one is left out is in the log.
        Outside a step nothing is kept, and a line says what would have been.

        Parameters
        ----------
        content
            What to show, 5 MB at most.
        title
            What stands above it; default: the figure's own title, or the name of the file.
        id
            What :attr:`components` finds it by.
        """
        self._root._count += 1
        piece = _Piece(content, None if title is None else str(title), self._root._count, id)
        if len(self._pieces) < MOST:
            self._pieces.append(piece)
        self._append(content, piece.title, slot=piece.slot)

    def show_returned(self, step: str, names: Sequence[str], values: Sequence[object]) -> None:
        """Pictures that a step has returned are cards, too."""
        if channel:
            with contextlib.suppress(Exception):  # a class that is strange to look at is no picture
                for name, value in pictures(values, names, MOST):
                    self._count += 1
                    self._append(value, None, step if name == "output" else name, slot=self._count)

    def _append(self, content: object, title: str | None, otherwise: str | None = None, *, slot: int) -> None:
        try:
            shown = rendered(content, self._clean)
            own = content.title if isinstance(content, Component) else ""
            title = self._line(title or own or shown.title or otherwise or _kind(content))
            if shown.is_text:
                shown = shown._replace(content=self._clean(shown.content.decode("utf-8", "replace")).encode())
            if shown.remark:
                tell([f"the card {title!r}: {shown.remark}"])
            self._keep(shown, title, slot)
        except Unshowable as error:
            tell([f"{self._named(title or otherwise)} is left out: {error}"])
        except Exception as error:
            tell([f"{self._named(title or otherwise)} is left out: {type(error).__name__}: {error}"])

    def _keep(self, shown: Rendered, title: str, slot: int) -> None:
        size = len(shown.content)
        if size > LARGEST:
            raise Unshowable(f"it has {format_size(size)}, and a card {format_size(LARGEST)} at most")
        store = self._root._store
        if store is None or not channel:
            sys.stdout.write(
                f"card {title!r}: {shown.media}, {format_size(size)}; kept where a run runs the step\n"
            )
            return
        if slot > MOST:
            raise Unshowable(f"a step has {MOST} cards at most")
        digest, _ = store.put(shown.content)
        script = None if shown.script is None else store.put(shown.script)[0]
        channel.tell(
            Card(
                title=title,
                media=shown.media,
                digest=digest,
                bytes=size,
                script=script,
                at=time.monotonic(),
                id=self._id,
                slot=_place(slot),
            )
        )

    def _clean(self, text: str) -> str:
        """A text without the secrets of the step."""
        mask = self._root._mask
        return text if mask is None else mask.text(text)

    def _named(self, title: str | None) -> str:
        return "a card" if title is None else f"the card {self._line(title)!r}"

    def _line(self, title: str) -> str:
        """A title as one line. What is shortened first may be half a secret, which nothing recognizes."""
        words = " ".join(self._clean(str(title)).split())
        line = "".join(c if c.isprintable() else "?" for c in words)
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _place(slot: int) -> str:
    """A slot, apart from those of processes that the step has forked."""
    return f"{os.getpid()}.{slot}"


def _kind(content: object) -> str:
    """What to call something that has no name."""
    if isinstance(content, (list, tuple, dict)):
        return "Table"
    kind = type(content).__name__
    return "Note" if kind == "str" else "Image" if kind.endswith("ImageFile") else kind


cards = Cards()
"""Those of this process."""
