"""Backends by name: the built-in ones, and those that other packages register."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from upshift.backends.base import Backend, Capabilities, Provider, Sink
from upshift.errors import ConfigError, NotFound, UpshiftError, nearest, suggestion
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
