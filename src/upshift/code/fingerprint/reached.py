"""The reached code: pieces, each made once, from where one begins to where nothing new is reached.

Within the step's own file a definition counts by itself; of any other module all counts.
"""

from __future__ import annotations

import builtins
import functools
import operator
import os
import sys
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from upshift.code.fingerprint import outside
from upshift.code.fingerprint.facts import BARE, Chain, Facts, Import, UnitFacts, use_of
from upshift.code.fingerprint.installed import all_installed, editable, required
from upshift.code.fingerprint.live import LiveCode, is_by_name, is_home, is_upshift, says_all, title
from upshift.code.fingerprint.names import (
    add_flags,
    add_words,
    imported,
    look_up,
    name_piece,
    resolve,
    through,
    unknown,
)
from upshift.code.fingerprint.objects import code_piece, defaults_of_function, docstring_piece, method_piece
from upshift.code.fingerprint.outside import widen, widens
from upshift.code.fingerprint.pieces import CHANGES, SEEN, Key, Piece, combined
from upshift.code.fingerprint.sources import NOT_SOURCE, PACKAGE, PROJECT, Module, python_files
from upshift.code.fingerprint.values import is_code, is_module
from upshift.runtime.usercode import module_name

_MANY = 5_000
"""Files outside the project of which each may be found by its name."""
_INERT = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, (BuiltinFunctionType, type)) and not (outside.builtin_acts(name) or widens(value))
)
"""Built-in functions and classes that reach nothing else."""
_NOTHING: Any = object()


def source_piece(
    live: LiveCode, module: Module, file: str, what: tuple[Any, ...], hidden: tuple[str, ...]
) -> Piece:
    """A definition in a file and what it refers to; ``what`` is as for ``Facts.units``, or units' numbers."""
    piece = Piece(("imported", module))
    facts = live.sources.facts(file)
    assert facts is not None
    for number in facts.units(*what) if type(what[0]) is str else what:
        _add_unit(live, piece, module, facts, facts.unit(number), hidden)
    if facts.docstring:
        piece.add(f"docstring of {title(module, '')}", "", facts.docstring)
    return piece


def _add_unit(
    live: LiveCode, piece: Piece, module: Module, facts: Facts, unit: UnitFacts, hidden: tuple[str, ...]
) -> None:
    counting = [d for d in unit.decorators if not _is_upshift(module, facts, d.chain)]
    digest = combined([unit.digest, *(d.digest for d in counting)]) if counting else unit.digest
    documented = unit.documented if unit.documented != unit.digest else ""
    label = title(module, unit.qualname)
    piece.add(label, digest, documented)
    add_flags(piece, unit.flags)
    for name in unit.changed:
        value = (module.namespace or {}).get(name)
        if not name or (is_module(value) and live.sources.of_namespace(vars(value)).kind != PROJECT):
            piece.flags |= CHANGES
    hidden = (*hidden, *(name for name in unit.assigned if name not in (module.namespace or ())))
    add_words(live, piece, module, unit.words, hidden)
    for decorator in counting:
        add_words(live, piece, module, decorator.words, hidden)
        if documented and _is_foreign(live, look_up(module, decorator.chain) if decorator.chain else None):
            piece.add(f"docstring of {label}", documented)


def _is_upshift(module: Module, facts: Facts, chain: Chain) -> bool:
    """Whether a decorator is one of Upshift's own."""
    if not chain:
        return False
    if module.namespace is not None:
        return is_upshift(look_up(module, chain))
    bound = facts.bound(chain[0])
    return bool(bound) and all(isinstance(b, Import) and b.module.split(".")[0] == "upshift" for b in bound)


def _is_foreign(live: LiveCode, decorator: Any) -> bool:
    """Whether a decorator comes from a library, which may read the docstring."""
    owner = sys.modules.get((decorator if is_code(decorator) else type(decorator)).__module__ or "")
    return owner is not None and live.sources.of_namespace(vars(owner)).kind == PACKAGE


# whole modules


def whole_piece(live: LiveCode, module: Module) -> Piece:
    """The whole source of a module, and what the names in it mean."""
    piece = Piece(("imported", module))
    facts = live.sources.facts(module.file)
    if facts is None:
        content = None if module.file is None else live.sources.content(module.file)
        if content is not None:  # written in C, or not readable as Python: it may import anything
            piece.add(title(module, ""), combined([repr(content)]))
            piece.reaches.append(("project",))
        elif module.namespace is not None:
            piece.reaches.append(("names", module))
        return piece
    add_flags(piece, facts.flags)
    label = title(module, "")
    piece.add(label, facts.whole, facts.documented)
    decorators = [digest for digest, chain in facts.decorators if not _is_upshift(module, facts, chain)]
    if decorators:
        piece.add(f"decorators of {label}", combined(decorators))
    for level, source, names in facts.imports:
        _add_import(live, piece, module, level, source, names)
    if module.namespace is None:
        words = {*facts.words, *(word for words, _ in facts.dynamic.values() for word in words)}
        for _, flags in facts.dynamic.values():
            add_flags(piece, flags)
        for chain, origin, bare in map(use_of, sorted(words)):
            if origin is not None:
                resolve(live, piece, module, (chain, origin, bare))
            else:
                _widen_unimported(live, piece, module, facts, chain, bare)
    else:
        _add_names(live, piece, module, module.namespace, facts)
    return piece


