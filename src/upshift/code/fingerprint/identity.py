"""What a function or class is called where it is only named: inside a value, or behind another name.

A name says which one it is as long as it leads there: ``helpers.scale`` is what the module ``helpers``
has under ``scale``. A lambda, a closure or a function that was bound to something else meanwhile is told
apart by what it is made of, so that two of them that change places are seen.
"""

from __future__ import annotations

import sys
import types
from types import FunctionType
from typing import TYPE_CHECKING, Any

from upshift.code.fingerprint.bytecode import code_digest
from upshift.code.fingerprint.digests import combined
from upshift.code.fingerprint.holding import cells_of, defaults_of
from upshift.code.fingerprint.sources import PROJECT
from upshift.code.fingerprint.values import is_module, value_digest

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

SKIPPED_ATTRIBUTES = frozenset(
    {"__abstractmethods__", "_abc_impl", "__upshift_options__", "__annotate__", "__annotate_func__"}
)
"""What Python and Upshift leave in a class; from 3.14, a function that gives its annotations."""
DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


_DERIVED = frozenset(
    {
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__",
        "__signature__", "__annotations_cache__", "__static_attributes__", "__firstlineno__",
        "__parameters__",
        "__type_params__", "__orig_bases__", "__classcell__", "__classdictcell__",
        "__protocol_attrs__", "__private_attributes__", "__class_vars__",
    }
)  # fmt: skip
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, list, dict, set, frozenset)


def is_derived(name: str, value: Any) -> bool:
    """Whether an attribute of a class is only what Python or a library made of its source.

    Anything with a plain name is more than that, and so is code or plain data with a special one, such
    as ``__add__`` or ``__match_args__``, which Python itself looks up.
    """
    if not (name.startswith("__") and name.endswith("__")):
        return False
    if name in _DERIVED or name.startswith(("__pydantic_", "__attrs_", "__dataclass_")):
        return True
    return not (callable(value) or hasattr(type(value), "__get__") or type(value) in _PLAIN)


def token(walk: Walk, value: Any, within: tuple[int, ...] = ()) -> str:
    """What a function, class or module is called.

    Parameters
    ----------
    within
        ``id`` of those whose making is being described, outermost first.
    """
    if is_module(value):
        return f"module {value.__name__}"
    if type(value) is types.BuiltinFunctionType:
        return f"builtin {value.__module__}.{value.__qualname__}"
    label = _label(walk, value)
    if id(value) in within:
        return f"{label} again {len(within) - within.index(id(value))}"
    if is_by_name(value):
        return label
    makings = _function(walk, value, within) if type(value) is FunctionType else _class(walk, value, within)
    return f"{label} {combined(makings)}"


def is_by_name(value: Any) -> bool:
    """Whether the qualified name of a function or class leads to it."""
    owner = sys.modules.get(value.__module__) if isinstance(value.__module__, str) else None
    if owner is not None:
        found: Any = vars(owner)
    else:
        found = value.__globals__ if type(value) is FunctionType else {}
    if found.get(value.__qualname__) is value:
        return True
    for name in value.__qualname__.split("."):
        members = found if type(found) is dict else vars(found) if isinstance(found, type) else {}
        found = members.get(name)
        found = found.__func__ if type(found) in (staticmethod, classmethod) else found
    return found is value


def _label(walk: Walk, value: Any) -> str:
    if type(value) is FunctionType:
        namespace = value.__globals__
    else:
        owner = sys.modules.get(value.__module__) if isinstance(value.__module__, str) else None
        namespace = {} if owner is None else vars(owner)
    module = walk.sources.of_namespace(namespace) if namespace else walk.nowhere
    own = namespace and module.kind == PROJECT
    return f"{module.name if own else value.__module__}.{value.__qualname__}"


def _function(walk: Walk, function: FunctionType, within: tuple[int, ...]) -> list[str]:
    from upshift.code.fingerprint.functions import units_of

    units: list[Any] = []
    module = walk.sources.of_namespace(function.__globals__)
    if module.kind == PROJECT:
        _, units = units_of(walk, module, function)
    parts = [unit.digest for unit in units] or [code_digest(function.__code__)]
    for name, value in [*cells_of(function).items(), *defaults_of(function).items()]:
        parts.append(f"{name} {_held(walk, value, (*within, id(function)))}")
    return parts


def _class(walk: Walk, cls: type, within: tuple[int, ...]) -> list[str]:
    inside = (*within, id(cls))
    parts = [token(walk, base, inside) for base in (*cls.__bases__, type(cls))]
    for name, value in sorted(vars(cls).items()):
        if name in SKIPPED_ATTRIBUTES:
            continue
        if type(value) is FunctionType:
            parts.append(f"{name} {token(walk, value, inside)}")
        elif type(value) not in DESCRIPTORS and not is_derived(name, value):
            parts.append(f"{name} {_held(walk, value, inside)}")
    return parts


def _held(walk: Walk, value: Any, within: tuple[int, ...]) -> str:
    return value_digest(value, lambda code: token(walk, code, within), walk.is_own).digest
