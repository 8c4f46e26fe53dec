"""Annotations as the user meant them: resolved where that is possible, their text where it is not.

With ``from __future__ import annotations`` they are text, and may use names that exist only under
``TYPE_CHECKING``. Each is resolved by itself, so that one of those does not spoil the others.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from upshift.model.spec.calls import signature_of


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
