"""Where a pipeline's code is: the file, the project that it belongs to, and how it is imported."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upshift.config.home import project_root
from upshift.spec.task import Code


def file_of(function: Callable[..., Any]) -> Path | None:
    """The file of the module that a function belongs to; None in a notebook or at a prompt."""
    module = sys.modules.get(function.__module__)
    name = getattr(module, "__file__", None) or function.__code__.co_filename
    path = Path(name)
    return path.absolute() if path.suffix == ".py" and path.is_file() and not _is_cell(path) else None


def project_of(function: Callable[..., Any]) -> Path:
    """The project of a function; in a notebook that of the working folder."""
    return project_root(file_of(function) or Path.cwd() / "notebook")


def code_of(function: Callable[..., Any]) -> Code:
    """The code that a pipeline's function belongs to."""
    from upshift.worker.usercode import module_name

    file = file_of(function)
    project = project_of(function)
    entries = [] if file is None else [module_name(file)[1]]
    entries += _own_entries(project)
    return Code(
        project=str(project),
        paths=tuple(dict.fromkeys(os.path.relpath(entry, project) for entry in entries)),
        file=None if file is None else os.path.relpath(file, project),
    )


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
