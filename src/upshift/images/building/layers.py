"""The layers of one image (:class:`LayerBuilder`), with bytecode for every Python file (:class:`Compiler`).

::

    lock ── minus layers that the destination has ──▶ install ──▶ compile ──▶ pack ──▶ deliver

Bytecode is cached by distribution, and reused where the digest that it holds is that of the source.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

import attrs

from upshift.images import cache
from upshift.images.base import Contents, Ingredients, Lock, Progress, Tell
from upshift.images.building import bytecode
from upshift.images.building.delivery import BuildThreads, Delivery, KnownLayer
from upshift.images.building.packages import SCRIPTS, CompileIn, Installed, Installer
from upshift.images.building.packing import (
    ImageLayout,
    Layer,
    LayerContent,
    join_namespaces,
    key_of,
    last_entries,
    layer_contents,
    write_layer,
)
from upshift.images.uv import platform_of

_FORMAT = 2
_MOST_PLACES = 8
_PATIENCE = 0.5  # seconds between two checks whether the image is still wanted
_MOST_KEPT = 20 * 10**6  # bytes of a distribution whose bytecode is cached; larger ones have cached layers
_MOST = 8  # processes that compile
_MAGIC = importlib.util.MAGIC_NUMBER.hex()
_DIGEST = slice(8, 16)  # of the source, in PEP 552's header


@attrs.define(slots=False, eq=False)
class LayerBuilder:
    """Builds the layers of one image that its destination lacks."""

    _ingredients: Ingredients
    _contents: Contents
    _layout: ImageLayout
    _lock: Lock
    _folder: Path
    _delivery: Delivery
    _threads: BuildThreads
    _tell: Tell
    _compile_in: CompileIn | None
    _compile_here: bool
    _known: dict[str, KnownLayer] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        recipe, layout = self._ingredients.recipe, self._layout
        self._installer = Installer(
            recipe,
            self._ingredients.paths,
            self._contents,
            self._folder,
            where=self._ingredients.origins.get("requirements"),
            compile_in=self._compile_in,
            compile_here=self._compile_here,
        )
        platform = platform_of(recipe.platform, self._contents.glibc)
        where = [layout.compiles, layout.place("share"), layout.site]
        self._variant = json.dumps([platform, layout.python, *where, recipe.installer_args])

    def layers(self) -> list[tuple[Layer, str]]:
        """All layers, each with a description; when this returns, new ones are being delivered."""
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
        contents = layer_contents(pairs, packages, self._layout, self._variant)
        return self._packed(contents, list(there.values()))

    def remember(self) -> None:
        """Record which layers the destination has, now that they have been delivered."""
        for key, known in self._known.items():
            others = [place for place in known.places if place != self._delivery.place]
            places = (*others, self._delivery.place)[-_MOST_PLACES:]
            cache.remember(_file(key), json.dumps(attrs.asdict(attrs.evolve(known, places=places))))

    def _there(self) -> dict[str, KnownLayer]:
        """The large packages whose layers the destination has, so that they need not be installed."""
        found: dict[str, tuple[str, KnownLayer]] = {}
        for package in self._lock.packages:
            key = key_of([package], self._variant)
            known = _recall(key)
            if key is not None and known is not None and known.bytes:
                found[package.name] = key, known
        in_order = sorted(found.items(), key=lambda item: (-item[1][1].bytes, item[1][1].what))
        there = self._delivery.has([known for _, (_, known) in in_order])
        kept = {name: known for name, (_, known) in found.items() if known in there}
        self._known |= {key: known for key, known in found.values() if known in there}
        return kept

    def _packed(
        self, contents: Sequence[LayerContent], there: Sequence[KnownLayer]
    ) -> list[tuple[Layer, str]]:
        """Pack and deliver, several layers at once."""
        scripts = {name: text for known in there for name, text in known.scripts.items()}
        for content in contents:
            scripts.update(content.scripts)
        last = last_entries(dict(sorted(scripts.items())), self._layout)
        *others, small = contents
        contents = [*others, attrs.evolve(small, entries=(*small.entries, *last))]
        packing: list[Future[Layer]] = [
            self._threads.start(self._pack, number, content) for number, content in enumerate(contents)
        ]
        new: list[KnownLayer] = []
        rest: list[KnownLayer] = []
        for content, future in zip(contents, packing, strict=True):
            known = KnownLayer(
                what=content.what, layer=future.result(), bytes=content.bytes, scripts=content.scripts
            )
            if content.key is not None:
                self._known[content.key] = known
            (new if content.bytes else rest).append(known)
        return [(known.layer, known.what) for known in (*self._delivery.in_order(there, new), *rest)]

    def _pack(self, number: int, content: LayerContent) -> Layer:
        known = None if content.bytes else _recall(content.key)
        if known is not None and self._delivery.compressed and self._delivery.has([known]):
            return known.layer
        self._tell(Progress(stage="pack", text=content.what))
        file = self._folder / f"layer-{number}"
        layer = write_layer(content.entries, file, compressed=self._delivery.compressed)
        self._delivery.take(layer, file, content.what)
        return layer


def _file(key: str) -> Path:
    return cache.folder(cache.LAYERS) / f"{key[:40]}.{_FORMAT}.json"


def _recall(key: str | None) -> KnownLayer | None:
    """The layer that packages were packed into before; None: none is known, or its record is damaged."""

    def read(text: str) -> KnownLayer:
        said = json.loads(text)
        layer, places = Layer(**said.pop("layer")), tuple(said.pop("places"))
        return KnownLayer(**said, layer=layer, places=places)

    return None if key is None else cache.recalled(_file(key), read)


class Compiler:
    """Processes that compile in a folder. They start at once, since an interpreter takes a while to start."""

    def __init__(self, layout: ImageLayout, folder: Path) -> None:
        self._layout = layout
        self._kept = cache.folder(cache.BYTECODE) / _MAGIC / layout.site.strip("/").replace("/", "-")
        self._said = open(folder / "compiling.err", "w+b")  # noqa: SIM115
        # Python 3.10 writes sets in the order that they happen to have.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment["PYTHONHASHSEED"] = "0"
        program = Path(bytecode.__file__).read_text(encoding="utf-8")
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-sS", "-W", "ignore", "-c", program],
                stdin=subprocess.PIPE,
                stderr=self._said,
                env=environment,
                cwd=folder,
            )
            for _ in range(min(len(os.sched_getaffinity(0)), _MOST))
        ]

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        self._said.close()

    def compile(self, installed: Iterable[Installed], packages: Path, *, idle: Callable[[], None]) -> None:
        """Put bytecode beside every Python file; ``idle`` is called now and then, and may raise to end it."""
        new = [
            (one, files)
            for one in installed
            if (files := _sources(one)) and not _taken(one, files, packages, self._kept)
        ]
        files = [file for _, files in new for file in files]
        lines = [f"{packages / file}\t{self._layout.site}/{file}\n".encode() for file in files]
        if not lines:
            return
        for number, process in enumerate(self._processes):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(b"".join(lines[number :: len(self._processes)]))
        for process in self._processes:
            _wait(process, idle)
        if any(process.returncode for process in self._processes):
            self._said.seek(0)
            words = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"bytecode: {words or 'a process was killed'}")
        for one, files in new:
            if one.bytes <= _MOST_KEPT:
                _keep(one, files, packages, self._kept)


def _sources(one: Installed) -> list[str]:
    return [
        file
        for file in one.files
        if file.endswith(".py") and not file.startswith(f"{SCRIPTS}/") and file.isprintable()
    ]


def _wait(process: subprocess.Popen[bytes], idle: Callable[[], None]) -> None:
    while True:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            idle()
        else:
            return


def _taken(one: Installed, files: Sequence[str], packages: Path, folder: Path) -> bool:
    """Put cached bytecode of a distribution beside its files; False: there is none that fits."""
    try:
        with zipfile.ZipFile(cache.used(_bytecode_file(one, folder))) as archive:
            kept = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile, ValueError, EOFError):
        return False
    if kept.keys() != set(files):
        return False
    for file, data in kept.items():
        if data and data[_DIGEST] != importlib.util.source_hash((packages / file).read_bytes()):
            return False
    for file, data in kept.items():
        if data:
            target = _bytecode_of(packages / file)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
    return True


def _keep(one: Installed, files: Sequence[str], packages: Path, folder: Path) -> None:
    with cache.keeping(_bytecode_file(one, folder)) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for file in files:
            compiled = _bytecode_of(packages / file)
            # Empty: it is not valid Python of this version.
            archive.writestr(file, compiled.read_bytes() if compiled.exists() else b"")


def _bytecode_of(file: Path) -> Path:
    return Path(bytecode.compiled_path(str(file)))


def _bytecode_file(one: Installed, folder: Path) -> Path:
    return folder / f"{one.name}-{one.version}.zip".replace("/", "_")
