"""What importing a module does, beyond binding its names.

A function runs after the top level of its module, of the modules that the process began with, and of
every module that these import, has run. What that leaves in the project's own names is seen in their
live values, if they are reached. What it may do elsewhere is not, and counts for every such function:

* statements that call something for its effect, or change something: ``np.random.seed(0)``,
  ``pd.options.mode.copy_on_write = True``, ``helpers.scale = patched``, loops, ``with`` blocks;
* assignments of the value of a call that may have an effect (:mod:`purity` says which);
* definitions under a decorator that may register them somewhere;
* classes made from one of a library that may keep a list of them;
* imports that nothing refers to.

A new function, a new plain constant or a new import does not count, and neither does what calls a
pipeline, or follows from such a call: no step calls it.
"""

from __future__ import annotations

import abc
import builtins
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

from upshift.code.fingerprint import purity
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.facts import Chain, Facts, Import, StatementFacts, Word, use_of
from upshift.code.fingerprint.names import imported
from upshift.code.fingerprint.nodes import ACTS, Node, marks_of, reachable
from upshift.code.fingerprint.scope import Scope
from upshift.code.fingerprint.sources import PACKAGE, PROJECT, Module
from upshift.code.fingerprint.values import is_code, is_module

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

_CONTAINERS = (dict, list, set)
"""What is called on these changes the project's own values, which are seen."""


def expand_module(walk: Walk, node: Node, module: Module) -> None:
    """Fill in the node of the top level of a module.

    It acts if a process that has not imported it may find other things changed, the project's included.
    """
    facts = walk.sources.facts(module.file)
    if facts is None:
        content = None if module.file is None else walk.sources.content(module.file)
        if content is not None:  # written in C, or not readable as Python
            node.marks |= ACTS
            node.add(f"module {module.name} ({module.shown})", combined([repr(content)]))
        return
    if facts.docstring:
        node.add(f"docstring of {module.name} ({module.shown})", "", facts.docstring)
    _imports(walk, node, module, facts)
    scope = Scope(module)
    effects: list[str] = []
    tainted: set[str] = set()
    for statement in facts.statements:
        if _is_pipeline_call(walk, scope, statement, tainted):
            tainted.update(statement.binds)
        elif statement.acts or _calls_act(walk, scope, statement, facts):
            effects.append(statement.digest)
            walk.uses(node, scope, [word for word in statement.uses if not _is_pipeline(scope, word)])
        elif any(_is_own(walk, scope, call, facts) for call in statement.calls):
            node.marks |= ACTS
    for number in facts.decorated:
        unit = facts.unit(number)
        own = [decorator.chain for decorator in unit.decorators if decorator.chain]
        if any(_is_own(walk, scope, chain, facts) for chain in own):
            node.marks |= ACTS
        if not any(_registers(walk, scope, chain, facts) for chain in own):
            continue
        if not any(_is_pipeline(scope, word) for word in unit.uses):  # else a command, which runs it
            walk.unit(node, scope, unit, walk.title(module, unit.qualname))
            node.marks |= ACTS
    _classes(walk, node, module, facts)
    if effects:
        node.marks |= ACTS
        node.add(f"top level of {module.name} ({module.shown})", combined(effects))


def _classes(walk: Walk, node: Node, module: Module, facts: Facts) -> None:
    """Classes that a library or the project may keep a list of, because they are made from one of its own."""
    namespace = module.namespace or {}
    for name in facts.defined:
        cls: Any = namespace.get(name)
        if type(cls) is FunctionType or not issubclass(type(cls), type):
            continue
        for base in cls.__mro__[1:-1]:  # the last is object
            top = base.__module__.partition(".")[0]
            owner = sys.modules.get(base.__module__)
            kind = None if owner is None else walk.sources.of_namespace(vars(owner)).kind
            if kind == PROJECT and owner is not sys.modules.get(cls.__module__):
                node.marks |= ACTS
            if kind != PACKAGE or top in purity.UNREGISTERING:
                continue
            if "__init_subclass__" in vars(base) or type(base) not in (type, abc.ABCMeta):
                node.next.append(walk.code(cls))
                node.marks |= ACTS
                break


def _imports(walk: Walk, node: Node, module: Module, facts: Facts) -> None:
    node.next.extend(walk.lineage(module.name))
    for level, source, attributes in facts.imports:
        target = walk.sources.absolute(module, level, source)
        node.next.extend(walk.lineage(target))
        for name in attributes:
            if f"{target}.{name}" in sys.modules:
                node.next.extend(walk.lineage(f"{target}.{name}"))
    for idle in facts.idle:
        for what in facts.bound(idle):
            if isinstance(what, Import) and not what.attribute:
                target = walk.sources.absolute(module, what.level, what.module)
                imported(walk, node, target, (), bare=False)
                if isinstance(package := walk.sources.find(target), str) and package != "":
                    node.marks |= ACTS


