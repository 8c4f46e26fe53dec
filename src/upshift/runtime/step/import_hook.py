"""Does something before a module of a given name is executed, and after: whoever imports it, and whenever.

The hook is an entry of ``sys.meta_path`` that finds what the others find. The loader of a module stays as it
is, but for one method of that one object, until it is called.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

HOOK: Final = __file__
"""The file whose frames are between an import and what it calls."""


def _nothing() -> None: ...


class ImportHook:
    """Calls ``before()`` and ``after(name, module)`` around the import of each module that is ``wanted``."""

    def __init__(
        self,
        wanted: Callable[[str], bool],
        *,
        before: Callable[[], None] = _nothing,
        after: Callable[[str, ModuleType], None],
    ) -> None:
        self._wanted = wanted
        self._before = before
        self._after = after

    def begin(self) -> None:
        """Watch imports from now on."""
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Watch imports no longer."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find, with a loader that calls us."""
        if not self._wanted(name):
            return None
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._surround(spec.loader, name)
                return spec
        return None

    def _surround(self, loader: Any, name: str) -> None:
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            if module.__name__ != name:  # one loader for all modules of a zip file
                execute(module)
                return
            vars(loader).pop("exec_module", None)
            self._before()
            execute(module)
            self._after(name, module)

        with contextlib.suppress(AttributeError, TypeError):  # it takes no attributes: nobody will know
            loader.exec_module = executed
