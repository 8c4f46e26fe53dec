"""``@resources``, ``@retry``, ``@timeout`` and ``@gpu_profile``: above or below ``@step``, as in Metaflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from upshift.authoring.options import StepOptions, checked_keywords
from upshift.authoring.steps import adding
from upshift.errors import SettingsError, user_location
from upshift.model.checks import MOST_DEVICES, MOST_SECONDS, bad_value, number, shown
from upshift.model.settings.resources import LEAST_GPU_MEMORY, LEAST_MEMORY, ResourceSettings
from upshift.model.settings.retry import Retry
from upshift.model.settings.sizes import FORMS, meant_by, parse_size
from upshift.model.settings.step import StepSettings, checked_seconds

F = TypeVar("F", bound=Callable[..., Any])

SHORTEST = 0.1
"""Seconds. NVML tells utilization of the last sixth of a second, or of longer."""
LONGEST = 60


@checked_keywords("@resources")
def resources(
    *,
    cpu: float | None = None,
    gpu: int | None = None,
    memory: int | float | str | None = None,
    disk: int | float | str | None = None,
    shared_memory: int | float | str | None = None,
    cpu_count: float | None = None,
    gpu_count: int | None = None,
    accelerator: str | Sequence[str] | None = None,
    gpu_memory: int | float | str | None = None,
    gpu_vendor: str | None = None,
    num_nodes: int | tuple[int, int] | None = None,
    trainium: int | None = None,
    inferentia: int | None = None,
) -> Callable[[F], F]:
    """What a step asks for. Beside other requests of the step, the larger of each value counts.

    Parameters
    ----------
    cpu, cpu_count
        CPUs, a fraction allowed.
    gpu, gpu_count
        GPUs.
    memory, disk, shared_memory, gpu_memory
        ``"16GB"``, or a bare number of MB, as in Metaflow. ``gpu_memory`` is the least that each GPU has.
    accelerator, gpu_vendor
        As in :class:`~upshift.config.ResourceSettings`.
    num_nodes
        Nodes, each with all of the above; ``(2, 4)``: at least 2, and up to 4 where there are so many.
    trainium, inferentia
        AWS's accelerators, in devices as Metaflow's ``@batch`` counts them, not in NeuronCores:
        ``trainium=16`` is ``accelerator="Trainium:16"``, which have 32 cores.

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    """
    sizes = {"memory": memory, "disk": disk, "shared_memory": shared_memory, "gpu_memory": gpu_memory}
    count = _either("gpu", gpu, "gpu_count", gpu_count)
    kind = _accelerator(accelerator, {"Trainium": trainium, "Inferentia": inferentia})
    if kind is None and 0 in (trainium, inferentia) and count is None:
        count = 0
    request = ResourceSettings(
        cpu_count=_either("cpu", cpu, "cpu_count", cpu_count),
        gpu_count=count,
        accelerator=kind,
        gpu_vendor=gpu_vendor,
        num_nodes=num_nodes,
        **{field: _megabytes(field, value) for field, value in sizes.items()},
    )
    where = f"{user_location()} (@resources)"
    settings = StepSettings(resources=request, origins=dict.fromkeys(request.explicit(), where))
    return adding(StepOptions(settings=settings))


@overload
def retry(function: F, /) -> F: ...
@overload
def retry(
    *,
    times: int = 3,
    minutes_between_retries: float | None = None,
    delay: float | None = None,
    backoff: float | None = None,
    max_delay: float | None = None,
    on: str | Iterable[str] | None = None,
    memory_factor: float | None = None,
) -> Callable[[F], F]: ...
@checked_keywords("@retry")
def retry(
    function: Any = None,
    /,
    *,
    times: int = 3,
    minutes_between_retries: float | None = None,
    delay: float | None = None,
    backoff: float | None = None,
    max_delay: float | None = None,
    on: str | Iterable[str] | None = None,
    memory_factor: float | None = None,
) -> Any:
    """Try a failed step again.

    Parameters
    ----------
    times
        Attempts after the first one.
    minutes_between_retries
        A constant pause in minutes, as in Metaflow.
    delay
        Seconds before the second attempt.
    backoff
        Factor on the delay for each further attempt.
    max_delay
        Seconds that the delay never exceeds.
    on
        Causes that are worth another attempt, as in :class:`~upshift.config.Retry`.
    memory_factor
        After an attempt that ran out of memory the next one asks for so many times as much.

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    """
    if minutes_between_retries is not None:
        minutes = _amount("@retry", "minutes_between_retries", minutes_between_retries)
        if delay is not None or backoff is not None:
            raise SettingsError(
                "@retry: minutes_between_retries is a constant pause, delay and backoff a growing one",
                where=user_location(),
                fix="Use one of the two.",
            )
        delay, backoff = minutes * 60, 1.0
        max_delay = max(delay, 300.0) if max_delay is None else max_delay
    given = {
        "delay": delay,
        "backoff": backoff,
        "max_delay": max_delay,
        "on": on,
        "memory_factor": memory_factor,
    }
    policy = Retry(times=times, **{name: value for name, value in given.items() if value is not None})
    decorate = adding(StepOptions(settings=StepSettings(retry=policy)))
    return decorate if function is None else decorate(function)


@checked_keywords("@timeout")
def timeout(*, seconds: float = 0, minutes: float = 0, hours: float = 0) -> Callable[[F], F]:
    """Stop the step after this long.

    Parameters
    ----------
    seconds, minutes, hours
        They add up.

    Raises
    ------
    SettingsError
        An option is unknown, or the sum is not above 0.
    """
    total = (
        _amount("@timeout", "seconds", seconds)
        + _amount("@timeout", "minutes", minutes) * 60
        + _amount("@timeout", "hours", hours) * 3600
    )
    settings = StepSettings(timeout=checked_seconds("@timeout", "seconds", total))
    return adding(StepOptions(settings=settings))


@overload
def gpu_profile(function: F, /) -> F: ...
@overload
def gpu_profile(
    *, interval: float = 1, include_artifacts: bool = False, artifact_prefix: str | None = None
) -> Callable[[F], F]: ...
@checked_keywords("@gpu_profile")
def gpu_profile(
    function: Any = None,
    /,
    *,
    interval: float = 1,
    include_artifacts: bool = False,
    artifact_prefix: str | None = None,
) -> Any:
    """Show in the report what the step's GPUs do: a card with each device and its charts.

    The samples are taken from outside of the step's process, so that they are there while it runs, and
    still are if it is killed.

    Parameters
    ----------
    interval
        Seconds between two samples, at least 0.1.
    include_artifacts, artifact_prefix
        Of Metaflow's decorator of this name; here the samples are in the records of the attempt, and no
        artifacts of the step, so these are refused.

    Raises
    ------
    SettingsError
        An option is unknown, or its value is invalid.
    """
    if include_artifacts or artifact_prefix is not None:
        given = "include_artifacts" if include_artifacts else "artifact_prefix"
        raise SettingsError(
            f"@gpu_profile: {given} is not supported",
            where=user_location(),
            why="Samples are in the records of the attempt, not among the step's outputs.",
            fix="Leave it out: the report shows them, and ATTEMPT.series_path is the file that has them.",
        )
    pause = number("@gpu_profile", "interval", interval, least=SHORTEST, most=LONGEST, what="seconds")
    decorate = adding(StepOptions(settings=StepSettings(profile=float(pause))))
    return decorate if function is None else decorate(function)


def _either(short: str, value: Any, long: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise SettingsError(
            f"@resources: {short} and {long} are the same thing",
            where=user_location(),
            fix=f"Set {short} only.",
        )
    return other if value is None else value


def _accelerator(named: Any, counts: Mapping[str, int | None]) -> Any:
    """What names a kind: ``accelerator``, or one of the counts that are kinds themselves."""
    for kind, count in counts.items():
        if count is not None:
            what = "a whole number of devices"
            number("@resources", kind.lower(), count, most=MOST_DEVICES, whole=True, what=what)
    said = [f"{kind}:{count}" for kind, count in counts.items() if count]
    said += [] if named is None else [named]
    if len(said) > 1:
        raise SettingsError(
            "@resources: accelerator, trainium and inferentia name a kind each",
            where=user_location(),
            fix=f"Name one of them, or alternatives, the best first: accelerator={said!r}.",
        )
    return said[0] if said else None


def _megabytes(field: str, value: Any) -> int | str | None:
    """Bytes of a bare number of MB; what :class:`ResourceSettings` reads by itself, as it is."""
    if value is None or (field == "gpu_memory" and isinstance(value, str)):
        return value
    try:
        size = parse_size(value, unit="MB")
    except ValueError:
        expected = f"{FORMS}; a bare number is MB"
        raise bad_value("@resources", field, value, expected, meant=meant_by(value)) from None
    if field == "gpu_memory" and size < LEAST_GPU_MEMORY:
        expected = f"{FORMS}; a bare number is MB, of which a GPU has more"
        raise bad_value("@resources", field, value, expected)
    if size < LEAST_MEMORY:
        raise SettingsError(
            f"@resources: {field}={shown(value)} is invalid",
            where=user_location(),
            fix=f'A bare number is MB: {field}=500, or "500MB".',
        )
    return size


def _amount(owner: str, field: str, value: Any) -> float:
    return float(number(owner, field, value, most=MOST_SECONDS))
