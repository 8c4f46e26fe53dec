"""The layers of one image, installed, packed and pushed, but for those that are there: :class:`Making`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from upshift.images.base import Contents, Ingredients, Progress, Recipe
from upshift.images.daemonless.compiling import Compiler
from upshift.images.daemonless.installing import Installer, Present, platform_of
from upshift.images.daemonless.known_layers import KnownLayer, KnownLayers
from upshift.images.daemonless.layers import Layer, write_layer
from upshift.images.daemonless.layout import Layout
from upshift.images.daemonless.packing import Piece, join_namespaces, last_entries, pieces_of
from upshift.images.daemonless.pushing import Push


class Making:
    """Makes the layers of one image.

    Parameters
    ----------
    ingredients, contents, layout
        Of the image.
    folder
        Where it works.
    push
        Where layers go.
    """

    def __init__(
        self, ingredients: Ingredients, contents: Contents, layout: Layout, folder: Path, push: Push
    ) -> None:
        recipe = ingredients.recipe
        self.layout = layout
        self._folder = folder
        self._rebuild = ingredients.rebuild
        self._push = push
        self._installer = Installer(
            recipe, ingredients.paths, contents, folder, where=ingredients.origins.get("requirements")
        )
        self._new: list[KnownLayer] = []
        self._groups: list[KnownLayer] = []
        self._known = KnownLayers(_circumstances(recipe, contents, layout))

    def layers(self) -> list[tuple[Layer, str]]:
        """All of them, each with what is in it; they are being pushed when this returns."""
        tell = self._push.tell
        tell(Progress(stage="resolve", text="requirements"))
        there = self._there() if self._known.any() and not self._rebuild else []
        for known in there:
            self._installer.lay(Present(name=known.name, version=known.version, metadata=known.metadata))
        packages = self._installer.packages
        with contextlib.ExitStack() as stack:
            compiler = None
            if self.layout.compiles:
                compiler = stack.enter_context(Compiler(self.layout, self._folder))
            installed = self._installer.install(tell)
            join_namespaces(installed, packages)
            if compiler is not None:
                said = Progress(stage="pack", text="bytecode")
                compiler.compile(installed, packages, idle=lambda: tell(said))
        replaced = {one.name for one in self._installer.replaced()}
        there = [known for known in there if known.name not in replaced]
        return self._packed(pieces_of(installed, packages, self.layout), there)

    def remember(self) -> None:
        """Keep in mind which layers the registry has, now that they have been pushed."""
        for known in (*self._new, *self._groups):
            self._known.remember(known, self._push.repository.name)

    def _there(self) -> list[KnownLayer]:
        """What would be installed and is in a layer that the registry has."""
        forecast = self._installer.forecast(self._push.tell)
        known = [record for name, version in forecast if (record := self._known.find(name, version))]
        return [one for one in known if self._push.has(one.layer.digest, one.places)]

    def _packed(self, pieces: Sequence[Piece], there: Sequence[KnownLayer]) -> list[tuple[Layer, str]]:
        """Pack and push, several at once; the large ones by size, whether they are new or not."""
        scripts = {name: text for known in there for name, text in known.scripts.items()}
        for piece in pieces:
            scripts.update(piece.scripts)
        last = last_entries(dict(sorted(scripts.items())), self.layout)
        *others, small = pieces
        pieces = [*others, attrs.evolve(small, entries=(*small.entries, *last))]
        making = [self._push.helpers.start(self._pack, number, piece) for number, piece in enumerate(pieces)]
        made = [future.result() for future in making]
        self._new = list(there)
        rest = []
        for piece, layer in zip(pieces, made, strict=True):
            if (one := piece.distribution) is None:
                rest.append((layer, piece.what))
                if piece.group is not None:
                    self._groups.append(
                        KnownLayer(name=piece.group, version="", metadata="", layer=layer, installed_bytes=0)
                    )
                continue
            self._new.append(
                KnownLayer(
                    name=one.name,
                    version=one.version,
                    metadata=one.metadata,
                    layer=layer,
                    installed_bytes=one.bytes,
                    scripts=piece.scripts,
                )
            )
        large = sorted(self._new, key=lambda known: (-known.installed_bytes, known.name))
        return [*((known.layer, known.what) for known in large), *rest]

    def _pack(self, number: int, piece: Piece) -> Layer:
        group = self._known.find(piece.group, "") if piece.group and not self._rebuild else None
        if group is not None and self._push.has(group.layer.digest, group.places):
            return group.layer
        self._push.tell(Progress(stage="pack", text=piece.what))
        file = self._folder / f"layer-{number}.tar.gz"
        layer = write_layer(piece.entries, file)
        self._push.helpers.start(self._push.layer, layer, file, piece.what)
        return layer


def _circumstances(recipe: Recipe, contents: Contents, layout: Layout) -> list[object]:
    """All but its name and version that decides what a distribution from an index consists of."""
    indexes = [line for line in recipe.requirements if line.startswith("-")]
    configured = [repr(sorted((k, v) for k, v in os.environ.items() if k.startswith("UV_"))).encode()]
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for file in (folder / "uv/uv.toml", Path("/etc/uv/uv.toml")):
        configured.append(file.read_bytes() if file.is_file() else b"")
    secret = hashlib.sha256(b"\0".join(configured)).hexdigest()
    return [
        platform_of(recipe.platform, contents.glibc),
        layout.python,
        layout.compiles,
        layout.place("share"),
        layout.site,
        indexes,
        list(recipe.installer_args),
        secret,
    ]
