"""What importing a module and composing a pipeline do beyond binding names and calling steps.

A function runs after the top level of its module, of the modules that the process began with, and of
every module that these import, has run. What that leaves in the project's own names is seen in their
live values, if they are reached. What it may do elsewhere is not, and counts for every such function:

* statements that call something for its effect, or change something: ``np.random.seed(0)``,
  ``pd.options.mode.copy_on_write = True``, ``helpers.scale = patched``, loops, ``with`` blocks;
* assignments of the value of a call that may have an effect (:mod:`outside` says which);
* definitions under a decorator that may register them somewhere;
* classes made from one of a library that may keep a list of them;
* imports that nothing refers to.

A new function, a new plain constant or a new import does not count, and neither does what calls a
pipeline, or follows from such a call: no step calls it.
"""

from __future__ import annotations

import abc
import builtins
import logging
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from upshift.code.fingerprint import outside
from upshift.code.fingerprint.facts import Chain, Facts, Import, StatementFacts, Word, use_of
from upshift.code.fingerprint.live import is_upshift, title
from upshift.code.fingerprint.names import add_words, imported, look_up
from upshift.code.fingerprint.pieces import ACTS, CHANGES, CHANGES_GIVEN, Piece, combined
from upshift.code.fingerprint.reached import ReachedCode
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, Module
from upshift.code.fingerprint.values import is_code

_CONTAINERS = (dict, list, set)
"""What is called on these changes the project's own values, which are seen."""
_SAYS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
_REGISTERING_STANDARD = ("atexit", "codecs", "copyreg", "signal")


class Effects:
    """What the modules of one process do when they are imported."""

    def __init__(self, reached: ReachedCode) -> None:
        self._reached = reached
        self._live = reached.live
        self._pieces: dict[Module, Piece] = {}
        self._imports: dict[Module, list[Module]] = {}

    def imported_with(self, modules: Iterable[Module]) -> list[Module]:
        """These modules of the project, and all that run because these are imported."""
        found: dict[Module, None] = {}
        pending = list(modules)
        while pending:
            module = pending.pop()
            if module not in found and module.kind == PROJECT:
                found[module] = None
                if module not in self._imports:
                    self._imports[module] = list(self._imported_by(module))
                pending.extend(self._imports[module])
        return list(found)

    def _imported_by(self, module: Module) -> Iterable[Module]:
        sources = self._live.sources
        names = [module.name]
        facts = sources.facts(module.file)
        for level, source, attributes in facts.imports if facts is not None else ():
            target = sources.absolute(module, level, source)
            names.append(target)
            names += [f"{target}.{name}" for name in attributes if f"{target}.{name}" in sys.modules]
        for name in names:
            while name:
                found = sources.find(name)
                if isinstance(found, Module):
                    yield found
                name = name.rpartition(".")[0]

    def of_import(self, module: Module) -> Piece:
        """What the top level of a module does; it acts where a process without it may find things changed."""
        known = self._pieces.get(module)
        if known is None:
            known = self._pieces[module] = Piece()
            facts = self._live.sources.facts(module.file)
            if facts is not None:
                _TopLevel(self._reached, module, facts, known).add()
            elif module.file is not None and self._live.sources.content(module.file) is not None:
                known.reaches.append(("whole", module))
                known.flags |= ACTS
        return known

    def of_body(self, function: FunctionType, arguments: Mapping[str, object]) -> Piece:
        """What the body of a pipeline does to others when it is called with these arguments."""
        piece = Piece()
        module = self._live.sources.of_namespace(function.__globals__)
        file, units = self._live.functions_in_source(function)
        facts = self._live.sources.facts(file)
        if facts is None or module.kind != PROJECT:
            return piece
        top = _TopLevel(self._reached, module, facts, piece)
        for number in units:
            for statement in facts.bodies.get(number, ()):
                if top.is_effect(statement):
                    given = ((name, arguments.get(name)) for name in statement.arguments)
                    plain = [
                        (name, value) for name, value in given if not is_upshift(value)
                    ]  # or a step's result
                    parts = [f"{name} {self._live.seen(piece, value).digest}" for name, value in plain]
                    parts.insert(0, statement.digest)
                    piece.add(f"body of {title(module, function.__qualname__)}", combined(parts))
                    add_words(self._live, piece, module, statement.words)
        return piece


