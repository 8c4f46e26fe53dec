"""All that a step can be told, as one record: :class:`StepSettings`.

It is made where it is typed, merged with what other decorators and the pipeline say, and carried whole in
the graph and in the spec of each attempt. A new option is a field here, and the place that obeys it.

Three rules, from the inside out: what stands on one step together (``@step``, ``@resources``) asks for the
larger of each explicit value; ``with_options`` replaces what it names; a pipeline's settings are the values
of its steps where these say nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Union

import attrs

from upshift.errors import SettingsError, user_location
from upshift.model.checks import MOST_SECONDS, checked_flag, number, shown, text
from upshift.model.settings.docker import DockerSettings
from upshift.model.settings.environment import PythonEnvironment
from upshift.model.settings.resources import ResourceSettings
from upshift.model.settings.retry import MOST_RETRIES, Catch, Retry
from upshift.model.settings.secrets import checked_secrets

Seconds = Union[int, float, datetime.timedelta]

LEAST_SECONDS = 0.001
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL, unless a step says otherwise."""

_OF_DEVICES = ("accelerator", "gpu_memory", "gpu_vendor", "gpu_count", "num_nodes")
_MERGED = ("resources", "docker", "backends", "secrets", "origins")
"""Fields that merge value by value; of the others, one side counts."""


def checked_seconds(owner: str, field: str, value: Seconds | None) -> float | None:
    """A duration in seconds."""
    amount = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if amount is None:
        return None
    what = "seconds, or a datetime.timedelta,"
    return number(owner, field, amount, least=LEAST_SECONDS, most=MOST_SECONDS, what=what)  # type: ignore[no-any-return]


def _checked_retry(owner: str, field: str, value: int | Retry | None) -> Retry | None:
    if value is None or isinstance(value, Retry):
        return value
    what = "a Retry(times=…, delay=…), or a number of retries"
    return Retry(times=number(owner, "retries", value, most=MOST_RETRIES, whole=True, what=what))


