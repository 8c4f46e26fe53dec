"""The names of a step's outputs, from its return annotation.

``-> tuple[A, B]`` is two outputs, ``output_0`` and ``output_1``; ``Annotated[A, "name"]`` names one,
alone or inside the tuple. Everything else, ``tuple[A, ...]`` and a bare ``tuple`` included, is one
output.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from upshift.errors import GraphError, location
from upshift.model.spec.annotations import Unresolved, annotation_of
from upshift.runtime.storage.manifest import is_list

_NAME = re.compile(r"\w[\w.-]*")
_ANYTHING = (Any, types.UnionType)


def output_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the outputs, in order.

    Raises
    ------
    GraphError
        Two outputs have the same name, or a name cannot be one.
    """
    hint = annotation_of(function, "return")
    given = _from_text(hint.text) if isinstance(hint, Unresolved) else _from_type(hint)
    if len(given) == 1:
        names: tuple[str, ...] = (given[0] or "output",)
    else:
        names = tuple(name or f"output_{number}" for number, name in enumerate(given))
    for name in names:
        if not _NAME.fullmatch(name) or names.count(name) > 1:
            twice = names.count(name) > 1
            raise GraphError(
                f"step {function.__name__!r} has two outputs named {name!r}"
                if twice
                else f"step {function.__name__!r}: {name!r} cannot be the name of an output",
                where=location(function.__code__.co_filename, function.__code__.co_firstlineno),
                fix="Give each a name of its own, of letters, digits, '_', '-' and '.'.",
            )
    return names


def plainly_no_list(function: Callable[..., Any], number: int) -> type | None:
    """The type of an output by its annotation, where that is plainly no list; else None."""
    hint = annotation_of(function, "return")
    if isinstance(hint, Unresolved) or hint is inspect.Parameter.empty:
        return None
    part = _parts(hint)[number]
    if typing.get_origin(part) is typing.Annotated:
        part = typing.get_args(part)[0]
    kind = type(None) if part is None else typing.get_origin(part) or part
    if typing.is_typeddict(kind):
        kind = dict
    if not isinstance(kind, type) or kind in _ANYTHING:
        return None
    with contextlib.suppress(TypeError):  # of a protocol
        return None if is_list(kind) or issubclass(list, kind) else kind
    return None


def _from_type(hint: Any) -> Sequence[str | None]:
    return [_annotated_name(part) for part in _parts(hint)]


def _parts(hint: Any) -> Sequence[Any]:
    """The annotation of each output."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(arguments) > 1 and Ellipsis not in arguments:
        return arguments
    return [hint]


def _annotated_name(hint: Any) -> str | None:
    if typing.get_origin(hint) is not typing.Annotated:
        if isinstance(hint, typing.ForwardRef):  # tuple["Annotated[A, 'name']", B]
            return _from_text(hint.__forward_arg__)[0]
        return None
    return next((note for note in typing.get_args(hint)[1:] if isinstance(note, str)), None)


def _from_text(text: str) -> Sequence[str | None]:
    try:
        expression = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return [None]
    arguments = _arguments(expression, "tuple", "Tuple")
    ellipsis = any(isinstance(a, ast.Constant) and a.value is Ellipsis for a in arguments)
    if len(arguments) > 1 and not ellipsis:
        return [_name_in(argument) for argument in arguments]
    return [_name_in(expression)]


def _name_in(expression: ast.expr) -> str | None:
    notes = _arguments(expression, "Annotated")[1:]
    return next((n.value for n in notes if isinstance(n, ast.Constant) and isinstance(n.value, str)), None)


def _arguments(expression: ast.expr, *generics: str) -> list[ast.expr]:
    """What stands in the brackets of one of ``generics``; empty for anything else."""
    if not isinstance(expression, ast.Subscript):
        return []
    generic = expression.value
    name = generic.attr if isinstance(generic, ast.Attribute) else getattr(generic, "id", None)
    if name not in generics:
        return []
    inside = expression.slice
    return list(inside.elts) if isinstance(inside, ast.Tuple) else [inside]