class _TopLevel:
    """The statements of one module."""

    def __init__(self, reached: ReachedCode, module: Module, facts: Facts, piece: Piece) -> None:
        self._reached = reached
        self._live = reached.live
        self._module = module
        self._facts = facts
        self._piece = piece

    def add(self) -> None:
        """Add all that the module does when it is imported."""
        piece, module, facts = self._piece, self._module, self._facts
        if facts.docstring:
            piece.add(f"docstring of {title(module, '')}", "", facts.docstring)
        effects: list[str] = []
        tainted: set[str] = set()
        for statement in facts.statements:
            if self._is_pipeline_call(statement, tainted):
                tainted.update(statement.binds)
            elif statement.acts or self._calls_act(statement):
                effects.append(statement.digest)
                words = [word for word in statement.words if not self._is_pipeline(word)]
                add_words(self._live, piece, module, words)
            elif any(map(self._is_own, statement.calls)):
                piece.flags |= ACTS
        for number in facts.decorated:
            self._add_decorated(number)
        self._add_classes()
        self._add_idle_imports()
        if effects:
            piece.flags |= ACTS
            piece.add(f"top level of {title(module, '')}", combined(effects))

    def is_effect(self, statement: StatementFacts) -> bool:
        """Whether a statement of a pipeline's body does something to others, beside calling steps."""
        if not statement.acts:
            return any(map(self._changes, statement.calls))
        return not statement.calls or any(self._acts(call) or self._changes(call) for call in statement.calls)

    def _add_decorated(self, number: int) -> None:
        unit = self._facts.unit(number)
        own = [decorator.chain for decorator in unit.decorators if decorator.chain]
        if any(map(self._is_own, own)):
            self._piece.flags |= ACTS
        if any(map(self._registers, own)) and not any(map(self._is_pipeline, unit.words)):
            # else a command, which runs the pipeline
            self._piece.reaches.append(("source", self._module, self._module.file, (number,), ()))
            self._piece.flags |= ACTS

    def _add_classes(self) -> None:
        """Classes that a library may keep a list of, because they are made from one of its own."""
        for name in self._facts.defined:
            cls: Any = (self._module.namespace or {}).get(name)
            if type(cls) is FunctionType or not issubclass(type(cls), type):
                continue
            for base in cls.__mro__[1:-1]:  # the last is object
                owner = sys.modules.get(base.__module__)
                kind = None if owner is None else self._live.sources.of_namespace(vars(owner)).kind
                if kind == PROJECT and owner is not sys.modules.get(cls.__module__):
                    self._piece.flags |= ACTS
                if kind != PACKAGE or base.__module__.partition(".")[0] in outside.UNREGISTERING:
                    continue
                if "__init_subclass__" in vars(base) or type(base) not in (type, abc.ABCMeta):
                    self._piece.reaches.append(self._live.code(cls))
                    self._piece.flags |= ACTS
                    break

    def _add_idle_imports(self) -> None:
        for idle in self._facts.idle:
            for what in self._facts.bound(idle):
                if isinstance(what, Import) and not what.attribute:
                    target = self._live.sources.absolute(self._module, what.level, what.module)
                    imported(self._live, self._piece, target, (), False)
                    if self._live.sources.find(target) and isinstance(self._live.sources.find(target), str):
                        self._piece.flags |= ACTS

    # questions about statements

    def _is_pipeline_call(self, statement: StatementFacts, tainted: set[str]) -> bool:
        """Whether a statement runs a pipeline, or uses what one gave. It is not part of any step."""
        if any(chain and chain[0] in tainted for chain, _, _ in map(use_of, statement.words)):
            return True
        first = statement.calls[0] if statement.calls else ()
        if first == ("print",):
            return any(map(self._is_pipeline, statement.words))
        return bool(first) and is_upshift(look_up(self._module, first[:1]))

    def _is_pipeline(self, word: Word) -> bool:
        chain, origin, _ = use_of(word)
        value = look_up(self._module, chain) if chain and origin is None else None
        return getattr(type(value), "__upshift_kind__", None) == "pipeline"

    def _calls_act(self, statement: StatementFacts) -> bool:
        """Whether the calls in an assignment may do more than to make values."""
        if any(map(self._acts, statement.calls)):
            return True
        own = [call for call in statement.calls if self._path(call) is None]
        given = [chain for chain, origin, bare in map(use_of, statement.words) if bare and origin is None]
        for chain in given if own else ():
            path = self._path(chain)  # a function of the project may change what it is given
            if path is not None and (_path_acts(path) or any(map(self._changes_given, own))):
                return True
        return False

    def _acts(self, call: Chain) -> bool:
        """Whether a call may do more than to make a value."""
        path = self._path(call)
        return self._own_acts(call) if path is None else _path_acts(path)

    def _changes(self, call: Chain) -> bool:
        """Whether a call is known to change something."""
        path = self._path(call)
        if path is not None:
            return outside.is_setter(path[-1])
        value = look_up(self._module, call) if call else None
        if value is None or is_upshift(value) or is_upshift(look_up(self._module, call[:1])):
            return False
        code = value if is_code(value) else type(value)
        return bool(self._reached.marks([self._live.code(code)]) & CHANGES)

    def _changes_given(self, call: Chain) -> bool:
        value = look_up(self._module, call) if call else None
        return is_code(value) and bool(self._reached.marks([self._live.code(value)]) & CHANGES_GIVEN)

    def _registers(self, chain: Chain) -> bool:
        """Whether a decorator may leave what it decorates in some other place than its name."""
        path = self._path(chain)
        if path is not None:
            if path[0] in sys.stdlib_module_names:
                return path[0] in _REGISTERING_STANDARD
            return path[0] != "upshift" and outside.decorator_acts(path)
        if chain[0] in ("property", "staticmethod", "classmethod", "super"):
            return False
        return self._own_acts(chain)

    def _path(self, chain: Chain) -> tuple[str, ...] | None:
        """The dotted name of something that is imported from outside the project."""
        for what in self._facts.bound(chain[0]) if chain else ():
            if not isinstance(what, Import):
                return None
            target = self._live.sources.absolute(self._module, what.level, what.module)
            if not isinstance(self._live.sources.find(target), Module):
                return (*target.split("."), *((what.attribute,) if what.attribute else ()), *chain[1:])
        return None

    def _is_own(self, chain: Chain) -> bool:
        """Whether a name means something of the project, which may change other parts of it when called."""
        if not chain or self._path(chain) is not None:
            return False
        return look_up(self._module, chain) is not None and not is_upshift(look_up(self._module, chain[:1]))

    def _own_acts(self, chain: Chain) -> bool:
        """Whether calling something of the project, or built-in, may act outside the project."""
        if not chain:
            return True
        value = look_up(self._module, chain)
        if value is None:
            known = getattr(builtins, chain[0], None) if len(chain) == 1 else None
            return known is None or outside.builtin_acts(chain[0])
        if is_upshift(value) or is_upshift(look_up(self._module, chain[:1])):
            return False
        if isinstance(value, (logging.Logger, logging.LoggerAdapter)) and chain[-1] in _SAYS:
            return False
        code = value if is_code(value) else type(value)
        if code in _CONTAINERS:
            return False
        if not isinstance(code, ModuleType):
            owner = sys.modules.get(code.__module__) or builtins
            if self._live.sources.of_namespace(vars(owner)).kind != PROJECT:
                return True
        return bool(self._reached.marks([self._live.code(code)]) & (ACTS | CHANGES))


def _path_acts(path: tuple[str, ...]) -> bool:
    if path[0] in sys.stdlib_module_names:
        return outside.standard_acts(path)
    return outside.package_acts(path)
