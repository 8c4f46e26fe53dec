"""What code a step reaches, so that a cached result is never one of other code.

A fingerprint names every piece of reached code with a digest of it. It is made from the live objects of
this process, so that whatever rebinds, patches or decorates something is seen, and from their source,
so that comments, layout and docstrings do not matter:

* in the file that defines the step, the functions, classes and constants that it reaches, one by one;
* of any other module of the project that it reaches code of, the whole source, and what that reaches;
* constants by value, with what their classes hide from pickle; default values, closures, attributes;
* installed packages by version, with what they require; the standard library by the version of Python;
* what importing does beyond binding names (``effects``): the modules that this code is in, and those that
  the process began with, such as the file that was run, with all that they import;
* where code is reached in a way that cannot be told before it runs (``outside``), the whole project and
  the versions of all that is installed. What cannot be compared at all never counts as equal.

If in doubt, more is included. docs/how-to/caching.md says what is not seen. From bottom to top::

    pieces                                                   what a piece of code adds and reaches
    facts · references · statements · normalize · parsing    what the text of one file says
    sources · installed                                      files, modules, distributions
    values · live                                            digests, names and sources of live objects
    outside                                                  calls that reach more than their source names
    names · objects                                          from names and objects to pieces
    reached                                                  all that is reached
    effects                                                  what importing and composing do
    Analysis                                                 fingerprints of functions
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from upshift.code.fingerprint.effects import Effects
from upshift.code.fingerprint.live import LiveCode, is_importable, is_upshift
from upshift.code.fingerprint.names import FROM_FILE, unknown
from upshift.code.fingerprint.objects import owner_of
from upshift.code.fingerprint.pieces import (
    ACTS,
    ALTERS_PATH,
    HIDES,
    READS,
    READS_SOURCE,
    REFLECTS,
    SUBCLASSES,
    UNRESOLVED,
    Key,
    Piece,
    combined,
)
from upshift.code.fingerprint.reached import ReachedCode, flags_of, modules_of
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, Module
from upshift.code.fingerprint.values import is_code, is_module
from upshift.runtime.usercode import Stamp

__all__ = ["Analysis", "fingerprint", "identity_of", "look_up"]


def fingerprint(
    function: Callable[..., object], project: Path, begun: Iterable[dict[str, Any]] = ()
) -> dict[str, str]:
    """Every piece of code that a function reaches: a title for people, to a digest, a version or a name.

    Equal if and only if the reached code is. For ``begun`` see :class:`Analysis`.
    """
    return Analysis(project, begun).function(function)


def look_up(project: Path, file: Path | None = None) -> Callable[[str], dict[str, str]]:
    """What finds the fingerprint of what a pickle names, where definitions of ``file`` count one by one.

    Most runs need none: the analysis begins with the first name.
    """
    analysis: Analysis | None = None

    def named(name: str) -> dict[str, str]:
        nonlocal analysis
        analysis = analysis or Analysis(project)
        return analysis.named(name, () if file is None else [str(file)])

    return named


def identity_of(value: object, project: Path) -> str | None:
    """The digest of a value whose pickle differs from process to process, or after an edit without effect.

    The pickle of a lambda or a local class holds line numbers, that of a set has no fixed order. Any other
    value has no identity beside its content: None.
    """
    return Analysis(project).identity(value)


class Analysis:
    """Makes fingerprints; what several functions share is analysed once.

    Values are read as they are now: use an analysis at one moment, such as the end of the composition of a
    pipeline, and throw it away. ``begun`` are the globals of the modules that the process began with. What
    importing them did, and what they import in turn, is there before any step runs, and counts for each.
    """

    def __init__(self, project: Path, begun: Iterable[dict[str, Any]] = ()) -> None:
        live = self._live = LiveCode(project)
        self._pieces = ReachedCode(live)
        self._effects = Effects(self._pieces)
        modules = dict.fromkeys(live.sources.of_namespace(namespace) for namespace in begun)
        self._begun = [module for module in modules if module.kind == PROJECT]

    def function(self, function: Any) -> dict[str, str]:
        """The fingerprint of a function, a class, or anything else that can be called."""
        with _without_collecting():
            files, start = self._start(function)
            return self._entries(start, files)

    def identity(self, value: Any) -> str | None:
        """As :func:`identity_of <upshift.code.fingerprint.identity_of>` says."""
        piece = Piece()
        seen = self._live.seen(piece, value)
        by_value = [key for key in piece.reaches if not is_importable(self._live.object(key[1]))]
        if not seen.complete or not (by_value or seen.unordered):
            return None
        if not by_value:
            return seen.digest
        with _without_collecting():
            reached = [self._pieces.piece(key) for key in by_value]
            files = {key[2] for piece in reached for key in piece.reaches if key[0] == "source"}
            entries = self._entries(by_value, files, begun=False)
        return combined([seen.digest, *(f"{name} {digest}" for name, digest in entries.items())])

    def composition(self, function: Any, arguments: Mapping[str, object]) -> dict[str, str]:
        """What the body of a pipeline, called with these arguments, does to others; empty for most."""
        piece = self._effects.of_body(function, arguments)
        if not piece.entries:
            return {}
        with _without_collecting():
            files = {self._live.module_of(function).file}
            return {name: digest for name, digest, _ in piece.entries} | self._entries(
                piece.reaches, files, begun=False
            )

    def named(self, name: str, files: Iterable[str] = ()) -> dict[str, str]:
        """The fingerprint of what a pickle names: ``module:qualname``, or ``module:`` for the module itself.

        Nothing is imported for it. Of a module that is not imported all counts, and of any but ``files``.
        """
        module, _, qualname = name.partition(":")
        there = sys.modules.get(module)
        if there is None:
            found = self._live.sources.find(module)
            if isinstance(found, Module):
                return self._entries([("whole", found)], files)
            return self._entries([("package", found) if found else ("project",)], files)
        owner = self._live.sources.of_namespace(vars(there))
        if owner.kind == PACKAGE:
            return self._entries([("package", owner.version)], files)
        value: Any = there
        for part in qualname.split(".") if qualname else ():
            value = getattr(value, part, None)
        if owner.kind != PROJECT or (module == "__main__" and not is_code(value)):
            return self._entries([], files)  # what a notebook defines travels by value
        if value is None or value is there:
            return self._entries([("names", owner)], files)
        piece = Piece(*([self._live.code(value)] if is_code(value) else []))
        if not is_code(value):
            piece.add(name, self._live.seen(piece, value).digest)
        return self._entries([self._keyed(piece)], files)

    @property
    def stamps(self) -> Mapping[str, Stamp]:
        """The files that were read so far, as they were."""
        return self._live.sources.stamps

    def needed(self) -> dict[str, str]:
        """Modules to import before a step runs in another process, with their files.

        They are those that the process began with, if they or what they import change more than their names.
        """
        modules = self._effects.imported_with(self._begun)
        if not any(self._effects.of_import(module).flags & ACTS for module in modules):
            return {}
        return {module.name: module.file for module in self._begun if module.file is not None}

    def _start(self, function: Any) -> tuple[set[str | None], list[Key]]:
        """Where to begin, and the files in which definitions count one by one."""
        live = self._live
        owner: type | None = None
        held = Piece()
        if type(function) is MethodType:
            bound, function = function.__self__, function.__func__
            owner = bound if isinstance(bound, type) else type(bound)
            if not any(is_upshift(base) for base in owner.__mro__):  # a flow's own state comes as input
                name = f"the object of {owner.__qualname__}.{function.__name__}"
                held.add(name, live.seen(held, bound).digest)
        plain = getattr(function, "__wrapped__", None) if not isinstance(function, type) else None
        method = plain if type(plain) is FunctionType else function
        codes = [code for code in (plain, function) if type(code) is FunctionType or isinstance(code, type)]
        held.reaches += map(live.code, codes)
        if function not in codes:
            held.add(f"{type(function).__qualname__} itself", live.seen(held, function).digest)
        if type(method) is FunctionType and (owner := owner or owner_of(method)) is not None:
            held.reaches.append(("method", live.code(method)[1], live.code(owner)[1]))
        defining = codes or [value for key in held.reaches if not is_module(value := live.object(key[1]))]
        return {live.module_of(code).file for code in defining}, [self._keyed(held)]

    def _keyed(self, piece: Piece) -> Key:
        key = ("made", id(piece))
        self._pieces.put(key, piece)
        return key

    def _entries(
        self, start: list[Key], files: Iterable[str | None], *, begun: bool = True
    ) -> dict[str, str]:
        files = frozenset(files).union(module.file for module in self._begun)
        pieces = list(self._reached(start, files, self._begun if begun else []))
        flags = flags_of(pieces)
        if flags & ALTERS_PATH and flags & UNRESOLVED:
            flags &= ~ALTERS_PATH | flags_of(self._pieces.reach(start, files, widened=False).values())
        found: dict[str, str] = {}
        several: dict[str, set[str]] = {}
        for name, digest in self._digests(pieces, flags):
            known = found.setdefault(name, digest)
            if known is not digest and known != digest:
                several.setdefault(name, {known}).add(digest)
        found.update({name: combined(sorted(digests)) for name, digests in several.items()})
        if flags & READS_SOURCE:
            found.update(self._live.sources.texts())
        self._live.sources.save()
        entries = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
        entries.update(sorted(found.items()))
        return entries

    def _digests(self, pieces: list[Piece], flags: int) -> Iterator[tuple[str, str]]:
        reflects = flags & REFLECTS
        for piece in pieces:
            for name, digest, documented in piece.entries:
                if documented and reflects:
                    yield name, combined([digest, documented])
                elif digest:
                    yield name, digest
            for name, hiding, making in piece.opaque:
                if hiding and not self._pieces.marks(hiding) & HIDES:
                    continue
                if (making.flags | self._pieces.marks(making.reaches, making=True)) & READS:
                    yield unknown(name, FROM_FILE)
        if flags & ALTERS_PATH and flags & UNRESOLVED:
            yield unknown("what is imported", "from a folder that is known only when it runs")

    def _reached(
        self, start: list[Key], files: frozenset[str | None], begun: list[Module]
    ) -> Iterable[Piece]:
        """Reached code, with what importing its modules does; and subclasses, where it asks for them."""
        start = list(start)
        while True:
            found = self._pieces.reach(start, files)
            modules = self._effects.imported_with([*modules_of(found), *begun])
            more = [self._import(module) for module in modules if ("whole", module) not in found]
            if flags_of(found.values()) & SUBCLASSES:
                more += [key for key in self._subclasses(found) if key not in found]
            more = [key for key in more if key not in found]
            if not more:
                return found.values()
            start += more

    def _import(self, module: Module) -> Key:
        key = ("import", module)
        self._pieces.put(key, self._effects.of_import(module))
        return key

    def _subclasses(self, found: Iterable[Key]) -> Iterator[Key]:
        """The project's classes below reached classes, also those below a class of a library."""
        pending = [self._live.object(key[1]) for key in found if key[0] == "code"]
        for cls in pending:  # grows while it is walked
            if not isinstance(cls, type) or cls in (object, type):
                continue
            below: list[type] = type.__subclasses__(cls)
            for subclass in below:
                if self._live.module_of(subclass).kind == PROJECT:
                    yield self._live.code(subclass)
            pending += below


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Everything that an analysis makes stays until its end: looking for garbage among it takes long."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
