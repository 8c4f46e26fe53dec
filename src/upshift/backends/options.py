"""The options of a target, checked: each error names the target, the option and its value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from upshift.errors import ConfigError, SettingsError, suggestion
from upshift.model.configuration import Target


def refuse_options(target: Target, known: Iterable[str]) -> Mapping[str, Any]:
    """The target's options; raises unless all of them are ``known``.

    Raises
    ------
    ConfigError
        One is not; the nearest name is shown.
    """
    known = tuple(known)
    for option in target.options:
        if option not in known:
            raise ConfigError(
                f"target {target.name!r}: backend {target.backend!r} has no option {option!r}",
                fix=suggestion(option, known),
            )
    return target.options


def options_of(
    target: Target,
    settings: type,
    *,
    own: Collection[str] = (),
    mounts: bool = False,
) -> dict[str, Any]:
    """What a target says to all of its steps: fields of their settings, beside options of its ``own``.

    Raises
    ------
    ConfigError
        An option is unknown or invalid, or the target has what no scheduler's jobs can use.
    """
    owner = f"target {target.name!r}"
    fields = [field.name for field in attrs.fields(settings)]
    given = refuse_options(target, [*own, *fields])
    try:
        said = settings(**{name: value for name, value in given.items() if name in fields})
    except SettingsError as error:
        what = error.what.replace(settings.__name__, owner, 1)
        raise ConfigError(what, why=error.why, fix=error.fix) from None
    if target.mounts and not mounts:
        raise ConfigError(
            f"{owner}: the {target.backend} backend mounts nothing",
            why="Steps see the folders of their node.",
            fix="Leave mounts out.",
        )
    return {name: value for name, value in attrs.asdict(said).items() if name in given}


def text_option(target: Target, name: str, fix: str = "Write a string.") -> str | None:
    """An option that is a text; None: it is not set. Raises ``ConfigError`` for anything else."""
    value = target.options.get(name)
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise invalid_option(target, name, fix)


def flag_option(target: Target, name: str, *, default: bool = False) -> bool:
    """An option that is true or false. Raises ``ConfigError`` for anything else."""
    value = target.options.get(name, default)
    if isinstance(value, bool):
        return value
    raise invalid_option(target, name, "Write true or false.")


def choice_option(target: Target, name: str, choices: Collection[str]) -> str | None:
    """An option that is one of these words; None: it is not set. Raises ``ConfigError`` for anything else."""
    value = target.options.get(name)
    if value is None or value in choices:
        return value
    raise invalid_option(target, name, f"Expected one of {', '.join(choices)}.")


def invalid_option(target: Target, name: str, fix: str) -> ConfigError:
    """The error for an option whose value means nothing."""
    return ConfigError(f"target {target.name!r}: {name} = {target.options[name]!r} is invalid", fix=fix)
