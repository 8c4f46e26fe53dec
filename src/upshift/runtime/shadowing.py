"""Names that mean something else than the user meant: a module that a file hides, a name never imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType

import upshift
from upshift.errors import LoadError, is_user_file


def advice(error: BaseException, project: str | None = None) -> str | None:
    """Which file to rename or which name to import, if that is behind an exception; None: it is not."""
    renaming = _renaming(error, project)
    if renaming is None and isinstance(error, NameError) and error.name in upshift.__all__:
        return f"Import it: from upshift import {error.name}"
    return renaming


def load_error(error: Exception) -> LoadError | None:
    """The error to show, if an exception in the middle of Upshift is because of such a file.

    Or because only a part of Upshift travels with a step: where that is, no engine can be imported.
    """
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("upshift."):
        return LoadError(
            f"this needs {error.name}, which does not travel with a step",
            why="A step that runs elsewhere has only the runtime beside it: no engine could run a pipeline.",
            fix="Call the steps as functions, or start the run where the pipeline was started.",
        )
    fix = _renaming(error)
    if fix is None:
        return None
    of_ours = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "upshift"
    return LoadError("Upshift cannot be imported" if of_ours else f"{type(error).__name__}: {error}", fix=fix)


def _renaming(error: BaseException, project: str | None = None) -> str | None:
    """Which file to rename: one that is imported in place of Python's own module, or of a package's."""
    for name, file in _concerned(error):
        if is_user_file(file, project) and (owner := _owner(name, file, project)) is not None:
            return f"{file} hides {owner}: rename it."
    return None


def _concerned(error: BaseException) -> Iterator[tuple[str, str]]:
    """The modules, by name and file, that an exception and its causes are about."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        pending += [one.__cause__, one.__context__]
        name = file = None
        if isinstance(one, ImportError) and one.name:
            name = one.name.partition(".")[0]
            if name == "upshift":  # what it stumbled over is not told, where a module gives names on demand
                yield from _imported()
            file = one.path or getattr(sys.modules.get(name), "__file__", None)
        elif isinstance(one, AttributeError) and isinstance(one.obj, ModuleType):
            name, file = one.obj.__name__.partition(".")[0], one.obj.__file__
        if name and file:
            yield name, file


def _imported() -> Iterator[tuple[str, str]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and "." not in name:
            yield name, file


def _owner(name: str, file: str, project: str | None) -> str | None:
    """Whose module else this name means; None: nobody's."""
    if name in sys.stdlib_module_names:
        return f"Python's own module {name}"
    others = [entry for entry in sys.path if not is_user_file(os.path.join(entry, "_.py"), project)]
    spec = PathFinder.find_spec(name, others)
    known = spec is not None and spec.origin not in (None, file)
    return f"the installed package {name}" if known else None
