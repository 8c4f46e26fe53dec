"""Metaflow's decorators of flows: what each says is kept with its class, and ``show`` prints it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from upshift.authoring.flow.parameters import LateValue
from upshift.authoring.flow.step_decorators import from_conda, with_packages
from upshift.authoring.options import checked_keywords, identifier
from upshift.errors import MisuseError, SettingsError, user_location
from upshift.model.checks import bad_value, checked_flag, line, shown, text
from upshift.model.settings.step import StepSettings

if TYPE_CHECKING:
    from upshift.authoring.flow.parameters import Config
    from upshift.authoring.flow.spec import FlowSpec

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="type[FlowSpec]")


def _with_configs(decorator: F) -> F:
    """A decorator of flows that may be given ``config_expr(…)``, whose value is known with the class."""

    @functools.wraps(decorator)
    def decorated(**options: Any) -> Any:
        if not any(map(_late, options.values())):
            return decorator(**options)

        def decorate(flow: C) -> C:
            known = flow.__upshift_pipeline__.configs
            return cast(C, decorator(**{name: _known(value, known) for name, value in options.items()})(flow))

        return decorate

    return cast(F, decorated)


def _late(value: Any) -> bool:
    return isinstance(value, LateValue) or (isinstance(value, Mapping) and any(map(_late, value.values())))


def _known(value: Any, configs: Mapping[str, Config]) -> Any:
    if isinstance(value, Mapping):
        return {name: _known(item, configs) for name, item in value.items()}
    return value.of(configs) if isinstance(value, LateValue) else value


@_with_configs
@checked_keywords("@project")
def project(*, name: str, branch: str | None = None, production: bool = False) -> Callable[[C], C]:
    """Say which project a flow belongs to: its runs are tagged, and ``current`` tells project and branch.

    Parameters
    ----------
    name
        The project.
    branch, production
        The branch of all its runs; default: what ``run --branch`` or ``--production`` says, else the user's.

    Raises
    ------
    SettingsError
        ``name`` is no name.
    """
    named = identifier("@project", name) or ""
    checked_flag("@project", "production", production)
    tags = [f"project:{named}", *branch_tags(identifier("@project", branch), production)]
    return _of_flow("@project", {"name": named}, tags=tags)


def branch_tags(branch: str | None, production: bool) -> list[str]:
    """The tag of a run that says on which branch of its project it is; none: on its user's."""
    if not production and branch is None:
        return []
    told = f"prod.{branch}" if production and branch else "prod" if production else f"test.{branch}"
    return [f"project_branch:{told}"]


@_with_configs
@checked_keywords("@schedule")
def schedule(
    *,
    cron: str | None = None,
    weekly: bool = False,
    daily: bool = True,
    hourly: bool = False,
    timezone: str | None = None,
) -> Callable[[C], C]:
    """Say when a flow is to run. Kept and shown; nothing in Upshift runs by the clock.

    Parameters
    ----------
    cron, weekly, daily, hourly, timezone
        As in Metaflow.

    Raises
    ------
    SettingsError
        A value makes no sense.
    """
    often = {"weekly": weekly, "daily": daily, "hourly": hourly}
    for field, value in often.items():
        checked_flag("@schedule", field, value)
    if text("@schedule", "cron", cron) is not None and len(str(cron).split()) not in (5, 6):
        raise bad_value("@schedule", "cron", cron, 'five or six fields: "0 10 * * *"')
    chosen = {"cron": cron} if cron else {next((f for f in ("weekly", "hourly") if often[f]), "daily"): True}
    return _of_flow("@schedule", {**chosen, "timezone": text("@schedule", "timezone", timezone)})


@_with_configs
@checked_keywords("@trigger")
def trigger(
    *, event: Any = None, events: Sequence[Any] = (), options: Mapping[str, Any] | None = None
) -> Callable[[C], C]:
    """Say which events a flow is to run for. Kept and shown; nothing in Upshift waits for events.

    Parameters
    ----------
    event, events, options
        As in Metaflow.

    Raises
    ------
    SettingsError
        There is no event, or it has no name.
    """
    return _of_flow("@trigger", {"events": _named("@trigger", "event", event, events)})


@_with_configs
@checked_keywords("@trigger_on_finish")
def trigger_on_finish(
    *, flow: Any = None, flows: Sequence[Any] = (), options: Mapping[str, Any] | None = None
) -> Callable[[C], C]:
    """Say after which flows a flow is to run. Kept and shown; nothing in Upshift waits for them.

    Parameters
    ----------
    flow, flows, options
        As in Metaflow.

    Raises
    ------
    SettingsError
        There is no flow, or it has no name.
    """
    return _of_flow("@trigger_on_finish", {"flows": _named("@trigger_on_finish", "flow", flow, flows)})


def _named(owner: str, field: str, one: Any, several: Any) -> list[str]:
    if (one is None) == (not several):
        raise SettingsError(
            f"{owner} takes {field} or {field}s", where=user_location(), fix=f'Write {owner}({field}="NAME").'
        )
    if isinstance(several, str) or not isinstance(several, Sequence):
        raise bad_value(owner, f"{field}s", several, "a list of names")
    names = []
    for given in [one] if one is not None else several:
        name = given.get("name") if isinstance(given, Mapping) else given
        names.append(line(owner, field, name() if callable(name) else name))
    return names


@_with_configs
@checked_keywords("@pypi_base")
def pypi_base(
    *, packages: Mapping[str, str] | None = None, python: str | None = None, disabled: bool = False
) -> Callable[[C], C]:
    """Have these packages in the images of all steps of a flow; as :func:`pypi`.

    Parameters
    ----------
    packages, python, disabled
        As for :func:`pypi`.

    Raises
    ------
    SettingsError
        A package or version makes no sense.
    """
    return _of_flow("@pypi_base", {}, steps=with_packages("@pypi_base", packages, python, disabled).settings)


@_with_configs
@checked_keywords("@conda_base")
def conda_base(
    *,
    packages: Mapping[str, str] | None = None,
    libraries: Mapping[str, str] | None = None,
    python: str | None = None,
    disabled: bool = False,
) -> Callable[[C], C]:
    """As :func:`pypi_base`, for packages as conda names them.

    Parameters
    ----------
    packages, libraries, python, disabled
        As for :func:`conda`.

    Raises
    ------
    SettingsError
        A package is none of Python's.
    """
    wanted = from_conda("@conda_base", packages, libraries)
    return _of_flow("@conda_base", {}, steps=with_packages("@conda_base", wanted, python, disabled).settings)


def _of_flow(
    owner: str, said: Mapping[str, Any], *, tags: Sequence[str] = (), steps: StepSettings | None = None
) -> Callable[[C], C]:
    where = user_location()

    def decorate(flow: C) -> C:
        pipeline = getattr(flow, "__upshift_pipeline__", None)
        if pipeline is None:
            raise MisuseError(
                f"{owner} is above {getattr(flow, '__name__', shown(flow))}, which is not a flow",
                where=where,
                fix="Put it above the class: class MyFlow(FlowSpec).",
            )
        pipeline.decorate(owner.removeprefix("@"), {**said, "where": where}, tags=tags, steps=steps)
        return flow

    return decorate
