"""Unknown keywords of a decorator are refused with the nearest name, and hints survive."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from upshift.errors import SettingsError, suggestion, user_location

F = TypeVar("F", bound=Callable[..., Any])


def checked_keywords(owner: str) -> Callable[[F], F]:
    """Decorator: an unknown or positional option of ``owner`` names the right ones.

    Python alone would say ``got an unexpected keyword argument``, which names neither the nearest
    option nor the user's line.
    """

    def decorate(function: F) -> F:
        code = function.__code__
        taken = code.co_argcount
        known = code.co_varnames[taken : taken + code.co_kwonlyargcount]

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            if len(args) > taken:
                raise SettingsError(
                    f"{owner} takes its options by name, not by position",
                    where=user_location(),
                    fix=f"Options: {', '.join(known)}.",
                )
            for name in options:
                if name not in known:
                    raise SettingsError(
                        f"{owner} has no option {name!r}", where=user_location(), fix=suggestion(name, known)
                    )
            return function(*args, **options)

        return cast(F, checked)

    return decorate
