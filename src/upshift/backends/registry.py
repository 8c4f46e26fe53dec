"""Backends by name, the built-in ones and those of other packages; and the options of their targets.

A backend checks its target's options when it is opened; an error names the target, the option and its value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import attrs

from upshift.backends.base import Backend, Capabilities, Provider, Sink
from upshift.errors import ConfigError, NotFound, SettingsError, UpshiftError, nearest, suggestion
from upshift.model.configuration import Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


GROUP = "upshift.backends"
"""The entry point group of third parties' backends."""

BUILT_IN = {
    "aws-batch": "upshift.backends.batch.backend:BatchBackend",
    "docker": "upshift.backends.docker.backend:DockerBackend",
    "fake": "upshift.backends.fake:FakeBackend",
    "kubeflow": "upshift.backends.kubeflow.backend:KubeflowBackend",
    "kubernetes": "upshift.backends.kubernetes.backend:KubernetesBackend",
    "local": "upshift.backends.local.backend:LocalBackend",
    "podman": "upshift.backends.docker.backend:PodmanBackend",
    "ray": "upshift.backends.ray.backend:RayBackend",
    "skypilot": "upshift.backends.skypilot.backend:SkyPilotBackend",
    "slurm": "upshift.backends.slurm.backend:SlurmBackend",
}
"""Where each built-in backend is. None is imported before it is used."""

_FOR_TESTS = ("fake",)


def open_backend(target: Target, *, store: str, sink: Sink) -> Backend:
    """Open the backend of a target; ``sink`` takes its events, from any thread.

    Raises ``NotFound`` where no backend has this name, ``ConfigError`` where an option of the target means
    nothing to it or its package cannot be imported, ``MissingExtra`` where a package is not installed.
    """
    try:
        return _provider(target)(target, store=store, sink=sink)
    except UpshiftError as error:
        error.where = error.where or target.where
        raise


def capabilities_of(target: Target) -> Capabilities:
    """What the backend of a target can honour. Raises as :func:`open_backend` does."""
    provider: type[Backend] = _provider(target)  # type: ignore[assignment]
    return provider.capabilities


def settings_class(name: str) -> type | None:
    """The class of what ``settings={name: …}`` takes for a backend; None: it takes none, or there is none.

    Raises ``ConfigError`` where the package that has the backend cannot be imported.
    """
    known = name in BUILT_IN or any(_registered(name))
    return getattr(_provider(Target(name=name, backend=name)), "settings", None) if known else None


def backend_names() -> list[str]:
    """The names of all backends that do real work."""
    return sorted({*BUILT_IN, *(entry.name for entry in _registered())} - {*_FOR_TESTS})


def _registered(name: str | None = None) -> EntryPoints:
    from importlib.metadata import entry_points  # imports the email package, among others

    found = entry_points(group=GROUP)
    return found if name is None else found.select(name=name)


def _provider(target: Target) -> Provider:
    name = target.backend
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast(Provider, getattr(import_module(module), attribute))
    for entry in _registered(name):
        try:
            return cast(Provider, entry.load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"backend {name!r} of target {target.name!r} cannot be loaded from {entry.value}",
                why=str(error),
                fix="Reinstall or repair the package that registers it.",
            ) from error
    fix = suggestion(name, names := backend_names())
    if nearest(name, names) is None:
        fix += f"\nA package adds one with an entry point in the group {GROUP}:\n"
        fix += f'[project.entry-points."{GROUP}"]\n{name} = "package.module:Backend"'
    what = f"no backend is named {name!r}, which target {target.name!r} asks for"
    raise NotFound(what, where=target.where, fix=fix)


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
