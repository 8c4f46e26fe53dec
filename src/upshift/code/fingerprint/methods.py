"""A method that is run on its own, such as a step of a class-style pipeline.

What it takes from ``self`` is looked up by name in its class, and no more: another step of the same
class does not count.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING

from upshift.code.fingerprint.nodes import Node
from upshift.code.fingerprint.sources import PROJECT
from upshift.code.fingerprint.toplevel import is_upshift

if TYPE_CHECKING:
    from upshift.code.fingerprint.walk import Walk

_DYNAMIC = frozenset({"__dict__", "__getattribute__", "__class__"})


def expand_method(walk: Walk, node: Node, method: FunctionType, owner: type | None) -> None:
    """Fill in the node of what a method reaches through its class."""
    owner = owner or _owner(method)
    if owner is None:
        return
    seen: set[str] = set()
    pending = [method]
    for function in pending:  # grows while it is walked
        names = _attributes(walk, function)
        if not _DYNAMIC.isdisjoint(names) or "getattr" in function.__code__.co_names:
            node.next.append(walk.code(owner))
            return
        for name in sorted(names - seen):
            seen.add(name)
            for cls in owner.__mro__:
                if name not in vars(cls):
                    continue
                if walk.sources.of_namespace(vars(sys.modules[cls.__module__])).kind == PROJECT:
                    pending.extend(_reach(walk, node, cls, name))


def _reach(walk: Walk, node: Node, cls: type, name: str) -> list[FunctionType]:
    value = vars(cls)[name]
    if is_upshift(value) or hasattr(value, "__upshift_options__"):
        return []  # another step of the class, named as the next one
    node.next.append(walk.value(value, f"{cls.__module__}.{cls.__qualname__}.{name}"))
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    return [inner] if type(inner) is FunctionType else []


def _attributes(walk: Walk, function: FunctionType) -> set[str]:
    names = set(function.__code__.co_names)
    for constant in function.__code__.co_consts:
        names |= set(getattr(constant, "co_names", ()))
    return names


def _owner(method: FunctionType) -> type | None:
    path, _, _ = method.__qualname__.rpartition(".")
    if not path or path.endswith("<locals>"):
        return None
    value: object = sys.modules.get(method.__module__)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, type) else None
