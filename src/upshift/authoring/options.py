"""Options of ``@step`` and ``@pipeline`` beside :class:`~upshift.model.settings.step.StepSettings`.

A decorator refuses unknown keywords with the nearest name (:func:`checked_keywords`), and keeps its type
hints.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

import attrs

from upshift.errors import SettingsError, suggestion, user_location
from upshift.model.checks import bad_value, line, option_of_another_tool, shown
from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.environment import PythonEnvironment
from upshift.model.settings.resources import SIZES, ResourceSettings
from upshift.model.settings.step import StepSettings
from upshift.model.spec.codec import encode

if TYPE_CHECKING:
    from upshift.runtime.launch.merging import LaunchRequest


Settings = Mapping[str, Union[ResourceSettings, DockerSettings, Mapping[str, Any], Any]]
"""What ``settings=`` takes: ``"resources"``, ``"docker"``, ``"environment"``, and a backend's own settings
by its name."""

LONGEST_TAG = 200
_NAME = re.compile(r"\w[\w.-]{0,99}")


@attrs.frozen(kw_only=True, eq=False)
class StepOptions:
    """What a step was told: its settings, and what becomes part of its definition.

    Parameters
    ----------
    settings
        Its settings.
    name
        Its name; None: the function's.
    launch
        How many processes it has, and how they are started.
    flow
        What only steps of flows can obey, by decorator.
    """

    settings: StepSettings = attrs.field(factory=StepSettings)
    name: str | None = None
    launch: LaunchRequest | None = None
    flow: Mapping[str, Any] = attrs.field(factory=dict)

    def beside(self, other: StepOptions) -> StepOptions:
        """These options and those of another decorator on the same step.

        Raises
        ------
        SettingsError
            Both say something, and it cannot be decided which one counts.
        """
        if self.launch is not None and other.launch is not None:
            from upshift.runtime.launch.merging import wrapped_twice

            raise wrapped_twice(other.launch, self.launch.launcher, self.launch.said)
        return StepOptions(
            settings=self.settings.beside(other.settings),
            name=self.name or other.name,
            launch=self.launch or other.launch,
            flow=_both(self.flow, other.flow),
        )

    def replaced(self, newer: StepOptions) -> StepOptions:
        """These options, with what ``newer`` says instead."""
        return StepOptions(
            settings=self.settings.replaced(newer.settings),
            name=newer.name or self.name,
            launch=newer.launch or self.launch,
            flow={**self.flow, **newer.flow},
        )


def _both(newer: Mapping[str, Any], older: Mapping[str, Any]) -> Mapping[str, Any]:
    """What two decorators of a step say; cards are told one by one."""
    lists = {name: (*newer[name], *older[name]) for name in newer.keys() & older.keys() if name == "card"}
    return {**older, **newer, **lists}


@attrs.frozen(kw_only=True, eq=False)
class PipelineOptions:
    """What a pipeline was told.

    Parameters
    ----------
    steps
        The settings of its steps where these say nothing; ``on`` is the pipeline's own target.
    name
        Its name; None: the function's.
    tags
        Tags of its runs.
    on_failure
        ``"stop"``, or ``"continue"`` with what does not depend on the step that failed.
    strict
        Whether a request that cannot be granted in full is refused; None: as the backend does it.
    """

    steps: StepSettings = attrs.field(factory=StepSettings)
    name: str | None = None
    tags: tuple[str, ...] = ()
    on_failure: str | None = None
    strict: bool | None = None

    def replaced(self, newer: PipelineOptions) -> PipelineOptions:
        """These options, with what ``newer`` says instead."""
        said = {name: getattr(newer, name) for name in ("name", "tags", "on_failure", "strict")}
        changes = {name: value for name, value in said.items() if value not in (None, ())}
        return attrs.evolve(self, steps=self.steps.replaced(newer.steps), **changes)

    def over(self, outer: PipelineOptions) -> PipelineOptions:
        """The options of a pipeline inside another one."""
        return attrs.evolve(self, steps=self.steps.over(outer.steps))


def settings_said(owner: str, *, settings: Settings | None, **options: Any) -> StepSettings:
    """The settings that a user has typed, checked.

    Parameters
    ----------
    owner
        Where: ``"@step"``, ``"@pipeline"``, ``"with_options"``.

    Raises
    ------
    SettingsError
        A value is invalid.
    """
    if settings is None:
        settings = {}
    elif not isinstance(settings, Mapping):
        raise bad_value(
            owner, "settings", settings, 'a dict: {"resources": ResourceSettings(…), "docker": …}'
        )
    records: dict[str, Any] = {}
    backends: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in _OWN:
            backends |= _of_backend(owner, key, value)
        elif value is not None:
            records[_FIELDS.get(key, key)] = _record(owner, key, value, _OWN[key])
    options["retry"] = options.pop("retries")
    return StepSettings.said(owner, {**records, "backends": backends}, **options)


def checked_tags(owner: str, tags: str | Iterable[str]) -> tuple[str, ...]:
    """Words to find a run by, checked."""
    words = (tags,) if isinstance(tags, str) else tags
    if not isinstance(words, Iterable):
        raise bad_value(owner, "tags", tags, "a list of non-empty strings")
    return tuple(line(owner, f"tags[{n}]", word, most=LONGEST_TAG) for n, word in enumerate(words))


def identifier(owner: str, value: str | None) -> str | None:
    """A name that can be part of a path and of ``name[3]``, or None, checked."""
    if value is not None and (not isinstance(value, str) or not _NAME.fullmatch(value)):
        raise bad_value(owner, "name", value, "letters, digits, '_', '-' and '.', at most 100 of them")
    return value


_OWN: Mapping[str, Any] = {
    "resources": ResourceSettings,
    "docker": DockerSettings,
    "environment": PythonEnvironment,
}
_FIELDS = {"environment": "python_environment"}
"""Of :class:`StepSettings` what is not called as here."""


def _record(owner: str, key: str, value: Any, cls: Any) -> Any:
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise bad_value(
            owner, f"settings[{shown(key)}]", value, f"{cls.__name__}(…), or a dict of its fields"
        )
    if hasattr(cls, "from_value"):
        return cls.from_value(value)
    return cls(**value)


def _of_backend(owner: str, key: str, value: Any) -> dict[str, Any]:
    """The fields that are said of a backend's own settings, by its name."""
    try:
        from upshift.backends.registry import backend_names, settings_class
    except ModuleNotFoundError:  # beside a step there are no backends: this was checked where the run started
        return {}
    cls = settings_class(key) if isinstance(key, str) else None
    if cls is None:
        known = [*_OWN, *(name for name in backend_names() if settings_class(name) is not None)]
        raise SettingsError(
            f"{owner} has no settings {shown(key)}",
            where=user_location(),
            fix=suggestion(str(key), known),
        )
    return {} if value is None else {key: encode(_record(owner, key, value, cls))}


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
                said = f"Write {owner}({known[0]}={shown(args[0])}). " if len(args) == 1 else ""
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
    for key, kind in (("resources", ResourceSettings), ("docker", DockerSettings)):
        fields = [field.name for field in attrs.fields(kind) if field.init]
        field = getattr(kind, "_elsewhere", {}).get(name, name)
        if field not in (key, *fields):
            continue
        # A bare number is bytes in the one place, and MB in the other.
        amount = field in SIZES and not isinstance(value, str)
        inner = "…" if field == key else f"{field}={('16GB' if amount else value)!r}"
        above = f", or put @resources({inner}) above it" if key == "resources" and owner == "@step" else ""
        return f'Write {owner}(settings={{"{key}": {kind.__name__}({inner})}}){above}.'
    return None
