"""``.map``: which arguments are mapped, and which are passed whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from string import ascii_lowercase
from typing import Any

from upshift.authoring.composing.placeholders import Inlined, Placeholder, Unmapped
from upshift.errors import GraphError, user_location
from upshift.model.checks import MOST_TASKS

_LISTS = (list, tuple, range)


def split(step: str, bound: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that are mapped, and those that are passed whole.

    Lists, tuples, ranges and step results are mapped. Everything else (text, dictionaries, arrays,
    tables, named tuples, …) is one value.

    Parameters
    ----------
    step
        Name of the step, for errors.
    bound
        The arguments by input name.

    Raises
    ------
    GraphError
        Nothing is mapped, several outputs of a step are, lists are of unequal length, or an iterator
        can be read once only.
    """
    mapped: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for name, value in bound.items():
        if type(value) is Inlined:
            value = value.output
        kind = type(value)
        if kind is Unmapped:
            whole[name] = value.value
        elif kind is Placeholder or kind in _LISTS:
            if value is bound[name]:  # a pipeline may well return such a tuple, to be mapped
                _check_one_output(step, name, value)
            mapped[name] = value
        elif hasattr(kind, "__next__"):
            raise GraphError(
                f"{step}.map: {name!r} is {a(kind)}, which can be read once only",
                where=user_location(),
                fix=f"Pass {name}=list(…).",
            )
        else:
            whole[name] = value
    if not mapped:
        raise GraphError(
            f"{step}.map has nothing to map",
            where=user_location(),
            why="Lists, tuples and step results are mapped; "
            + (", ".join(f"{n!r} is {a(type(v))}" for n, v in whole.items()) or "it has no arguments")
            + ".",
            fix=f"Pass a list, or call {step}(…).",
        )
    _check_lengths(step, mapped)
    return mapped, whole


def call_each(
    function: Callable[..., Any], outputs: int, mapped: Mapping[str, Any], whole: Mapping[str, Any]
) -> Any:
    """Call a plain function for each item: what ``.map`` is outside a pipeline.

    Returns
    -------
    list or tuple of lists
        A list of results; of several outputs a list each.
    """
    from upshift.model.spec.calls import bind

    results = []
    for items in zip(*mapped.values(), strict=True):
        args, kwargs = bind(function, {**whole, **dict(zip(mapped, items, strict=True))})
        results.append(function(*args, **kwargs))
    if outputs == 1:
        return results
    return tuple([result[number] for result in results] for number in range(outputs))


def _check_one_output(step: str, name: str, value: Any) -> None:
    """Refuse what a step with several outputs returned, where one of them is meant."""
    if type(value) is not tuple or len(value) < 2 or any(type(item) is not Placeholder for item in value):
        return
    sources = [item._source for item in value]
    outputs = [source.output for source in sources]
    if len({source.node for source in sources}) > 1 or len(set(outputs)) < len(outputs):
        return
    producer = sources[0].node
    unnamed = outputs[0] == "output_0" and len(outputs) <= len(ascii_lowercase)
    names = list(ascii_lowercase[: len(outputs)]) if unnamed else [re.sub(r"\W", "_", o) for o in outputs]
    raise GraphError(
        f"{step}.map: {name!r} is all {len(outputs)} outputs of step {producer!r}: {', '.join(outputs)}",
        where=user_location(),
        why="An output that is a list can be mapped; several outputs are not a list.",
        fix=f"Take them apart: {', '.join(names)} = {producer}(…), then {step}.map({name}={names[0]}).\n"
        f"To map over the outputs themselves: {step}.map({name}=[{', '.join(names)}]).",
    )


def _check_lengths(step: str, mapped: Mapping[str, Any]) -> None:
    lengths = {name: _length(items) for name, items in mapped.items() if type(items) is not Placeholder}
    for name, count in lengths.items():
        if count > MOST_TASKS:
            raise GraphError(
                f"{step}.map: {name!r} has {count:,} items, and a step has at most {MOST_TASKS:,} tasks",
                where=user_location(),
                fix="Give each task several items: map over lists of them.",
            )
    if len(set(lengths.values())) > 1:
        raise GraphError(
            f"{step}.map: lists of unequal length",
            where=user_location(),
            why=", ".join(f"{name!r} has {count} items" for name, count in lengths.items()) + ".",
            fix="Mapped lists are zipped together: make them equally long, or pass one whole: unmapped(…).",
        )


def _length(items: Any) -> int:
    try:
        return len(items)
    except OverflowError:  # a range
        return sys.maxsize


def a(kind: type) -> str:
    """``a dict``, ``an int``."""
    name = kind.__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
