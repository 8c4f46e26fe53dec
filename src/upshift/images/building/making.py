"""The layers of one image: installed, compiled, packed and delivered, but for those that are there:
:class:`Making`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import attrs

from upshift.images import cache
from upshift.images.base import Contents, Ingredients, Lock, Progress, Tell
from upshift.images.building.compiling import Compiler
from upshift.images.building.delivery import Delivery, Helpers, KnownLayer
from upshift.images.building.installing import CompileIn, Installer
from upshift.images.building.packing import (
    Layer,
    Layout,
    Piece,
    join_namespaces,
    key_of,
    last_entries,
    pieces_of,
    write_layer,
)
from upshift.images.building.uv import platform_of

_FORMAT = 2
_MOST_PLACES = 8


class Making:
    """Makes the layers of one image."""

    def __init__(
        self,
        ingredients: Ingredients,
        contents: Contents,
        layout: Layout,
        lock: Lock,
        *,
        folder: Path,
        delivery: Delivery,
        helpers: Helpers,
        tell: Tell,
        compile_in: CompileIn | None,
        compile_here: bool,
    ) -> None:
        self._layout = layout
        self._lock = lock
        self._folder = folder
        self._delivery = delivery
        self._helpers = helpers
        self._tell = tell
        self._installer = Installer(
            ingredients.recipe,
            ingredients.paths,
            contents,
            folder,
            where=ingredients.origins.get("requirements"),
            compile_in=compile_in,
            compile_here=compile_here,
        )
        self._known: dict[str, KnownLayer] = {}
        self._circumstances = json.dumps(
            [
                platform_of(ingredients.recipe.platform, contents.glibc),
                layout.python,
                layout.compiles,
                layout.place("share"),
                layout.site,
                ingredients.recipe.installer_args,
            ]
        )

    def layers(self) -> list[tuple[Layer, str]]:
        """All of them, each with what is in it; they are on their way when this returns."""
        there = self._there()
        missing = Lock(packages=tuple(one for one in self._lock.packages if one.name not in there))
        packages = self._installer.packages
        with contextlib.ExitStack() as stack:
            compiler = None
            if self._layout.compiles and missing.packages:
                compiler = stack.enter_context(Compiler(self._layout, self._folder))
            installed = self._installer.install(missing, self._tell)
            join_namespaces(installed, packages)
            if compiler is not None:
                said = Progress(stage="pack", text="bytecode")
                compiler.compile(installed, packages, idle=lambda: self._tell(said))
        locked = {one.name: one for one in missing.packages}
        pairs = [(locked[one.name], one) for one in installed if one.name in locked]
        pieces = pieces_of(pairs, packages, self._layout, self._circumstances)
        return self._packed(pieces, list(there.values()))

    def remember(self) -> None:
        """Keep in mind which layers are there, now that they have been delivered."""
        for key, known in self._known.items():
            _remember(key, known, self._delivery.place)

    def _there(self) -> dict[str, KnownLayer]:
        """The large packages that need not be installed, since what takes the image has their layers."""
        found: dict[str, tuple[str, KnownLayer]] = {}
        for package in self._lock.packages:
            key = key_of([package], self._circumstances)
            known = _recall(key)
            if key is not None and known is not None and known.bytes:
                found[package.name] = key, known
        in_order = sorted(found.items(), key=lambda item: (-item[1][1].bytes, item[1][1].what))
        there = self._delivery.has([known for _, (_, known) in in_order])
        kept = {name: known for name, (_, known) in found.items() if known in there}
        self._known |= {key: known for key, known in found.values() if known in there}
        return kept

    def _packed(self, pieces: Sequence[Piece], there: Sequence[KnownLayer]) -> list[tuple[Layer, str]]:
        """Pack and deliver, several at once."""
        scripts = {name: text for known in there for name, text in known.scripts.items()}
        for piece in pieces:
            scripts.update(piece.scripts)
        last = last_entries(dict(sorted(scripts.items())), self._layout)
        *others, small = pieces
        pieces = [*others, attrs.evolve(small, entries=(*small.entries, *last))]
        making: list[Future[Layer]] = [
            self._helpers.start(self._pack, number, piece) for number, piece in enumerate(pieces)
        ]
        new: list[KnownLayer] = []
        rest: list[KnownLayer] = []
        for piece, future in zip(pieces, making, strict=True):
            known = KnownLayer(
                what=piece.what, layer=future.result(), bytes=piece.bytes, scripts=piece.scripts
            )
            if piece.key is not None:
                self._known[piece.key] = known
            (new if piece.bytes else rest).append(known)
        return [(known.layer, known.what) for known in (*self._delivery.in_order(there, new), *rest)]

    def _pack(self, number: int, piece: Piece) -> Layer:
        known = None if piece.bytes else _recall(piece.key)
        if known is not None and self._delivery.compressed and self._delivery.has([known]):
            return known.layer
        self._tell(Progress(stage="pack", text=piece.what))
        file = self._folder / f"layer-{number}"
        layer = write_layer(piece.entries, file, compressed=self._delivery.compressed)
        self._delivery.take(layer, file, piece.what)
        return layer


def _file(key: str) -> Path:
    return cache.folder(cache.LAYERS) / f"{key[:40]}.{_FORMAT}.json"


def _recall(key: str | None) -> KnownLayer | None:
    """The layer that packages became before; None: none that is known, or a record that is damaged."""
    if key is None:
        return None
    try:
        said = json.loads(cache.used(_file(key)).read_text(encoding="utf-8"))
        return KnownLayer(
            what=said["what"],
            layer=Layer(**said["layer"]),
            bytes=said["bytes"],
            scripts=said["scripts"],
            places=tuple(said["places"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(key: str, known: KnownLayer, place: str) -> None:
    places = [*(other for other in known.places if other != place), place][-_MOST_PLACES:]
    with cache.keeping(_file(key)) as file:
        said = attrs.asdict(attrs.evolve(known, places=tuple(places)))
        file.write_text(json.dumps(said), encoding="utf-8")
