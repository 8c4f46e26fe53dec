"""What a step process calls: a function by name where it can be imported, else by value."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upshift.model.spec.task import EntryPoint
from upshift.runtime.storage import artifacts
from upshift.runtime.storage.store import Store
from upshift.runtime.usercode import cells
from upshift.runtime.usercode import modules as usercode

_NOTEBOOK = "notebook"
"""What ``__main__`` counts as where it has no file."""


def entry_point(function: Callable[..., Any], store: Store) -> EntryPoint:
    """The entry point of a step's function.

    Parameters
    ----------
    function
        The plain function.
    store
        Where the function itself goes if it travels by value: defined inside another function, in
        a notebook, under ``if __name__ == "__main__"``, or no longer what its module knows by its
        name.

    Raises
    ------
    NotSerializable
        It has to travel by value, and cannot: it refers to an open file, a lock, ….
    """
    module = function.__module__
    named = usercode.main_module_name() if module == "__main__" else module
    if named is not None and importable(function) and not _main_only(function):
        return EntryPoint(module=named, qualname=function.__qualname__)
    return EntryPoint(
        module=named or _NOTEBOOK,
        qualname=function.__qualname__,
        payload=artifacts.save(function, store, name=function.__name__),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        cells=cells.save(function, store),
    )


def importable(function: Callable[..., Any]) -> bool:
    """Whether the function's module knows it by its name, decorators of ours removed."""
    module = sys.modules.get(function.__module__)
    if module is None:
        return False
    try:
        return usercode.resolve(module, function.__qualname__) is function
    except AttributeError:
        return False


def _main_only(function: Callable[..., Any]) -> bool:
    """Whether the function is there only when its file is run, not when it is imported."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    code = function.__code__
    if file is None or sys.modules.get(function.__module__) is not main or code.co_filename != file:
        return False
    return any(first <= code.co_firstlineno <= last for first, last in _guarded(file))


@functools.cache
def _guarded(file: str) -> tuple[tuple[int, int], ...]:
    """The first and last lines of what stands under ``if __name__ == "__main__"``."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError):  # changed since it was run
        return ()
    return tuple(
        (node.lineno, node.body[-1].end_lineno or 0)
        for node in tree.body
        if isinstance(node, ast.If) and _asks_for_main(node.test)
    )


def _asks_for_main(test: ast.expr) -> bool:
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
    return "__name__" in names and any(
        isinstance(part, ast.Constant) and part.value == "__main__" for part in ast.walk(test)
    )
