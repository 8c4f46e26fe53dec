"""What ``@step`` and ``@pipeline`` can be told, checked where the user wrote it, and how it merges.

Three rules, from the inside out: what stands on one step together (``@step``, ``@resources``) asks
for the larger of each explicit value; ``with_options`` replaces what it names; a pipeline's
settings are the values of its steps where these say nothing.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union

import attrs

from upshift.errors import SettingsError, suggestion, user_location
from upshift.model.settings.base import bad_value
from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import Retry
from upshift.model.settings.secrets import checked_secrets

if TYPE_CHECKING:
    from upshift.runtime.launch.merging import LaunchRequest

Settings = Mapping[str, Union[ResourceSettings, DockerSettings, Mapping[str, Any]]]
"""What ``settings=`` takes: ``"resources"`` and ``"docker"``."""
Seconds = Union[int, float, datetime.timedelta]

_OF_DEVICES = ("accelerator", "gpu_memory", "gpu_vendor", "gpu_count", "num_nodes")
_NAME = re.compile(r"\w[\w.-]{0,99}")
_Options = TypeVar("_Options", bound="Options")


@attrs.frozen(kw_only=True, eq=False)
class Options:
    """What steps and pipelines have in common. None: not said.

    Parameters
    ----------
    resources, docker, retry
        The settings.
    origins
        Where each value of ``resources`` comes from: field to ``file:line (@decorator)``; each of
        ``docker``, as ``docker.FIELD``; each secret, as ``secrets.NAME``; and ``on``.
    secrets
        Sources of environment variables, by variable.
    cache
        Whether results may be reused.
    on
        Target or backend.
    """

    resources: ResourceSettings = attrs.field(factory=ResourceSettings)
    origins: Mapping[str, str] = attrs.field(factory=dict)
    docker: DockerSettings | None = None
    retry: Retry | None = None
    secrets: Mapping[str, str] | None = None
    cache: bool | None = None
    on: str | None = None

    def replaced(self: _Options, newer: _Options) -> _Options:
        """These options, with what ``newer`` says instead."""
        changes = {
            field.name: value
            for field in attrs.fields(type(self))
            if field.name not in ("resources", "origins", "docker")
            and (value := getattr(newer, field.name)) not in (None, ())
        }
        return attrs.evolve(self, **changes, **_merged(newer, self, changes.get("secrets", self.secrets)))

    def over(self: _Options, outer: Options) -> _Options:
        """These options, with ``outer``'s where they say nothing."""
        own = {name: getattr(self, name) for name in ("retry", "cache", "on")}
        inherited = {name: getattr(outer, name) for name, value in own.items() if value is None}
        secrets = None
        if self.secrets is not None or outer.secrets is not None:
            secrets = {**(outer.secrets or {}), **(self.secrets or {})}
        return attrs.evolve(self, **inherited, secrets=secrets, **_merged(self, outer, secrets))


@attrs.frozen(kw_only=True, eq=False)
class StepOptions(Options):
    """What a step was told.

    Parameters
    ----------
    name
        Its name; None: the function's.
    timeout, grace
        Seconds.
    cache_expires
        Seconds after which a result is not reused any more.
    clear_cache
        Whether memory is cleaned up before the step is called.
    profile
        Seconds between two samples of its GPU card.
    gpu_idle_timeout
        Seconds after which it is stopped if its GPUs have been idle so long.
    launch
        How many processes it has, and how they are started.
    """

    name: str | None = None
    timeout: float | None = None
    grace: float | None = None
    cache_expires: float | None = None
    clear_cache: bool | None = None
    profile: float | None = None
    gpu_idle_timeout: float | None = None
    launch: LaunchRequest | None = None

    def beside(self, other: StepOptions) -> StepOptions:
        """These options and those of another decorator on the same step.

        Raises
        ------
        SettingsError
            Both say something, and it cannot be decided which one counts.
        """
        changes: dict[str, Any] = {}
        for name in (field.name for field in attrs.fields(type(self))):
            if name in ("resources", "origins"):
                continue
            own, others = getattr(self, name), getattr(other, name)
            if own is not None and others is not None and own != others:
                if name == "launch":
                    from upshift.runtime.launch.merging import wrapped_twice

                    raise wrapped_twice(others, own.launcher, own.said)
                raise SettingsError(
                    f"{name} is set twice on one step: {own!r} and {others!r}",
                    where=user_location(),
                    fix=f"Set {name} once, with the decorator or with @step.",
                )
            changes[name] = others if own is None else own
        resources, origins = _larger(self, other)
        said = {**other.origins, **self.origins}
        origins |= {key: said[key] for key in _secret_keys(changes["secrets"])}
        origins |= {key: said[key] for key in _docker_keys(changes["docker"])}
        origins |= {"on": said["on"]} if "on" in said else {}
        return attrs.evolve(self, resources=resources, origins=origins, **changes)