def _add_import(
    live: LiveCode, piece: Piece, module: Module, level: int, source: str, names: tuple[str, ...]
) -> None:
    """What a module imports: versions of packages; all of what is not imported yet, as the module itself."""
    target = live.sources.absolute(module, level, source)
    found = live.sources.find(target)
    if isinstance(found, str):
        if found:
            piece.reaches.append(("package", found))
        return
    if module.namespace is not None:
        return  # the names that are used of it say what it is
    for name in names or ("",):
        chain = (name,) if name not in ("", "*") else ()
        imported(live, piece, target, chain, name == "*")


def _widen_unimported(
    live: LiveCode, piece: Piece, module: Module, facts: Facts, chain: Chain, bare: bool
) -> None:
    """What a name would mean that is built in, or that an import would bring from outside the project."""
    bound = facts.bound(chain[0])
    if not bound:
        widen(piece, getattr(builtins, chain[0], None), module)
    for what in bound:
        if isinstance(what, Import):
            target = live.sources.absolute(module, what.level, what.module)
            if not isinstance(live.sources.find(target), Module):
                attribute = (what.attribute,) if what.attribute else ()
                imported(live, piece, target, (*attribute, *chain[1:]), bare)


def _add_names(live: LiveCode, piece: Piece, module: Module, namespace: dict[str, Any], facts: Facts) -> None:
    """What the names in a live module's source mean. Of most of its own functions nothing is left to say."""
    elsewhere: list[str] = []
    own: list[str] = []
    for word in facts.words:
        name = word.removeprefix(BARE)
        value = namespace.get(name, _NOTHING)
        kind = type(value)
        if value is _NOTHING:
            if name not in _INERT and (" " in word or "." in word or hasattr(builtins, name)):
                resolve(live, piece, module, use_of(word))
        elif name != word and is_code(value):
            resolve(live, piece, module, use_of(word))
        elif kind is FunctionType and is_home(module, name, value) and says_all(live, module, value):
            if value.__defaults__ or value.__kwdefaults__:
                own.append(defaults_of_function(live, piece, value))
        elif kind is FunctionType or issubclass(kind, type):
            if is_home(module, name, value):
                piece.reaches.append(live.code(value))
            elif is_by_name(value):
                piece.reaches.append(live.code(value))
                elsewhere.append(f"{name} {live.token(value)}")
            else:
                piece.reaches.append(("name", module, name))
            widen(piece, value, module)
        elif is_module(value):
            resolve(live, piece, module, use_of(word))
        else:
            piece.reaches.append(("name", module, name))
            widen(piece, value, module)
    if own:
        piece.add(f"defaults of {title(module, '')}", combined(own))
    if elsewhere:
        piece.add(f"names of {title(module, '')}", combined(elsewhere))


def names_piece(live: LiveCode, module: Module, by: str = "") -> Piece:
    """Every name of a module, and of those that it imports: what ``getattr(module, name)`` may give.

    A pickle names functions and classes. So what it may give leaves out the plain values that a script
    makes under ``if __name__ == "__main__"``, which nothing else in its source can mean either.
    """
    piece = Piece(("whole", module)) if module.file is not None else Piece(("imported", module))
    facts = live.sources.facts(module.file)
    if facts is not None and facts.docstring:
        piece.add(f"docstring of {title(module, '')}", facts.docstring)
    for name, value in list((module.namespace or {}).items()):
        if name.startswith("__") and name.endswith("__"):
            continue
        if by == "pickled" and _is_scripts_own(module, facts, name, value):
            continue
        if not is_module(value):
            piece.reaches.append(("name", module, name))
        elif (owner := live.sources.of_namespace(vars(value))).kind == PROJECT:
            piece.reaches.append(("names", owner, *filter(None, [by])))
        else:
            through(live, piece, value, (), True, None)
    return piece


def _is_scripts_own(module: Module, facts: Facts | None, name: str, value: Any) -> bool:
    """Whether a name of the file that was started is bound where nobody who imports that file comes."""
    main = sys.modules.get("__main__")
    if facts is None or main is None or module.namespace is not vars(main):
        return False
    return not facts.bound(name) and not is_code(value) and not is_module(value)


def imported_piece(live: LiveCode, module: Module) -> Piece:
    """A module that is imported, and nothing else of it: whether it is what its file says."""
    piece = Piece()
    if live.loaded.is_stale(module):
        piece.add(*unknown(title(module, ""), "changed since it was imported"))
    return piece


