"""The configuration: ``upshift.toml`` or ``[tool.upshift]``, and the variables that override it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.config.home import home
from upshift.config.later import BACKENDS
from upshift.errors import ConfigError, NotFound, suggestion

DURABILITIES = ("process", "power")


@attrs.frozen(kw_only=True)
class Target:
    """A named place to run.

    Parameters
    ----------
    name
        The name it is chosen by, with ``--on``.
    backend
        The backend that runs the tasks there.
    store
        Folder or URL of the store; default: ``UPSHIFT_HOME/store``.
    registry
        Image registry and prefix.
    mounts
        Paths in the step, each with the shared folder behind it.
    options
        The backend's own options.
    """

    name: str
    backend: str
    store: str | None = None
    registry: str | None = None
    mounts: Mapping[str, str] = attrs.field(factory=dict)
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Configuration:
    """What is configured, defaults included.

    Parameters
    ----------
    source
        The file it was read from, or None.
    default_target
        The target of a run that names none.
    catalog
        URL of the catalog; default: SQLite in ``UPSHIFT_HOME``.
    store
        Folder or URL of the store of targets that name none.
    durability
        ``"process"``: what is recorded survives the death of any process. ``"power"``: it is also
        flushed to disk before it counts.
    targets
        By name. ``local`` is always there.
    """

    source: Path | None = None
    default_target: str = "local"
    catalog: str | None = None
    store: str | None = None
    durability: str = "process"
    targets: Mapping[str, Target] = attrs.field(factory=dict)

    def target(self, name: str | None = None) -> Target:
        """The target, or else the backend, of this name.

        Raises
        ------
        NotFound
            No target has this name. Whether a backend has is for the backends to say: a name that
            is no target is returned as a bare target of the backend of that name when it is
            ``local`` only.
        """
        name = name or self.default_target
        if name in self.targets:
            return self.targets[name]
        if name == "local":
            return Target(name="local", backend="local")
        known = sorted({*self.targets, "local"})
        where = str(self.source) if self.source else None
        if name in BACKENDS:
            raise NotFound(
                f"no target is named {name!r}, and the backend {name!r} is not in this version of Upshift",
                where=where,
                fix=f"Steps run on this machine: leave it out. Targets: {', '.join(known)}.",
            )
        raise NotFound(f"no target is named {name!r}", where=where, fix=suggestion(name, known))

    def store_address(self, target: Target) -> str:
        """Folder or URL of the store that ``target`` uses."""
        return target.store or self.store or str(home() / "store")


def load_configuration(start: Path | None = None, environ: Mapping[str, str] = os.environ) -> Configuration:
    """Read the nearest configuration from ``start`` (default: the working folder) upwards.

    Raises
    ------
    ConfigError
        The file is not TOML, or holds a key or value that means nothing.
    """
    source, table = _find(start or Path.cwd())
    where = str(source) if source else None
    overrides = {
        name: environ[f"UPSHIFT_{name.upper()}"]
        for name in ("default_target", "catalog", "store", "durability")
        if environ.get(f"UPSHIFT_{name.upper()}")
    }
    targets = table.pop("targets", {})
    fields = _checked(table, Configuration, where, exclude=("source", "targets")) | overrides
    if fields.get("durability", "process") not in DURABILITIES:
        raise ConfigError(
            f"durability = {fields['durability']!r} makes no sense",
            where="UPSHIFT_DURABILITY" if "durability" in overrides else where,
            fix=f"Expected one of {', '.join(DURABILITIES)}.",
        )
    if not isinstance(targets, dict):
        raise ConfigError("targets is not a table", where=where, fix="Write [targets.NAME].")
    return Configuration(
        source=source, targets={name: _target(name, t, where) for name, t in targets.items()}, **fields
    )


def _target(name: str, table: Any, where: str | None) -> Target:
    if not isinstance(table, dict):
        raise ConfigError(f"targets.{name} is not a table", where=where, fix=f"Write [targets.{name}].")
    fields = _checked(table, Target, f"{where} [targets.{name}]", exclude=("name",))
    if "backend" not in fields:
        raise ConfigError(
            f"target {name!r} names no backend", where=where, fix='Add a line such as backend = "local".'
        )
    return Target(name=name, **fields)


def _checked(
    table: dict[str, Any], cls: type, where: str | None, *, exclude: tuple[str, ...]
) -> dict[str, Any]:
    known = [f.name for f in attrs.fields(cls) if f.name not in exclude]
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"unknown key {key!r}", where=where, fix=suggestion(key, known))
        wanted = dict if key in ("mounts", "options") else str
        if not isinstance(value, wanted):
            form = 'a table, such as { "/data" = "/shared/data" }' if wanted is dict else "a string"
            raise ConfigError(f"{key} = {value!r} makes no sense", where=where, fix=f"Expected {form}.")
    return dict(table)


def _find(start: Path) -> tuple[Path | None, dict[str, Any]]:
    for folder in (start.absolute(), *start.absolute().parents):
        own = folder / "upshift.toml"
        if own.is_file():
            return own, _parse(own)
        shared = folder / "pyproject.toml"
        if shared.is_file():
            table = _parse(shared).get("tool", {}).get("upshift")
            if table is not None:
                return shared, dict(table)
    return None, {}


def _parse(file: Path) -> dict[str, Any]:
    # Here and not at the top: beside a step there may be no tomli, and nothing to configure.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return table
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file.name} is not valid TOML", where=str(file), why=str(error)) from None
    except OSError as error:
        raise ConfigError(f"{file.name} cannot be read", where=str(file), why=str(error)) from None
