"""Bytecode beside every Python file of what was installed: :class:`Compiler`.

What was compiled once is kept, by distribution, and taken where the digest in the bytecode is that of the
source.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from upshift.images import cache
from upshift.images.building import bytecode
from upshift.images.building.installing import SCRIPTS, Installed
from upshift.images.building.packing import Layout

_PATIENCE = 0.5  # seconds after which whoever waits is asked whether to go on
_MOST_KEPT = 20 * 10**6  # bytes of a distribution; larger ones have layers that are known
_MOST = 8  # processes
_MAGIC = importlib.util.MAGIC_NUMBER.hex()
_DIGEST = slice(8, 16)  # of the source, in PEP 552's header


class Compiler:
    """Processes that compile in a folder. They start with it, since an interpreter takes a while."""

    def __init__(self, layout: Layout, folder: Path) -> None:
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
        """Put bytecode beside every Python file, once; what ``idle`` raises, called now and then, ends it."""
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
    """Whether the bytecode of a distribution was kept, fits, and is in its place now."""
    try:
        with zipfile.ZipFile(cache.used(_file(one, folder))) as archive:
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
    with cache.keeping(_file(one, folder)) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for file in files:
            compiled = _bytecode_of(packages / file)
            # Empty: it is no Python of this version.
            archive.writestr(file, compiled.read_bytes() if compiled.exists() else b"")


def _bytecode_of(file: Path) -> Path:
    return Path(bytecode.compiled_path(str(file)))


def _file(one: Installed, folder: Path) -> Path:
    return folder / f"{one.name}-{one.version}.zip".replace("/", "_")