# packages, and the project


def package_piece(live: LiveCode, version: str) -> Piece:
    """Installed distributions, ``"numpy 2.1.0"`` or several, and what they require."""
    piece = Piece()
    for distribution in version.split(", "):
        name, _, number = distribution.partition(" ")
        piece.add(f"package {name}", number)
        for below, number in required(name).items():
            piece.add(f"required package {below}", number)
    return piece


def project_piece(live: LiveCode, *by: str) -> Piece:
    """Every module that may be found by its name: the project's, those beside it, and what is installed."""
    piece = Piece()
    loaded = {
        file: module
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and isinstance(file := vars(module).get("__file__"), str)
    }
    files = list(python_files(live.project.absolute()))
    beside = [file for folder in _folders_beside(live.project) for file in python_files(folder)]
    if len(beside) > _MANY:
        piece.add(*unknown("modules outside the project", "too many that may be found by their names"))
        beside = []
    for file in dict.fromkeys([*files, *beside]):
        there = loaded.get(file)
        if there is not None:
            module = live.sources.of_namespace(vars(there))
            piece.reaches.append(("names", module, *by) if module.kind == PROJECT else live.code(there))
        elif (facts := live.sources.facts(file)) is not None:
            piece.add(
                f"all of {title(_unimported(live, file), '')}",
                combined([facts.documented, *(digest for digest, _ in facts.decorators)]),
            )
    for name, number in all_installed().items():
        piece.add(f"required package {name}", number)
    return piece


def _unimported(live: LiveCode, file: str) -> Module:
    name = module_name(Path(file))[0]
    return live.sources.unimported(
        name, file, name if file.endswith("__init__.py") else name.rpartition(".")[0]
    )


def _folders_beside(project: Path) -> list[Path]:
    """Folders outside the project from which modules that are not installed can be imported."""
    folders = [Path(entry) for entry in sys.path if entry] + editable()
    standard, commands = Path(os.__file__).parent, Path(sys.executable).parent
    return [
        folder
        for folder in dict.fromkeys(folder.absolute() for folder in folders)
        if folder.is_dir()
        and not NOT_SOURCE.intersection(folder.parts)
        and folder != commands
        and standard not in (folder, *folder.parents)
        and project.absolute() not in (folder, *folder.parents)
        and folder not in project.absolute().parents
    ]


_MAKERS: dict[str, Callable[..., Piece]] = {
    "code": code_piece,
    "source": source_piece,
    "whole": whole_piece,
    "names": names_piece,
    "name": name_piece,
    "imported": imported_piece,
    "docstring": docstring_piece,
    "method": method_piece,
    "package": package_piece,
    "project": project_piece,
}


class ReachedCode:
    """Pieces of one process at one moment."""

    def __init__(self, live: LiveCode) -> None:
        self.live = live
        self._pieces: dict[Key, Piece] = {}

    def piece(self, key: Key) -> Piece:
        """The piece of a key."""
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = _MAKERS[key[0]](self.live, *key[1:])
        return piece

    def put(self, key: Key, piece: Piece) -> None:
        """Keep a piece that was made elsewhere."""
        self._pieces[key] = piece

    def reach(
        self,
        start: Iterable[Key],
        files: Container[str | None],
        *,
        widened: bool = True,  # whether also what only counts because it may be found by its name
    ) -> dict[Key, Piece]:
        """The pieces that these keys lead to, where definitions in these files count one by one."""
        found: dict[Key, Piece] = {}
        pending = list(start)
        while pending:
            key = pending.pop()
            if key[0] == "source":
                module, file = key[1], key[2]
                if file == module.file and file not in files:
                    key = ("whole", module)
            if key not in found and (widened or key[0] != "project"):
                piece = found[key] = self.piece(key)
                pending.extend(piece.reaches)
        return found

    def marks(
        self,
        start: Iterable[Key],
        *,
        # whether only what makes a value is wanted: what others are made of that are seen is not
        making: bool = False,
    ) -> int:
        """The flags of all that is reached where every definition counts by itself."""
        found: set[Key] = set()
        pending = list(start)
        flags = 0
        while pending:
            key = pending.pop()
            if key in found or key[0] in ("whole", "project"):
                continue
            found.add(key)
            piece = self.piece(key)
            if making and piece.flags & SEEN:
                continue
            flags |= piece.flags
            pending.extend(piece.reaches)
        return flags


def flags_of(pieces: Iterable[Piece]) -> int:
    """The flags that any of these pieces has."""
    return functools.reduce(operator.or_, (piece.flags for piece in pieces), 0)


def modules_of(keys: Iterable[Key]) -> list[Module]:
    """The modules that these pieces are of."""
    return list(dict.fromkeys(key[1] for key in keys if len(key) > 1 and isinstance(key[1], Module)))
