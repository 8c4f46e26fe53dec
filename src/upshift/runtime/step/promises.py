"""What a step returned, against the annotation of what it returns: a line in the log where they contradict.

A step never fails for it. Only Python's own types are looked at, from the outside, and whatever counts
as one of them (NumPy's numbers, mappings, …) is taken for it.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any

from upshift.model.plain import type_name
from upshift.model.spec.annotations import annotation_of

_COUNT_AS: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    bytes: (bytes, bytearray, memoryview),
    dict: (Mapping,),
    float: (Real,),
    int: (Integral,),
    list: (list,),
    set: (Set,),
    str: (str,),
    tuple: (tuple,),
}


def remarks(function: Callable[..., Any], step: str, values: Sequence[object]) -> Iterator[str]:
    """What to say where an output is not what the function's annotation promises."""
    hint = annotation_of(function, "return")
    hints = typing.get_args(_bare(hint)) if len(values) > 1 else (hint,)
    for number, (promised, value) in enumerate(zip(hints, values, strict=False), 1):
        if _contradicts(promised, value):
            which = "" if len(values) == 1 else f" as output {number}"
            yield f"{step} is annotated to return {_shown(promised)}{which}, and returned {type_name(value)}"


def _contradicts(hint: Any, value: object) -> bool:
    hint = _bare(hint)
    origin = typing.get_origin(hint) or hint
    if origin in (typing.Union, types.UnionType):
        return all(_contradicts(one, value) for one in typing.get_args(hint))
    if origin in (None, type(None)):
        return value is not None
    kinds = _COUNT_AS.get(origin) if isinstance(origin, type) else None
    if kinds is None or isinstance(value, kinds):
        return False
    return not (origin is bool and type(value).__name__ in ("bool", "bool_"))  # those of NumPy


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _shown(hint: Any) -> str:
    hint = _bare(hint)
    return (
        hint.__name__
        if typing.get_origin(hint) is None and isinstance(hint, type)
        else str(hint).removeprefix("typing.")
    )