def _checked_secrets(owner: str, field: str, value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return checked_secrets(owner, value)


def _option(check: Callable[[str, str, Any], Any]) -> Any:
    """A field that a user can type, and what checks it there."""
    return attrs.field(default=None, metadata={"check": check})


@attrs.frozen(kw_only=True)
class StepSettings:
    """All that a step can be told, except for its name and its launcher. None: not said.

    Parameters
    ----------
    resources, docker
        What it asks for, and the image that it runs in.
    python_environment
        The Python environment that it runs in where it runs in no image; None: that of the run.
    backends
        Fields of backends' own settings, by backend.
    retry
        When it is tried again.
    catch
        What follows when it is not, in a flow; None: the run fails.
    timeout
        Seconds after which it is stopped.
    grace
        Seconds between SIGTERM and SIGKILL when it is stopped; see :attr:`grace_period`.
    cache
        Whether its result may be reused.
    cache_expires
        Seconds after which a result is not reused any more.
    secrets
        Sources of environment variables, by variable: never their values; see :attr:`secret_sources`.
    on
        The target or backend where it runs.
    clear_cache
        Whether memory is cleaned up before it is called.
    profile
        Seconds between two samples of its GPUs.
    gpu_idle_timeout
        Seconds after which it is stopped if its GPUs have been idle so long.
    origins
        Where each value comes from, as ``file:line (@decorator)``: of ``resources`` by field, of the others
        as ``docker.FIELD``, ``BACKEND.FIELD``, ``secrets.NAME``, ``python_environment`` and ``on``.
    """

    resources: ResourceSettings = attrs.field(factory=ResourceSettings)
    docker: DockerSettings | None = None
    python_environment: PythonEnvironment | None = None
    backends: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    retry: Retry | None = _option(_checked_retry)
    catch: Catch | None = None
    timeout: float | None = _option(checked_seconds)
    grace: float | None = _option(checked_seconds)
    cache: bool | None = _option(checked_flag)
    cache_expires: float | None = _option(checked_seconds)
    secrets: Mapping[str, str] | None = _option(_checked_secrets)
    on: str | None = _option(text)
    clear_cache: bool | None = _option(checked_flag)
    profile: float | None = _option(checked_seconds)
    gpu_idle_timeout: float | None = _option(checked_seconds)
    origins: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def said(cls, owner: str, records: Mapping[str, Any] | None = None, **options: Any) -> StepSettings:
        """What a user has typed, checked.

        Parameters
        ----------
        owner
            Where: ``"@step"``, ``"@pipeline"``, ``"with_options"``.
        records
            ``resources``, ``docker``, ``python_environment`` and ``backends``, checked already.
        options
            The other fields, as typed.

        Raises
        ------
        SettingsError
            A value is invalid.
        """
        made = cls(
            **(records or {}),
            **{
                field.name: field.metadata["check"](owner, field.name, options.pop(field.name))
                for field in attrs.fields(cls)
                if field.name in options
            },
            **options,
        )
        where = f"{user_location()} ({owner})"
        origins = dict.fromkeys((*made.resources.explicit(), *made._named()), where)
        if made.docker is not None and made.docker.written is not None:
            line = f"{made.docker.written} ({owner})"
            origins |= {f"docker.{name}": line for name in made.docker.explicit()}
        return attrs.evolve(made, origins=origins)

    @property
    def grace_period(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return GRACE if self.grace is None else self.grace

    @property
    def retry_policy(self) -> Retry:
        """When it is tried again; where nobody said so, never."""
        return self.retry or Retry()

    @property
    def secret_sources(self) -> Mapping[str, str]:
        """Sources of environment variables, by variable; where nobody named any, none."""
        return self.secrets or {}

    @property
    def reusable(self) -> bool:
        """Whether its result may be reused."""
        return self.cache is not False

    def beside(self, other: StepSettings) -> StepSettings:
        """These settings and those of another decorator on the same step.

        Raises
        ------
        SettingsError
            Both say something, and it cannot be decided which one counts.
        """
        changes: dict[str, Any] = {}
        for name in (field.name for field in attrs.fields(StepSettings)):
            if name in ("resources", "origins"):
                continue
            own, others = getattr(self, name), getattr(other, name)
            if own and others and own != others and isinstance(own, Mapping):
                twice = next((key for key in own if key in others and own[key] != others[key]), None)
                if twice is None:
                    changes[name] = {**others, **own}
                    continue
                name, own, others = f"{name}[{twice!r}]", own[twice], others[twice]
            if name == "docker" and own and others:
                twice = next((field for field in own.twice(others)), None)
                if twice is None:
                    changes[name] = own.over(others)
                    continue
                name, own, others = f"docker.{twice}", getattr(own, twice), getattr(others, twice)
            if own not in (None, {}) and others not in (None, {}) and own != others:
                raise SettingsError(
                    f"{name} is set twice on one step: {shown(own)} and {shown(others)}",
                    where=user_location(),
                    fix=f"Set {name} once, with the decorator or with @step.",
                )
            changes[name] = others if own in (None, {}) else own
        try:
            resources = self.resources.beside(other.resources)
        except SettingsError as error:
            raise _of_both(error, self, other) from None
        merged = attrs.evolve(self, resources=resources, **changes)
        return attrs.evolve(merged, origins=_origins(merged, self, other))

    def replaced(self, newer: StepSettings) -> StepSettings:
        """These settings, with what ``newer`` says instead."""
        return newer._over(self, secrets=self.secrets if newer.secrets is None else newer.secrets)

    def over(self, outer: StepSettings) -> StepSettings:
        """These settings, with ``outer``'s where they say nothing."""
        said = self.secrets is not None or outer.secrets is not None
        return self._over(outer, secrets={**outer.secret_sources, **self.secret_sources} if said else None)

    def _over(self, outer: StepSettings, *, secrets: Mapping[str, str] | None) -> StepSettings:
        inherited = {
            field.name: getattr(outer, field.name)
            for field in attrs.fields(StepSettings)
            if field.name not in _MERGED and getattr(self, field.name) is None
        }
        try:
            resources = self.resources.over(outer.resources)
        except SettingsError as error:
            raise _of_both(error, self, outer) from None
        docker = self.docker or outer.docker
        joined: dict[str, str] = {}
        if self.docker and outer.docker:
            docker = self.docker.over(outer.docker)
            for name in self.docker.explicit().keys() & self.docker.left_of(outer.docker).keys():
                key = f"docker.{name}"
                places = filter(None, (self.origins.get(key), outer.origins.get(key)))
                joined[key] = " and ".join(dict.fromkeys(places))
        backends = {
            name: {**outer.backends.get(name, {}), **self.backends.get(name, {})}
            for name in (*outer.backends, *self.backends)
        }
        merged = attrs.evolve(
            self, resources=resources, docker=docker, backends=backends, secrets=secrets, **inherited
        )
        return attrs.evolve(merged, origins=_origins(merged, self, outer) | joined)

    def _named(self) -> list[str]:
        """The keys of ``origins`` beside the fields of ``resources``."""
        return [
            *(f"docker.{name}" for name in (self.docker.explicit() if self.docker else ())),
            *(f"{backend}.{name}" for backend, fields in self.backends.items() for name in fields),
            *(f"secrets.{name}" for name in self.secret_sources),
            *(name for name in ("python_environment", "on") if getattr(self, name) is not None),
        ]


def _origins(merged: StepSettings, *sides: StepSettings) -> dict[str, str]:
    """Where each value comes from that was merged of these sides, the first before the others."""
    origins: dict[str, str] = {}
    for field, value in merged.resources.explicit().items():
        says = [side for side in sides if side.resources.explicit().get(field) == value]
        # A count may have been part of a text, and a text may have lost its count to another one.
        says += [side for side in sides if getattr(side.resources, field) == value]
        says += [side for side in sides if getattr(side.resources, field) is not None]
        where = [side.origins.get(field) or _place(side) for side in says]
        origins |= {field: where[0]} if where and where[0] else {}
    for key in merged._named():
        found = next((side.origins[key] for side in sides if key in side.origins), None)
        origins |= {key: found} if found else {}
    return origins


def _place(settings: StepSettings) -> str | None:
    """Where these settings ask for a device."""
    return next((where for field in _OF_DEVICES if (where := settings.origins.get(field))), None)


def _of_both(error: SettingsError, *sides: StepSettings) -> SettingsError:
    """The error for requests that contradict each other, with the places of both."""
    where = list(dict.fromkeys(filter(None, map(_place, sides))))
    return SettingsError(error.what, where=" and ".join(where) or error.where, why=error.why, fix=error.fix)
