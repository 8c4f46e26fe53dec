"""From a name in a piece of source to what it means.

::

    word ──┬─ imported module ── attributes ──┐
           ├─ closure cell                    ├── function, class   objects.py
           ├─ name of the module ─────────────┤── constant          name_piece
           └─ built-in                        ├── package           its version
                                              └── cannot be told    outside.py

Names are looked up in the live module, so that whatever rebinds them is seen. Of a module that is not
imported yet all counts.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from upshift.code.fingerprint import outside
from upshift.code.fingerprint.facts import BY_LITERAL, Bound, Chain, Facts, Import, Use, Word, use_of
from upshift.code.fingerprint.live import LiveCode, is_home, title
from upshift.code.fingerprint.outside import is_loader, widen, widens
from upshift.code.fingerprint.pieces import ACTS, FRAMES, SEEN, UNRESOLVED, Piece, combined
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, STANDARD, UPSHIFT, Module
from upshift.code.fingerprint.values import is_code, is_module

FROM_FILE = "made from a file, cannot be compared"
UNSEEN = "cannot be compared"
_ABSENT = combined(["absent"])
_SILENT = frozenset(
    {"__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__", "__doc__", "__version__"}
)
_NOTHING: Any = object()


def add_words(
    live: LiveCode, piece: Piece, module: Module, words: Iterable[Word], hidden: Iterable[str] = ()
) -> None:
    """Make a piece reach what words of a module's source mean; ``hidden`` names are none of the module's."""
    hidden = frozenset(hidden)
    for word in words:
        chain, origin, bare = use_of(word)
        if origin is not None or chain[0] not in hidden:
            resolve(live, piece, module, (chain, origin, bare))


def resolve(live: LiveCode, piece: Piece, module: Module, use: Use) -> None:
    """Make a piece reach what one name means, with the attributes taken from it."""
    chain, origin, bare = use
    if origin == BY_LITERAL:  # import_module("helpers"), if that is Python's own
        value = look_up(module, chain)
        if value is not None and not widens(value):
            resolve(live, piece, module, (chain, None, False))
        return
    if origin is not None:
        imported(live, piece, live.sources.absolute(module, *origin), chain, bare)
        return
    root, rest = chain[0], chain[1:]
    value = _NOTHING if module.namespace is None else module.namespace.get(root, _NOTHING)
    if is_module(value):
        piece.reaches.append(("name", module, root))
        through(live, piece, value, rest, bare, module)
    elif root in _SILENT:
        return
    elif value is not _NOTHING:
        _bound(live, piece, module, root, value, bare and not rest, module)
    elif module.namespace is not None:
        _builtin(live, piece, module, root)


def add_flags(piece: Piece, flags: int) -> None:
    """Give a piece the flags of a unit of source."""
    piece.flags |= flags
    if flags & FRAMES:
        piece.reaches.append(("project",))


def look_up(module: Module, chain: Chain) -> Any:
    """The live object that a chain leads to, through modules; None if there is none."""
    value = (module.namespace or {}).get(chain[0])
    for name in chain[1:]:
        if not is_module(value):
            break
        value = vars(value).get(name)
    return value


def _bound(
    live: LiveCode, piece: Piece, owner: Module, name: str, value: Any, bare: bool, within: Module | None
) -> None:
    """A name of a live module that is bound to anything but a module."""
    piece.reaches.append(("name", owner, name))
    widen(piece, value, within)
    if bare and is_code(value):
        piece.reaches.append(("docstring", *live.code(value)[1:]))


def _builtin(live: LiveCode, piece: Piece, module: Module, name: str) -> None:
    value = getattr(builtins, name, _NOTHING)
    if value is _NOTHING:
        piece.add(title(module, name), _ABSENT)
        return
    if outside.builtin_acts(name):
        piece.flags |= ACTS
    widen(piece, value, module)
    if type(value) is FunctionType:
        piece.reaches.append(live.code(value))


# modules and their attributes


def imported(live: LiveCode, piece: Piece, name: str, chain: Chain, bare: bool) -> None:
    """Make a piece reach attributes of a module that source imports by name."""
    there = sys.modules.get(name)
    if isinstance(there, ModuleType):
        piece.reaches.append(("imported", live.sources.of_namespace(vars(there))))
        through(live, piece, there, chain, bare, None)
        return
    found = live.sources.find(name)
    if found is None:
        piece.add(f"module {name}", _ABSENT)
        if name.partition(".")[0] in live.module_names:
            piece.reaches.append(("project",))  # it may be found from another folder when the step runs
        else:
            piece.flags |= UNRESOLVED
    elif isinstance(found, str):
        _foreign(piece, (*name.split("."), *chain), found)
    else:
        parent = name.rpartition(".")[0]
        if parent and parent not in sys.modules:
            imported(live, piece, parent, (), False)
        piece.reaches.append(("whole", found))
        if chain and live.sources.find(f"{name}.{chain[0]}") is not None:
            imported(live, piece, f"{name}.{chain[0]}", chain[1:], bare)


def through(
    live: LiveCode, piece: Piece, there: ModuleType, chain: Chain, bare: bool, within: Module | None
) -> None:
    """Make a piece reach what a chain of a live module's attributes means to code ``within`` another."""
    namespace = vars(there)
    owner = live.sources.of_namespace(namespace)
    if owner.kind == UPSHIFT:
        return
    if owner.kind != PROJECT:
        _foreign_attributes(live, piece, there, chain, owner.version, within)
        if bare and not chain and is_loader(there):
            piece.reaches.append(("project",))
        return
    if not chain:
        piece.reaches.append(("names" if bare else "imported", owner))
        return
    name, rest = chain[0], chain[1:]
    value = namespace.get(name, _NOTHING)
    if value is _NOTHING:
        value = sys.modules.get(f"{there.__name__}.{name}", _NOTHING)
    if is_module(value):
        if name in namespace:
            piece.reaches.append(("name", owner, name))
        through(live, piece, value, rest, bare, within)
    elif name in _SILENT:
        piece.reaches.append(("whole" if name == "__doc__" else "imported", owner))
    elif value is not _NOTHING:
        _bound(live, piece, owner, name, value, bare and not rest, within)
    elif live.sources.find(f"{owner.name}.{name}") is not None:
        imported(live, piece, f"{owner.name}.{name}", rest, bare)
    else:
        piece.reaches += [("whole", owner), ("names", owner)]


