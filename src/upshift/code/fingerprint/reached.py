"""The reached code: pieces, each made once, from where one begins to where nothing new is reached.

Within the step's own file a definition counts by itself; of any other module all counts.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterable

from upshift.code.fingerprint.live import LiveCode
from upshift.code.fingerprint.modules import (
    imported_piece,
    names_piece,
    package_piece,
    project_piece,
    source_piece,
    whole_piece,
)
from upshift.code.fingerprint.names import name_piece
from upshift.code.fingerprint.objects import code_piece, docstring_piece, method_piece
from upshift.code.fingerprint.pieces import SEEN, Key, Piece
from upshift.code.fingerprint.sources import Module

_MAKERS: dict[str, Callable[..., Piece]] = {
    "code": code_piece,
    "source": source_piece,
    "whole": whole_piece,
    "names": names_piece,
    "name": name_piece,
    "imported": imported_piece,
    "docstring": docstring_piece,
    "method": method_piece,
    "package": package_piece,
    "project": project_piece,
}


class ReachedCode:
    """Pieces of one process at one moment."""

    def __init__(self, live: LiveCode) -> None:
        self.live = live
        self._pieces: dict[Key, Piece] = {}

    def piece(self, key: Key) -> Piece:
        """The piece of a key."""
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = _MAKERS[key[0]](self.live, *key[1:])
        return piece

    def put(self, key: Key, piece: Piece) -> None:
        """Keep a piece that was made elsewhere."""
        self._pieces[key] = piece

    def reach(
        self,
        start: Iterable[Key],
        files: Container[str | None],
        *,
        widened: bool = True,  # whether also what only counts because it may be found by its name
    ) -> dict[Key, Piece]:
        """The pieces that these keys lead to, where definitions in these files count one by one."""
        found: dict[Key, Piece] = {}
        pending = list(start)
        while pending:
            key = pending.pop()
            if key[0] == "source":
                module, file = key[1], key[2]
                if file == module.file and file not in files:
                    key = ("whole", module)
            if key not in found and (widened or key[0] != "project"):
                piece = found[key] = self.piece(key)
                pending.extend(piece.reaches)
        return found

    def marks(
        self,
        start: Iterable[Key],
        *,
        # whether only what makes a value is wanted: what others are made of that are seen is not
        making: bool = False,
    ) -> int:
        """The flags of all that is reached where every definition counts by itself."""
        found: set[Key] = set()
        pending = list(start)
        flags = 0
        while pending:
            key = pending.pop()
            if key in found or key[0] in ("whole", "project"):
                continue
            found.add(key)
            piece = self.piece(key)
            if making and piece.flags & SEEN:
                continue
            flags |= piece.flags
            pending.extend(piece.reaches)
        return flags


def flags_of(pieces: Iterable[Piece]) -> int:
    """The flags that any of these pieces has."""
    return functools.reduce(operator.or_, (piece.flags for piece in pieces), 0)


def modules_of(keys: Iterable[Key]) -> list[Module]:
    """The modules that these pieces are of."""
    return list(dict.fromkeys(key[1] for key in keys if len(key) > 1 and isinstance(key[1], Module)))