@attrs.frozen(kw_only=True, eq=False)
class PipelineOptions(Options):
    """What a pipeline was told.

    Parameters
    ----------
    name
        Its name; None: the function's.
    tags
        Tags of its runs.
    on_failure
        ``"stop"``, or ``"continue"`` with what does not depend on the step that failed.
    strict
        Whether a request that cannot be granted in full is refused; None: as the backend does it.
    """

    name: str | None = None
    tags: tuple[str, ...] = ()
    on_failure: str | None = None
    strict: bool | None = None


def common(
    owner: str,
    *,
    settings: Settings | None,
    retries: int | Retry | None,
    secrets: Mapping[str, str] | None,
    cache: bool | None,
    on: str | None,
) -> dict[str, Any]:
    """The fields of :class:`Options`, checked.

    Parameters
    ----------
    owner
        Who was told: ``"@step"``, ``"@pipeline"``, ``"with_options"``.

    Raises
    ------
    SettingsError
        A value makes no sense.
    """
    if settings is None:
        settings = {}
    elif not isinstance(settings, Mapping):
        raise bad_value(
            owner, "settings", settings, 'a dict: {"resources": ResourceSettings(…), "docker": …}'
        )
    for key in settings:
        if key not in ("resources", "docker"):
            raise SettingsError(
                f"{owner} knows no settings {key!r}",
                where=user_location(),
                fix=suggestion(str(key), ("resources", "docker")),
            )
    resources = _settings(owner, settings, "resources", ResourceSettings) or ResourceSettings()
    docker = _settings(owner, settings, "docker", DockerSettings)
    sources = checked_secrets(owner, secrets)
    where = f"{user_location()} ({owner})"
    said = [*resources.explicit(), *_docker_keys(docker), *_secret_keys(sources)]
    said += [] if on is None else ["on"]
    return {
        "resources": resources,
        "origins": dict.fromkeys(said, where) | _docker_origins(docker, owner),
        "docker": docker,
        "retry": None if retries is None else _retry(owner, retries),
        "secrets": sources,
        "cache": flag(owner, "cache", cache),
        "on": text(owner, "on", on),
    }


def seconds(owner: str, field: str, value: Seconds | None) -> float | None:
    """A duration in seconds, checked."""
    amount = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if amount is None:
        return None
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < 1e10:
        raise bad_value(owner, field, value, "seconds above 0, or a datetime.timedelta")
    return amount


def flag(owner: str, field: str, value: bool | None) -> bool | None:
    """True, False or None, checked."""
    if value is not None and not isinstance(value, bool):
        raise bad_value(owner, field, value, "True or False")
    return value