def _foreign_attributes(
    live: LiveCode, piece: Piece, there: ModuleType, chain: Chain, version: str, within: Module | None
) -> None:
    """A library's module, which may have been patched with something of the project."""
    _foreign(piece, (*there.__name__.split("."), *chain), version)
    value: Any = there
    for name in chain:
        if not is_module(value):
            return
        value = vars(value).get(name)
    if is_code(value) and not is_module(value):
        piece.reaches.append(live.code(value))
    widen(piece, value, within)


def _foreign(piece: Piece, path: Chain, version: str) -> None:
    if version:
        piece.reaches.append(("package", version))
        if outside.package_acts(path):
            piece.flags |= ACTS
    elif path[0] in sys.stdlib_module_names and outside.standard_acts(path):
        piece.flags |= ACTS


# what a name of a live module is bound to


def name_piece(live: LiveCode, module: Module, name: str) -> Piece:
    """What a name is bound to: code, a module, or a constant.

    Which object it is counts by itself: two functions that swap their names are both still reached.
    """
    assert module.namespace is not None
    piece = Piece()
    value = module.namespace[name]
    if is_module(value):
        piece.add(title(module, name), live.token(value))
    elif not is_code(value):
        _constant(live, piece, module, name, value)
    else:
        piece.reaches.append(live.code(value))
        if not is_home(module, name, value):
            piece.add(title(module, name), live.token(value))
            piece.flags |= _acts(live, value)
            making = _making(live, module, name)
            if making is not None:
                piece.opaque.append((title(module, name), [live.code(value)], making))
    return piece


