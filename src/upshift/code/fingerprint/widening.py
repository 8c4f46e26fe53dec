"""What analysis cannot resolve: the whole module counts, or the whole project."""

from __future__ import annotations

import abc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import Facts, Import
from upshift.code.fingerprint.nodes import Node
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PROJECT, Module
from upshift.code.fingerprint.values import is_module
from upshift.runtime.usercode.modules import module_name

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

_NAMES = frozenset({("builtins", "eval"), ("builtins", "exec"), ("builtins", "globals")})
"""What gets at every name of the module that calls it."""

_LOADERS = frozenset(
    {
        "importlib", "importlib.util", "importlib._bootstrap", "importlib._bootstrap_external",
        "_frozen_importlib", "_frozen_importlib_external", "importlib.machinery", "importlib.abc",
        "importlib._abc", "importlib.metadata", "imp", "_imp", "zipimport", "pkgutil", "runpy", "pydoc",
        "doctest", "unittest.loader", "modulefinder", "code",
    }
)  # fmt: skip
"""Modules of Python whose business is to find code by name."""
_NO_LOADERS = frozenset(
    {
        ("importlib", "invalidate_caches"), ("importlib.util", "cache_from_source"),
        ("importlib.metadata", "version"), ("importlib.metadata", "metadata"),
        ("importlib.metadata", "requires"), ("importlib.metadata", "PackageNotFoundError"),
        ("pkgutil", "get_data"), ("pkgutil", "extend_path"),
    }
)  # fmt: skip
_PROJECT = frozenset(
    {
        ("builtins", "__import__"), ("builtins", "eval"), ("builtins", "exec"),
        ("logging.config", "BaseConfigurator"),
        ("_pickle", "load"), ("_pickle", "loads"), ("_pickle", "Unpickler"),
        ("pickle", "_load"), ("pickle", "_loads"), ("pickle", "_Unpickler"),
        ("joblib.numpy_pickle", "load"), ("dill._dill", "load"), ("dill._dill", "loads"),
        ("sys", "_getframe"), ("inspect", "currentframe"), ("inspect", "stack"), ("inspect", "trace"),
        ("inspect", "getmodule"), ("inspect", "getclosurevars"), ("sys", "_current_frames"),
        ("gc", "get_objects"), ("gc", "get_referents"), ("gc", "get_referrers"),
    }
)  # fmt: skip
_OWNERS = _LOADERS | {owner for owner, _ in _NAMES | _PROJECT}
FRAMES = frozenset(
    {
        "__globals__", "__builtins__", "f_globals", "f_builtins", "f_locals", "f_back", "tb_frame",
        "gi_frame", "cr_frame", "ag_frame", "load_module", "exec_module", "find_spec", "find_module",
        "find_loader",
    }
)  # fmt: skip
"""Names of attributes by which code gets at all that a module has, or at modules."""
_NOT_SOURCE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


class Widening(NamedTuple):
    """What cannot be told before it runs, and how much counts therefore.

    Parameters
    ----------
    reason
        What is used, for people.
    module, project
        Whether it is all of the module that uses it, and of what this one imports; and of the project.
    """

    reason: str
    module: bool
    project: bool


def widening_of(value: Any) -> Widening | None:
    """What using a live object makes undecidable."""
    if value is sys.modules:
        return Widening("sys.modules", module=False, project=True)
    if type(value) not in (BuiltinFunctionType, FunctionType, type, abc.ABCMeta):
        return None
    owner = value.__module__
    if owner not in _OWNERS:  # nearly all
        return None
    name = value.__qualname__
    key = (owner, name)
    names = key in _NAMES
    loads = key in _PROJECT or (owner in _LOADERS and key not in _NO_LOADERS)
    return Widening(name, names, loads) if names or loads else None


def is_loader(module: ModuleType) -> bool:
    """Whether who gets a module of Python may import anything."""
    return module.__name__ in _LOADERS


def expand_widened(walk: Walk, node: Node, module: Module, reason: str, deep: bool) -> None:
    """Fill in the node of everything in a module.

    Parameters
    ----------
    deep
        Whether the modules that it imports may be reached through it: ``eval("helpers.f()")``.
    """
    from upshift.code.fingerprint.names import resolve, through

    node.next.append(walk.module(module))
    facts = walk.sources.facts(module.file)
    title = f"all of {module.name} ({module.shown}): {reason}"
    scope = Scope(module)
    if facts is not None:
        whole = facts.whole
        parts = [whole.digest, *(decorator.digest for decorator in whole.decorators)]
        node.add(title, combined([*parts, whole.documented]))
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
        elif deep and (owner := walk.sources.of_namespace(vars(value))).kind == PROJECT:
            node.next.append(walk.widened(owner, reason, deep=True))
        elif deep:
            through(walk, node, value, (), True, module)


def _is_imported(facts: Facts, name: str) -> bool:
    bound = facts.bound(name)
    return bool(bound) and all(isinstance(what, Import) for what in bound)


def expand_project(walk: Walk, node: Node) -> None:
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
        node.next.append(walk.widened(module, "may be found by its name"))


def _python_files(project: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(project.absolute()):
        if "pyvenv.cfg" in files:
            folders[:] = []
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _NOT_SOURCE)
        yield from (os.path.join(folder, file) for file in sorted(files) if file.endswith(".py"))
