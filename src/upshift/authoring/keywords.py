"""Refuses unknown keywords of a decorator with the nearest name, and keeps the decorator's type hints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from upshift.errors import SettingsError, suggestion, user_location
from upshift.model.checks import shown
from upshift.model.settings.later import option_of_another_tool

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
            if len(args) > taken or (args and isinstance(args[0], (int, float))):
                said = f"Say {owner}({known[0]}={shown(args[0])}). " if len(args) == 1 else ""
                raise SettingsError(
                    f"{owner} takes its options by name, not by position",
                    where=user_location(),
                    fix=f"{said}Options: {', '.join(known)}.",
                )
            for name, value in options.items():
                if name not in known:
                    raise SettingsError(
                        f"{owner} has no option {name!r}",
                        where=user_location(),
                        fix=option_of_another_tool(name)
                        or ("settings" in known and _setting(owner, name, value))
                        or suggestion(name, known),
                    )
            return function(*args, **options)

        return cast(F, checked)

    return decorate


def _setting(owner: str, name: str, value: Any) -> str | None:
    """How to say in ``settings`` what was given beside it; None: it is nothing of settings."""
    import attrs

    from upshift.model.settings.docker import DockerSettings
    from upshift.model.settings.resources import SIZES, ResourceSettings

    for key, kind in (("resources", ResourceSettings), ("docker", DockerSettings)):
        fields = [field.name for field in attrs.fields(kind) if field.init]
        field = getattr(kind, "_elsewhere", {}).get(name, name)
        if field not in (key, *fields):
            continue
        # A bare number is bytes in the one place, and MB in the other.
        amount = field in SIZES and not isinstance(value, str)
        inner = "…" if field == key else f"{field}={('16GB' if amount else value)!r}"
        above = f", or put @resources({inner}) above it" if key == "resources" and owner == "@step" else ""
        return f'Say {owner}(settings={{"{key}": {kind.__name__}({inner})}}){above}.'
    return None