def _acts(live: LiveCode, value: Any) -> int:
    """Whether calling a function or class of a library may act on something."""
    owner = sys.modules.get(getattr(value, "__module__", None) or "")
    if owner is None or owner is builtins:
        return 0
    kind = live.sources.of_namespace(vars(owner)).kind
    path = (owner.__name__.partition(".")[0], *value.__qualname__.split("."))
    if kind == PACKAGE:
        return ACTS if outside.package_acts(path) else 0
    return ACTS if kind == STANDARD and outside.standard_acts(path) else 0


def _constant(live: LiveCode, piece: Piece, module: Module, name: str, value: Any) -> None:
    origin = _origin(live, module, name, value)
    if origin is not None:
        piece.add(title(module, name), f"{origin[0].name}.{origin[1]}")
        piece.reaches.append(("name", *origin))
        return
    digest, complete, hides, _ = live.seen(piece, value)
    if not hides:
        piece.flags |= SEEN
    label = f"constant {title(module, name)}"
    facts = live.sources.facts(module.file)
    written = facts.bound(name) if facts is not None else ()
    if complete:
        piece.add(label, digest)
    elif facts is None or not written:
        piece.add(*unknown(label, UNSEEN))  # nothing says what it is
    else:
        making = _making(live, module, name)
        if hides and making is not None:
            piece.opaque.append((label, [], making))
        piece.add(label, combined([digest, *_as_written(live, piece, module, facts, written)]))


def unknown(label: str, reason: str) -> tuple[str, str]:
    """An entry that is never the same as in another process."""
    return f"{label} ({reason})", combined([os.urandom(16).hex()])


def _origin(live: LiveCode, module: Module, name: str, value: Any) -> tuple[Module, str] | None:
    """The live module of the project that a constant was imported from, and its name there."""
    facts = live.sources.facts(module.file)
    if facts is None:
        return None
    bound = facts.bound(name)
    sources = [Import(level, source, name) for level, source, names in facts.imports if "*" in names]
    if bound:
        sources = [what for what in bound if isinstance(what, Import) and what.attribute]
        if len(sources) < len(bound):
            return None
    for source in sources:
        found = live.sources.find(live.sources.absolute(module, source.level, source.module))
        attribute = source.attribute or name
        if not isinstance(found, Module) or found.namespace is None or found is module:
            continue
        if attribute in found.namespace and found.namespace[attribute] is value:
            return found, attribute
    return None


def _making(live: LiveCode, module: Module, name: str) -> Piece | None:
    """What the statements reach that bind a name; None where none does."""
    facts = live.sources.facts(module.file)
    bound = () if facts is None else facts.bound(name)
    numbers = [what.number for what in bound if isinstance(what, Bound) and not what.definition]
    if facts is None or not numbers:
        return None
    making = Piece()
    for statement in map(facts.statements.__getitem__, numbers):
        making.flags |= int(statement.reads)  # READS
        add_words(live, making, module, statement.words)
    return making


def _as_written(
    live: LiveCode, piece: Piece, module: Module, facts: Facts, written: Iterable[Import | Bound]
) -> list[str]:
    """The statements that bind a constant which cannot be seen."""
    parts: list[str] = []
    for what in written:
        if isinstance(what, Import):
            target = live.sources.absolute(module, what.level, what.module)
            parts.append(f"{target} {what.attribute}")
            imported(live, piece, target, (what.attribute,) if what.attribute else (), False)
        elif what.definition:
            piece.reaches.append(("source", module, module.file, (what.number,), ()))
        else:
            statement = facts.statements[what.number]
            parts.append(statement.digest)
            add_words(live, piece, module, statement.words)
    return parts
