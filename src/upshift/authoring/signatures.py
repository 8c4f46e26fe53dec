"""Calls, checked while the pipeline is composed: which argument goes to which parameter.

``inspect.Signature.bind`` does the same, but takes longer than all the rest of a call, and its
errors name neither the nearest parameter nor the user's line.

The names of outputs follow from the return annotation: ``-> tuple[A, B]`` is two outputs, ``output_0``
and ``output_1``; ``Annotated[A, "name"]`` names one, alone or inside the tuple. Everything else,
``tuple[A, ...]`` and a bare ``tuple`` included, is one output.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upshift.errors import GraphError, location, nearest, user_location
from upshift.model.checks import shown
from upshift.model.spec.calls import (
    Unresolved,
    annotation_of,
    extra_positional,
    names_taken,
    shadowed_keyword,
    signature_of,
)
from upshift.runtime.storage.manifest import is_list

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


class CallSignature:
    """What a function can be called with.

    Parameters
    ----------
    function
        The function.
    kind
        What it is for the user: ``"step"`` or ``"pipeline"``.

    Attributes
    ----------
    names
        Parameters that take one argument each, in order.
    required
        Those of them without a default.
    recorded
        Defaults that are plain data, or name data (``Path``, ``External``), by parameter. Only these are
        inputs of a call that does not pass them: any other default (a sentinel object, say) means
        something by being that very object, and is left to the function itself.
    """

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self._function = function
        self._kind = kind
        self._signature = signature_of(function)
        parameters = list(self._signature.parameters.values())
        single = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.names = tuple(p.name for p in single)
        self.required = tuple(p.name for p in single if p.default is p.empty)
        self.defaults = {p.name: p.default for p in single if p.default is not p.empty}
        self.recorded = {name: value for name, value in self.defaults.items() if _is_data(value)}
        self.takes_extra_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._positional = tuple(p.name for p in single if p.kind is not p.KEYWORD_ONLY)
        self._takes_extra = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._taken = names_taken(function)
        self._by_keyword = frozenset(p.name for p in single if p.kind is not p.POSITIONAL_ONLY)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by input name (:mod:`upshift.model.spec.calls`), defaults left out.

        Raises
        ------
        GraphError
            An argument is missing, unknown, passed twice or one too many.
        """
        bound = dict(zip(self._positional, args, strict=False))
        if len(args) > len(self._positional):
            if not self._takes_extra:
                raise self._too_many(len(args), kwargs)
            for number, value in enumerate(args[len(self._positional) :]):
                bound[extra_positional(number)] = value
        for name, value in kwargs.items():
            if name not in self._by_keyword:
                if not self.takes_extra_keywords:
                    raise self.unknown(name)
                bound[shadowed_keyword(name) if name in self.names else name] = value
            elif name in bound:
                raise self._error(f"gets the argument {name!r} twice", f"Pass {name!r} once.")
            else:
                bound[name] = value
        self.check_complete(bound)
        self._check_reachable(bound)
        return bound

    def check(self, bound: Mapping[str, Any]) -> None:
        """Refuse arguments by input name that are unknown or not complete.

        Raises
        ------
        GraphError
        """
        for name in bound:
            known = name in self.names or name.startswith("*") or self.takes_extra_keywords
            if not known:
                raise self.unknown(name)
        self.check_complete(bound)
        self._check_reachable(bound)

    def check_complete(self, bound: Mapping[str, Any]) -> None:
        """Refuse a call without one of its required arguments."""
        for name in self.required:
            if name not in bound:
                missing = [n for n in self.required if n not in bound]
                listing = ", ".join(repr(n) for n in missing)
                plural = "s" if len(missing) > 1 else ""
                fix = f"Write {self._call(bound)}." if self._kind == "pipeline" else f"Pass {listing}."
                if self.names[0] == "self":
                    fix += " Of an object nothing is passed for you: a step is a function, not a method."
                raise self._error(f"is missing the argument{plural} {listing}", fix)

    def _check_reachable(self, bound: Mapping[str, Any]) -> None:
        """Refuse an argument that a wrapper around the function, made by a decorator, does not pass on."""
        if self._taken is None:
            return
        for name in bound:
            name = name.removeprefix("**")
            if name not in self._positional and name not in self._taken and name[0] != "*":
                code = self._function.__code__
                raise self._error(
                    f"cannot get the argument {name!r}: a decorator's wrapper, "
                    f"{location(code.co_filename, code.co_firstlineno)}, does not take it by name",
                    "Let the wrapper take *args and **kwargs, and pass both on.",
                )

    def unknown(self, name: str) -> GraphError:
        """The error for an argument that means nothing, with the nearest name."""
        close = nearest(name, self.names)
        fix = f"Did you mean {close!r}?" if close else f"Arguments: {', '.join(self.names) or 'none'}."
        if self._takes_extra and not self.names:
            fix = "Pass it by position."
        return self._error(f"has no argument {name!r}", fix)

    def by_name(self, given: object, named: Mapping[str, Any]) -> GraphError:
        """The error for ``training.run(lr=0.1)``, or ``.run(0.1)``: that takes a dictionary."""
        for name in named:
            if name not in self.names and not self.takes_extra_keywords:
                return self.unknown(name)
        said = [shown(given)] if given is not None else []
        said += [f"{name}={shown(value)}" for name, value in named.items()]
        call = self._call(named) if given is None else f"{self._function.__name__}({', '.join(said)})"
        return self._error(f"takes a dictionary in .run(…), and gets {', '.join(said)}", f"Write {call}.")

    def _call(self, bound: Mapping[str, Any]) -> str:
        """The call to write: what is passed already, and ``…`` for what is missing."""
        said = dict.fromkeys(self.required, "…")
        said |= {name: shown(value, 40) for name, value in bound.items() if _is_data(value)}
        written = [f"{name}={said[name]}" for name in self.names if name in said]
        return f"{self._function.__name__}({', '.join(written)})"

    def __str__(self) -> str:
        written = [
            p.replace(
                annotation=p.empty if p.annotation is p.empty else _Written(_annotation(p.annotation)),
                default=p.empty if p.default is p.empty else _Written(shown(p.default, 60)),
            )
            for p in self._signature.parameters.values()
        ]
        signature = self._signature.replace(parameters=written, return_annotation=self._signature.empty)
        return f"{self._function.__name__}{signature}"

    def _too_many(self, given: int, kwargs: Mapping[str, Any]) -> GraphError:
        most = len(self._positional)
        only_named = [name for name in self.names if name not in self._positional]
        if most:
            what = f"takes at most {most} argument{'' if most == 1 else 's'}"
            what += f"{' by position' if only_named else ''}, and gets {given}"
        elif only_named:
            what = f"takes its arguments by name, and gets {given} by position"
        else:
            what = f"takes no arguments, and gets {given}"
        left = ", ".join(f"{name}=…" for name in only_named if name not in kwargs)
        return self._error(what, f"Pass by name: {left}." if left else "Leave the rest out.")

    def _error(self, what: str, fix: str) -> GraphError:
        code = getattr(self._function, "__code__", None)
        at = f", {location(code.co_filename, code.co_firstlineno)}" if code else ""
        return GraphError(
            f"{self._kind} {self._function.__name__!r} {what}",
            where=user_location(),
            why=f"It is {self}{at}",
            fix=fix,
        )


class _Written:
    """Stands in a signature for what is shown there as this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _annotation(hint: object) -> str:
    if isinstance(hint, str):
        return hint
    plain = isinstance(hint, type) and not hasattr(hint, "__args__")
    return hint.__qualname__ if plain else repr(hint).replace("typing.", "")  # type: ignore[attr-defined]


def _is_data(value: object) -> bool:
    """Whether a value is data all through: numbers, text, what names data, and containers of them."""
    kind = type(value)
    if kind in _PLAIN or kind is type(Path()):
        return True
    if isinstance(value, (list, tuple)) and kind in (list, tuple):
        return all(_is_data(item) for item in value)
    if isinstance(value, dict) and kind is dict:
        return all(_is_data(key) and _is_data(item) for key, item in value.items())
    external = sys.modules.get("upshift.runtime.storage.external")  # who has an object of it has imported it
    return external is not None and kind is external.External


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
