"""What analysis cannot resolve: the whole module counts, or the whole project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from upshift.authoring.fingerprint.digests import combined
from upshift.authoring.fingerprint.facts import Facts, Import
from upshift.authoring.fingerprint.nodes import Node
from upshift.authoring.fingerprint.scope import Scope
from upshift.authoring.fingerprint.sources import PROJECT, Module
from upshift.authoring.fingerprint.values import is_module
from upshift.worker.usercode import module_name

if TYPE_CHECKING:
    from upshift.authoring.fingerprint.walk import Walk

_OWN_MODULE = frozenset({("builtins", "eval"), ("builtins", "exec"), ("builtins", "globals")})

_PROJECT = frozenset(
    {
        ("builtins", "__import__"), ("importlib", "import_module"), ("importlib", "__import__"),
        ("importlib", "reload"), ("importlib.util", "spec_from_file_location"),
        ("importlib._bootstrap_external", "spec_from_file_location"),
        ("importlib.util", "module_from_spec"), ("_frozen_importlib", "module_from_spec"),
        ("_frozen_importlib_external", "spec_from_file_location"),
        ("importlib._bootstrap", "module_from_spec"),
        ("pkgutil", "iter_modules"), ("pkgutil", "walk_packages"), ("pkgutil", "resolve_name"),
        ("runpy", "run_module"), ("runpy", "run_path"),
        ("_pickle", "load"), ("_pickle", "loads"), ("_pickle", "Unpickler"),
        ("pickle", "_load"), ("pickle", "_loads"), ("pickle", "_Unpickler"),
        ("joblib.numpy_pickle", "load"), ("dill._dill", "load"), ("dill._dill", "loads"),
        ("sys", "_getframe"), ("inspect", "currentframe"), ("inspect", "stack"), ("gc", "get_objects"),
    }
)  # fmt: skip
_NOT_SOURCE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


def widening_of(value: Any) -> tuple[str, bool] | None:
    """What using a live object makes undecidable: its name, and whether it is the whole project."""
    if value is sys.modules:
        return "sys.modules", True
    if type(value) not in (BuiltinFunctionType, FunctionType, type):
        return None
    key = (value.__module__, value.__qualname__)
    if key in _OWN_MODULE:
        return value.__name__, False
    return (value.__name__, True) if key in _PROJECT else None


def expand_widened(walk: Walk, node: Node, module: Module, reason: str, deep: bool) -> None:
    """Fill in the node of everything in a module.

    Parameters
    ----------
    deep
        Whether the modules that it imports may be reached through it: ``eval("helpers.f()")``.
    """
    from upshift.authoring.fingerprint.names import resolve, through

    node.next.append(walk.module(module))
    facts = walk.sources.facts(module.file)
    title = f"all of {module.name} ({module.shown}): {reason}"
    scope = Scope(module)
    if facts is not None:
        whole = facts.whole
        parts = [whole.digest, *(decorator.digest for decorator in whole.decorators)]
        node.add(title, combined(parts), whole.documented)
        node.reflects |= "__doc__" in whole.attributes
        walk.uses(node, scope, whole.uses)
        for decorator in whole.decorators:
            walk.uses(node, scope, decorator.uses)
    elif module.file is not None:
        node.add(title, combined([repr(walk.sources.content(module.file))]))
    for name, value in list((module.namespace or {}).items()):
        if name.startswith("__") and name.endswith("__"):
            continue
        imported = facts is not None and _is_imported(facts, name)
        if not is_module(value):
            if deep or not imported:
                resolve(walk, node, scope, ((name,), None, True))
        elif deep and walk.sources.kind(vars(value))[0] == PROJECT:
            node.next.append(walk.widened(walk.sources.of_namespace(vars(value)), reason, deep=True))
        elif deep:
            through(walk, node, value, (), True, module)


def _is_imported(facts: Facts, name: str) -> bool:
    bound = facts.bound(name)
    return bool(bound) and all(isinstance(what, Import) for what in bound)


def expand_project(walk: Walk, node: Node, reason: str) -> None:
    """Fill in the node of every module of the project."""
    loaded = {
        file: module
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and isinstance(file := vars(module).get("__file__"), str)
    }
    for file in _python_files(walk.project):
        live = loaded.get(file)
        if live is not None:
            module = walk.sources.of_namespace(vars(live))
        else:
            name = module_name(Path(file))[0]
            package = name if file.endswith("__init__.py") else name.rpartition(".")[0]
            module = walk.sources.unimported(name, file, package)
        node.next.append(walk.widened(module, reason))


def _python_files(project: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(project.absolute()):
        if "pyvenv.cfg" in files:
            folders[:] = []
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _NOT_SOURCE)
        yield from (os.path.join(folder, file) for file in sorted(files) if file.endswith(".py"))
