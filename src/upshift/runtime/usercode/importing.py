"""Import the user's modules as their files are now.

Python takes a module's cached bytecode for good where the time (in whole seconds) and the size of
the source agree with it: an edit within the second that keeps the size, ``x / 0`` to ``x / 2``, then
runs the old code. The bytecode's own time tells the two apart, to the tick of the file system's clock.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from typing import TYPE_CHECKING

from upshift.errors import is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import PathEntryFinder


class ExactLoader(SourceFileLoader):
    """Python's own loader, which does not believe in bytecode that is older than the source."""

    def get_data(self, path: str) -> bytes:
        """The content of the source, of its bytecode, or of a file beside it (``pkgutil.get_data``)."""
        if path.endswith(tuple(BYTECODE_SUFFIXES)) and older(path, self.path):
            raise FileNotFoundError(path)  # so it is compiled, and the bytecode written anew
        return super().get_data(path)


def older(bytecode: str, source: str) -> bool:
    """Whether bytecode was written before the source was, or at a time that cannot be told apart."""
    try:
        return os.stat(bytecode).st_mtime_ns <= os.stat(source).st_mtime_ns
    except (OSError, ValueError):
        return False


def older_bytecode(source: str, edited: int) -> bool:
    """Whether the cached bytecode of a source file is from before its last edit."""
    folder, _, name = source.rpartition(os.sep)
    try:
        before, after = _around(folder)
        return os.stat(f"{before}{name.rpartition('.')[0]}{after}").st_mtime_ns <= edited
    except (OSError, ValueError, NotImplementedError):  # no bytecode, or an interpreter that keeps none
        return False


@functools.cache
def _around(folder: str) -> tuple[str, str]:
    """What the path of cached bytecode has before and after the name of a module in this folder."""
    before, _, after = importlib.util.cache_from_source(os.path.join(folder, "*.py")).rpartition("*")
    return before, after


def watch(folder: str) -> None:
    """Import what is in this folder, at any depth, through :class:`ExactLoader` from now on."""
    hook = next((h for h in sys.path_hooks if isinstance(h, _Hook)), None)
    if hook is None:
        hook = _Hook()
        sys.path_hooks.insert(0, hook)
    if hook.add(folder):
        for known in [p for p in sys.path_importer_cache if hook.holds(p)]:
            del sys.path_importer_cache[known]


class _Hook:
    """An entry of ``sys.path_hooks``: finders for the user's folders."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._finder: Callable[[str], PathEntryFinder] = FileFinder.path_hook(
            (ExtensionFileLoader, EXTENSION_SUFFIXES),
            (ExactLoader, SOURCE_SUFFIXES),
            (SourcelessFileLoader, BYTECODE_SUFFIXES),
        )

    def add(self, folder: str) -> bool:
        if folder in self._folders:
            return False
        self._folders.add(folder)
        return True

    def holds(self, path: str) -> bool:
        inside = os.path.join(path, "")
        return any(
            inside.startswith(os.path.join(folder, "")) and is_user_file(inside, folder)
            for folder in self._folders
        )

    def __call__(self, path: str) -> PathEntryFinder:
        if not self.holds(path):
            raise ImportError(f"not the user's: {path}")
        return self._finder(path)
