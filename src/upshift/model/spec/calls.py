"""How a function is called: its signature and annotations, and the names of its arguments in a record.

An input is named for the parameter that it is bound to. Two kinds of argument have no parameter of
their own: what ``*args`` takes is named ``*0``, ``*1``, …; what ``**kwargs`` takes keeps its own
name, or ``**name`` where a positional-only parameter has that name already.

With ``from __future__ import annotations`` annotations are text, and may use names that exist only under
``TYPE_CHECKING``. Each is resolved by itself, so that one of those does not spoil the others.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature. Annotations that cannot be evaluated do no harm."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def extra_positional(number: int) -> str:
    """The input name of the ``number``-th argument, from 0, that ``*args`` takes."""
    return f"*{number}"


def shadowed_keyword(name: str) -> str:
    """The input name of a keyword for ``**kwargs`` that a positional-only parameter is named like."""
    return f"**{name}"


def names_taken(function: Callable[..., Any]) -> frozenset[str] | None:
    """What a function takes by name, as it is written; None: whatever its signature says.

    A wrapper below ``functools.wraps`` has the signature of what it wraps, and may itself have
    ``*args`` only.
    """
    if not hasattr(function, "__wrapped__"):
        return None
    own = inspect.signature(function, follow_wrapped=False).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in own):
        return None
    return frozenset(p.name for p in own if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def bind(function: Callable[..., Any], inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments with which to call ``function``.

    Parameters
    ----------
    function
        A function as it is now; inputs may have been recorded for an earlier version of it.
    inputs
        Values by input name. A parameter that is not among them keeps its default.

    Raises
    ------
    TypeError
        A parameter that has to be passed by position has neither a value nor a default.
    """
    code = None if hasattr(function, "__wrapped__") else getattr(function, "__code__", None)
    if code is not None and not code.co_posonlyargcount and not any(name[0] == "*" for name in inputs):
        return (), dict(inputs)  # nearly all functions: all inputs go by keyword
    keywords = {
        name.removeprefix("**"): value for name, value in inputs.items() if not _is_extra_positional(name)
    }
    shadowed = {name.removeprefix("**") for name in inputs if name.startswith("**")}
    extra = [inputs[name] for name in sorted(filter(_is_extra_positional, inputs), key=_number)]
    positional: list[Any] = []
    for parameter in _by_position(function, inputs, all_of_them=bool(extra)):
        name = parameter.name
        if name in inputs:
            positional.append(inputs[name])
            if name not in shadowed:
                del keywords[name]
        elif parameter.default is not parameter.empty:
            positional.append(parameter.default)
        else:
            raise TypeError(f"{function.__name__}() is missing the argument {name!r}")
    return (*positional, *extra), keywords


def _by_position(
    function: Callable[..., Any], inputs: Mapping[str, Any], *, all_of_them: bool
) -> list[inspect.Parameter]:
    """The parameters whose arguments are passed by position, in order."""
    taken = names_taken(function)
    parameters = list(signature_of(function).parameters.values())
    able = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = 0
    for number, parameter in enumerate(able, start=1):
        nameless = taken is not None and parameter.name in inputs and parameter.name not in taken
        if all_of_them or nameless or parameter.kind is parameter.POSITIONAL_ONLY:
            most = number
    return able[:most]


def _is_extra_positional(name: str) -> bool:
    return name.startswith("*") and not name.startswith("**")


def _number(name: str) -> int:
    return int(name[1:])


@attrs.frozen
class Unresolved:
    """An annotation of which only the text is known."""

    text: str


def annotation_of(function: Callable[..., Any], name: str) -> Any:
    """The annotation of a parameter, or of ``"return"``.

    Returns
    -------
    object
        A type; :class:`Unresolved`; ``inspect.Parameter.empty`` where there is no annotation.
    """
    plain = inspect.unwrap(function)
    hint = _annotations(plain).get(name, inspect.Parameter.empty)
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if not isinstance(hint, str):
        return hint
    try:
        # The text is the user's own source, evaluated where Python itself would evaluate it.
        return eval(hint, getattr(plain, "__globals__", {}), _enclosing(plain))
    except Exception:  # whatever the user's own expression raises
        return Unresolved(hint)


def parameter_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of each parameter, as :func:`annotation_of` gives it."""
    return {name: annotation_of(function, name) for name in signature_of(function).parameters}


def _annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return getattr(function, "__annotations__", {})


def _enclosing(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of enclosing functions that this one uses."""
    names = function.__code__.co_freevars
    cells = getattr(function, "__closure__", None) or ()
    values = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return values
