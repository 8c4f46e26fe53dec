"""Fingerprints of several functions that are analysed together."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.methods import expand_method
from upshift.code.fingerprint.nodes import (
    ACTS,
    MODULE,
    READS_SOURCE,
    REFLECTS,
    SUBCLASSES,
    Node,
    marks_of,
    reachable,
)
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, Module
from upshift.code.fingerprint.toplevel import is_upshift
from upshift.code.fingerprint.walk import Walk
from upshift.runtime.storage.edits import Stamp


class Analysis:
    """Makes fingerprints; what several functions share is analysed once.

    Values are read as they are now: an analysis is for one moment, such as the composition of a
    pipeline, and is then thrown away.

    Parameters
    ----------
    project
        Folder of the project.
    begun
        Globals of the modules that the process began with: what importing them did, and what they import
        in turn, is there before any step runs, and counts for each.
    """

    def __init__(self, project: Path, begun: Iterable[dict[str, Any]] = ()) -> None:
        walk = self._walk = Walk(project)
        own = [namespace for namespace in begun if walk.sources.of_namespace(namespace).kind == PROJECT]
        self._modules = list(dict.fromkeys(walk.sources.of_namespace(namespace) for namespace in own))
        self._begun = [walk.module(module) for module in self._modules]

    def function(self, function: Any) -> dict[str, str]:
        """The fingerprint of a function, a class, or anything else that can be called."""
        # Everything that is made here stays until the end: looking for garbage among it takes long.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._entries([*self._start(function), *self._begun])
        finally:
            if collecting:
                gc.enable()

    @property
    def stamps(self) -> Mapping[str, Stamp]:
        """The files that were read so far, as they were."""
        return self._walk.sources.stamps

    def needed(self) -> dict[str, str]:
        """The modules that the process began with, if they or what they import change more than their names.

        Returns
        -------
        dict
            Name to file. Whoever runs a step elsewhere has to import them first.
        """
        if not any(node.marks & ACTS and node.marks & MODULE for node in reachable(self._begun)):
            return {}
        return {module.name: module.file for module in self._modules if module.file is not None}

    def named(self, name: str) -> dict[str, str]:
        """The fingerprint of a class or function that a pickle names: ``module:qualname``.

        Nothing is imported for it. Of a module that is not imported all counts.
        """
        module, _, qualname = name.partition(":")
        live = sys.modules.get(module)
        if live is None:
            return self._entries([self._unimported(module)])
        found: Any = live
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type) or type(found) is FunctionType:
            return self.function(found)
        owner = self._walk.sources.of_namespace(vars(live))
        if owner.kind == PACKAGE:
            return self._entries([self._walk.package(owner.version)])
        if owner.kind == PROJECT and module != "__main__":  # what a notebook defines travels by value
            return self._entries([self._whole(owner)])
        return self._entries([])

    def _unimported(self, name: str) -> Node:
        found = self._walk.sources.find(name)
        if isinstance(found, Module):
            return self._whole(found)
        return self._walk.package(found) if found else self._walk.everything()

    def _whole(self, module: Module) -> Node:
        return self._walk.widened(module, "named by a pickle", deep=True)

    def _start(self, function: Any) -> list[Node]:
        walk = self._walk
        owner: type | None = None
        held: list[Node] = []
        if type(function) is MethodType:
            bound, function = function.__self__, function.__func__
            owner = bound if isinstance(bound, type) else type(bound)
            if not any(is_upshift(base) for base in owner.__mro__):  # a flow's own state comes as input
                held = [walk.value(bound, f"the object of {owner.__qualname__}.{function.__name__}")]
        plain = getattr(function, "__wrapped__", None) if not isinstance(function, type) else None
        start = [*held, *([walk.code(plain)] if type(plain) is FunctionType else [])]
        if type(function) is FunctionType or isinstance(function, type):
            start.append(walk.code(function))
        else:
            start.append(walk.value(function, f"{type(function).__qualname__} itself"))
        method = plain if type(plain) is FunctionType else function
        if type(method) is FunctionType:
            start.append(Node(expand_method, walk, method, owner))
        return start

    def _entries(self, start: list[Node]) -> dict[str, str]:
        nodes = self._with_subclasses(start)
        marks = marks_of(nodes)
        found: dict[str, str] = {}
        several: dict[str, set[str]] = {}
        for node in nodes:
            for name, digest, with_docstrings in node.entries:
                if with_docstrings and marks & REFLECTS:
                    digest = combined([digest, with_docstrings])
                elif not digest:
                    continue
                known = found.setdefault(name, digest)
                if known is not digest and known != digest:
                    several.setdefault(name, {known}).add(digest)
        found.update({name: combined(sorted(digests)) for name, digests in several.items()})
        if marks & READS_SOURCE:
            found.update(self._walk.sources.texts())
        self._walk.sources.save()
        entries = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
        entries.update(sorted(found.items()))
        return entries

    def _with_subclasses(self, start: list[Node]) -> list[Node]:
        """Reached code; with all subclasses of reached classes, where it asks for subclasses."""
        while True:
            nodes = reachable(start)
            if not marks_of(nodes) & SUBCLASSES:
                return nodes
            classes = [self._walk.classes[id(node)] for node in nodes if id(node) in self._walk.classes]
            more = [self._walk.code(subclass) for cls in classes for subclass in self._subclasses(cls)]
            known = {id(node) for node in nodes}
            if all(id(node) in known for node in more):
                return nodes
            start = [*start, *more]

    def _subclasses(self, cls: type) -> Iterator[type]:
        """The project's classes below a class, also those below a class of a library."""
        if cls in (object, type):
            return
        below: list[type] = type.__subclasses__(cls)
        for subclass in below:
            owner = sys.modules.get(subclass.__module__)
            if owner is not None and self._walk.sources.of_namespace(vars(owner)).kind == PROJECT:
                yield subclass
            yield from self._subclasses(subclass)