def _is_pipeline_call(walk: Walk, scope: Scope, statement: StatementFacts, tainted: set[str]) -> bool:
    """Whether a statement runs a pipeline, or uses what one gave. It is not part of any step."""
    if any(chain and chain[0] in tainted for chain, _, _ in map(use_of, statement.uses)):
        return True
    first = statement.calls[0] if statement.calls else ()
    if first == ("print",):
        return any(_is_pipeline(scope, word) for word in statement.uses)
    return bool(first) and is_upshift(scope.look_up(first[:1]))


def _is_pipeline(scope: Scope, word: Word) -> bool:
    """Whether a name means a pipeline."""
    chain, origin, _ = use_of(word)
    value = scope.look_up(chain) if chain and origin is None else None
    return getattr(type(value), "__upshift_kind__", None) == "pipeline"


def is_upshift(value: Any) -> bool:
    """Whether an object is one of Upshift's own, or an instance of one of its classes."""
    name: Any = value.__name__ if is_module(value) else (value if is_code(value) else type(value)).__module__
    return isinstance(name, str) and name.partition(".")[0] == "upshift"


def _calls_act(walk: Walk, scope: Scope, statement: StatementFacts, facts: Facts) -> bool:
    """Whether the calls in an assignment may do more than to make values."""
    if any(_acts(walk, scope, call, facts) for call in statement.calls):
        return True
    if all(_path(walk, scope, call, facts) for call in statement.calls):
        return False
    # A function of the project may change what it is given.
    given = [chain for chain, origin, bare in map(use_of, statement.uses) if bare and origin is None]
    paths = [_path(walk, scope, chain, facts) for chain in given]
    return any(path is not None and _path_acts(path) for path in paths)


def _path_acts(path: tuple[str, ...]) -> bool:
    if path[0] in sys.stdlib_module_names:
        return purity.standard_acts(path)
    return purity.package_acts(path)


def _acts(walk: Walk, scope: Scope, call: Chain, facts: Facts) -> bool:
    """Whether a call at the top level may do more than to make a value."""
    path = _path(walk, scope, call, facts)
    return _own_acts(walk, scope, call) if path is None else _path_acts(path)


def _registers(walk: Walk, scope: Scope, chain: Chain, facts: Facts) -> bool:
    """Whether a decorator may leave what it decorates in some other place than its name."""
    path = _path(walk, scope, chain, facts)
    if path is not None:
        if path[0] in sys.stdlib_module_names:
            return path[0] in ("atexit", "codecs", "copyreg", "signal")
        return path[0] != "upshift" and purity.decorator_acts(path)
    if chain[0] in ("property", "staticmethod", "classmethod", "super"):
        return False
    return _own_acts(walk, scope, chain)


def _path(walk: Walk, scope: Scope, chain: Chain, facts: Facts) -> tuple[str, ...] | None:
    """The dotted name of something that is imported from outside the project."""
    if not chain:
        return None
    for what in facts.bound(chain[0]):
        if not isinstance(what, Import):
            return None
        target = walk.sources.absolute(scope.module, what.level, what.module)
        if not isinstance(walk.sources.find(target), Module):
            return (*target.split("."), *what.chain, *chain[1:])
    return None


def _is_own(walk: Walk, scope: Scope, chain: Chain, facts: Facts) -> bool:
    """Whether a name means something of the project, which may change other such things when it is called."""
    if not chain or _path(walk, scope, chain, facts) is not None:
        return False
    return scope.look_up(chain) is not None and not is_upshift(scope.look_up(chain[:1]))


def _own_acts(walk: Walk, scope: Scope, chain: Chain) -> bool:
    """Whether calling something of the project, or built-in, may act outside the project."""
    if not chain:
        return True
    value = scope.look_up(chain)
    if value is None:
        known = getattr(builtins, chain[0], None) if len(chain) == 1 else None
        return known is None or purity.builtin_acts(chain[0])
    if is_upshift(value):
        return False
    if is_upshift(scope.look_up(chain[:1])):
        return False
    code = value if is_code(value) else type(value)
    if code in _CONTAINERS:
        return False
    namespace = vars(sys.modules.get(code.__module__) or builtins)
    if walk.sources.of_namespace(namespace).kind != PROJECT:
        return True
    return bool(marks_of(reachable([walk.code(code)], modules=False)) & ACTS)
