"""Options of decorators that stand below ``@step``, kept on the function until ``@step`` takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from upshift.authoring.callee import Callee, checked_function, refused_on_pipeline, tell_of_one_process
from upshift.authoring.composing.scope import current_scope
from upshift.authoring.options import StepOptions
from upshift.errors import MisuseError, user_location

_OPTIONS = "__upshift_options__"
"""Where they are. ``functools.wraps`` of another decorator takes them along, up to ``@step``."""


def with_options_to_come(function: Any, options: StepOptions) -> Callable[..., Any]:
    """A function that is called like this one, and has options for the ``@step`` above.

    It is not a step yet: while a pipeline is composed, where it would work at once, it is not called.

    Raises
    ------
    GraphError
        It can be no step.
    """
    if getattr(type(function), "__upshift_kind__", None) == "pipeline":
        raise refused_on_pipeline(function.name)
    plain = checked_function(function, "step", "any")
    made = plain if _is_ours(plain) else _guarded(plain)
    setattr(made, _OPTIONS, (*options_to_come(made), options))
    return made


def options_to_come(function: Any) -> tuple[StepOptions, ...]:
    """What decorators have left on a function, the lowest first."""
    return getattr(function, _OPTIONS, ())


def without_guard(function: Any) -> Any:
    """The function as the user wrote it."""
    return function.__upshift_function__ if _is_ours(function) else function


def _is_ours(function: Any) -> bool:
    return getattr(function, "__globals__", None) is globals()


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def pending(*args: Any, **kwargs: Any) -> Any:
        if current_scope() is not None:
            raise MisuseError(
                f"{function.__name__} is called in a pipeline, and is not a step",
                where=user_location(),
                why="It has decorators of a step, but not @step: it would work here and now.",
                fix=f"Put @step above it: {Callee(function, 'step').location}.",
            )
        for options in options_to_come(pending):
            tell_of_one_process(function, options.launch)
        return function(*args, **kwargs)

    pending.__upshift_function__ = function  # type: ignore[attr-defined]
    return pending