def text(owner: str, field: str, value: str | None) -> str | None:
    """A non-empty string or None, checked."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise bad_value(owner, field, value, "a non-empty string")
    return value


def identifier(owner: str, value: str | None) -> str | None:
    """A name that can be part of a path and of ``name[3]``, or None, checked."""
    if value is not None and (not isinstance(value, str) or not _NAME.fullmatch(value)):
        raise bad_value(owner, "name", value, "letters, digits, '_', '-' and '.', at most 100 of them")
    return value


def _retry(owner: str, value: int | Retry) -> Retry:
    if isinstance(value, Retry):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad_value(owner, "retries", value, "a number of retries, or a Retry(times=…, delay=…)")
    return Retry(times=value)


def _settings(owner: str, settings: Settings, key: str, cls: Any) -> Any:
    value = settings.get(key)
    if value is None or isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise bad_value(owner, f"settings[{key!r}]", value, f"{cls.__name__}(…), or a dict of its fields")
    return cls.from_value(value)


def _secret_keys(secrets: Mapping[str, str] | None) -> list[str]:
    """What the origins of secrets are found under."""
    return [f"secrets.{name}" for name in secrets or ()]


def _docker_keys(docker: DockerSettings | None) -> list[str]:
    """What the origins of the fields of an image's settings are found under."""
    return [f"docker.{name}" for name in docker.explicit()] if docker else []


def _docker_origins(docker: DockerSettings | None, owner: str) -> dict[str, str]:
    """Where the fields of an image's settings come from: the line of the settings, not of their decorator."""
    if docker is None or docker.written is None:
        return {}
    return dict.fromkeys(_docker_keys(docker), f"{docker.written} ({owner})")


def _merged(inner: Options, outer: Options, secrets: Mapping[str, str] | None) -> dict[str, Any]:
    """What merges field by field, and where it all comes from, with these secrets."""
    try:
        resources = inner.resources.over(outer.resources)
    except SettingsError as error:
        raise _of_both(error, inner, outer) from None
    said = {**outer.origins, **inner.origins}
    docker = inner.docker or outer.docker
    joined: dict[str, str] = {}
    if inner.docker and outer.docker:
        docker = inner.docker.over(outer.docker)
        both = inner.docker.explicit().keys() & inner.docker.left_of(outer.docker).keys()
        places = {
            key: (inner.origins.get(key), outer.origins.get(key)) for key in map("docker.{}".format, both)
        }
        joined = {key: " and ".join(dict.fromkeys(filter(None, found))) for key, found in places.items()}
    return {
        "resources": resources,
        "origins": _origins(resources, inner, outer)
        | {key: said[key] for key in (*_secret_keys(secrets), *_docker_keys(docker), "on") if key in said}
        | joined,
        "docker": docker,
    }


def _larger(one: Options, other: Options) -> tuple[ResourceSettings, dict[str, str]]:
    """The larger of each explicit value, and where it comes from."""
    try:
        resources = one.resources.beside(other.resources)
    except SettingsError as error:
        raise _of_both(error, one, other) from None
    return resources, _origins(resources, one, other)


def _origins(merged: ResourceSettings, *sides: Options) -> dict[str, str]:
    """Where each value of a request comes from that was merged of these, the first before the others."""
    origins: dict[str, str] = {}
    for field, value in merged.explicit().items():
        says = [side for side in sides if side.resources.explicit().get(field) == value]
        # A count may have been part of a text, and a text may have lost its count to another one.
        says += [side for side in sides if getattr(side.resources, field) == value]
        says += [side for side in sides if getattr(side.resources, field) is not None]
        where = [side.origins.get(field) or _place(side) for side in says]
        origins |= {field: where[0]} if where and where[0] else {}
    return origins


def _place(options: Options) -> str | None:
    """Where these options ask for a device."""
    return next((where for field in _OF_DEVICES if (where := options.origins.get(field))), None)


def _of_both(error: SettingsError, *sides: Options) -> SettingsError:
    """The error for requests that contradict each other, with the places of both."""
    where = list(dict.fromkeys(filter(None, map(_place, sides))))
    return SettingsError(error.what, where=" and ".join(where) or error.where, why=error.why, fix=error.fix)
