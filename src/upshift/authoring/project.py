"""Where a pipeline's code is: the file, the project that it belongs to, and how it is imported."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from upshift.model.configuration import project_root
from upshift.model.spec.task import Code


def file_of(function: Callable[..., Any]) -> Path | None:
    """The file of the module that a function belongs to; None in a notebook or at a prompt."""
    module = sys.modules.get(function.__module__)
    name = getattr(module, "__file__", None) or function.__code__.co_filename
    path = Path(name)
    return path.absolute() if path.suffix == ".py" and path.is_file() and not _is_cell(path) else None


def project_of(function: Callable[..., Any]) -> Path:
    """The project of a function; in a notebook that of the working folder."""
    return project_root(file_of(function) or Path.cwd() / "notebook")


def places_of(function: Callable[..., Any]) -> tuple[Path, Path | None]:
    """The project of a function, and its file."""
    return project_of(function), file_of(function)


def code_of(function: Callable[..., Any]) -> Code:
    """The code that a pipeline's function belongs to."""
    from upshift.runtime.usercode import module_name

    file = file_of(function)
    project = project_of(function)
    entries = [] if file is None else [module_name(file)[1]]
    entries += _own_entries(project)
    return Code(
        project=str(project),
        paths=tuple(dict.fromkeys(os.path.relpath(entry, project) for entry in entries)),
        file=None if file is None else os.path.relpath(file, project),
    )


def begun_with(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """Globals of the modules that this process began with, as far as a pipeline's steps are concerned.

    They are the script or the file that was run, the pipeline's own, and those whose functions are on the
    way to its call, as in a test. At a prompt, in a notebook, and for an installed command, they are those
    that it has imported. Some of them may be Python's, or a package's.
    """
    from upshift.runtime.usercode import begun

    main = vars(sys.modules["__main__"])
    modules = [begun(), sys.modules.get(function.__module__)]
    if not _is_source(main):
        modules[:0] = [_module_of(main[name]) for name in list(main)]
    found = [main, *(vars(module) for module in modules if module is not None)]
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found.append(frame.f_globals)
        frame = frame.f_back
    return list({id(namespace): namespace for namespace in found if _is_source(namespace)}.values())


def _is_source(namespace: dict[str, Any]) -> bool:
    """Whether these are the globals of a module that has a source file; the script of a command is none."""
    return str(namespace.get("__file__")).endswith(".py")


def _module_of(value: Any) -> ModuleType | None:
    """A module, or the one of a function or class."""
    if isinstance(value, ModuleType):
        return value
    return sys.modules.get(value.__module__) if isinstance(value, (FunctionType, type)) else None


def _own_entries(project: Path) -> list[Path]:
    """The entries of ``sys.path`` inside the project that are no installed packages."""
    installed = [Path(p).absolute() for p in (sys.prefix, sys.base_prefix, *site.getsitepackages())]
    entries = []
    for entry in sys.path:
        folder = Path(entry or ".").absolute()
        inside = folder == project or project in folder.parents
        if inside and folder.is_dir() and not any(p == folder or p in folder.parents for p in installed):
            entries.append(folder)
    return entries


def _is_cell(path: Path) -> bool:
    # ipykernel gives each cell a file name below this folder, and may write it there for debuggers.
    return any(part.startswith("ipykernel_") for part in path.parts)
