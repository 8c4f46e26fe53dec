"""Where things are and what is configured.

``UPSHIFT_HOME`` has the state; a file belongs to a project; the configuration is ``upshift.toml`` or
``[tool.upshift]``, and the variables that override it.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import ConfigError, NotFound, nearest, suggestion
from upshift.model.checks import MOST_TEXT, in_bucket, local_path, shown, small_text, unfit
from upshift.model.settings.sizes import SPAN_FORMS, parse_size, parse_span

PROJECT_MARKS = ("upshift.toml", "pyproject.toml", ".git")


def home() -> Path:
    """The folder with Upshift's state: ``UPSHIFT_HOME``, by default ``~/.upshift``. It may not exist yet."""
    configured = os.environ.get("UPSHIFT_HOME")
    try:
        return local_path(configured or "~/.upshift")
    except ValueError as error:
        said = f"UPSHIFT_HOME = {shown(configured)}" if configured else "the default, ~/.upshift,"
        fix = "Set UPSHIFT_HOME to a folder that can be written."
        raise ConfigError(f"{said} {error}", fix=fix) from None


def user_name() -> str:
    """Who asks: the name of the operating system's user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; ``UPSHIFT_HOME`` for its owner alone, whatever the umask.

    A home that is there already keeps its permissions: whoever made it wants to share it.
    """
    own = home()
    if not os.path.exists(own) and any(folder.is_relative_to(form) for form in (own, own.resolve())):
        own.parent.mkdir(parents=True, exist_ok=True)
        own.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def working_folder() -> Path:
    """The working folder.

    Raises
    ------
    ConfigError
        It has been removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working folder has been removed", fix="Change to another folder: cd") from None


def recordable(path: Path) -> str:
    """A path of the user's as records hold it.

    Raises
    ------
    ConfigError
        No record can hold it.
    """
    problem = unfit(str(path))
    if problem is None:
        return str(path)
    raise ConfigError(
        f"the path {shown(str(path))} {problem}",
        why="Upshift records paths as UTF-8 text.",
        fix="Rename it, or run this from another folder.",
    )


def project_root(file: Path) -> Path:
    """The nearest folder upwards with one of :data:`PROJECT_MARKS`, else the file's own folder."""
    folder = file.absolute().parent
    for candidate in (folder, *folder.parents):
        if any((candidate / mark).exists() for mark in PROJECT_MARKS):
            return candidate
    return folder


BUCKET_CACHE = "100GB"
DURABILITIES = ("process", "power")
VERIFY = ("changed", "always")
UNCONFIGURED = ("aws-batch", "docker", "kubernetes", "local", "podman", "ray", "slurm")
"""Backends that this machine has, or leads to: each is a target without being configured as one."""
CONFIGURED = ("kubeflow", "skypilot")
"""Backends that only a target of the configuration leads to: no machine has an address of theirs."""


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
    start_within
        How long a task may wait there until it starts: ``"12h"``.
    nodes_silence
        How long nothing may come from one of a step's several nodes until it counts as lost: ``"15s"``.
    where
        Where it is configured, or None: ``upshift.toml [targets.big]``.
    """

    name: str
    backend: str
    start_within: str = "7d"
    nodes_silence: str = "15s"
    store: str | None = None
    registry: str | None = None
    mounts: Mapping[str, str] = attrs.field(factory=dict)
    options: Mapping[str, Any] = attrs.field(factory=dict)
    where: str | None = attrs.field(default=None, eq=False)


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
    s3root
        Address that ``S3(run=…)`` keeps objects of runs below: ``s3://BUCKET/PREFIX``.
    durability
        ``"process"``: what is recorded survives the death of any process. ``"power"``: it is also
        flushed to disk before it counts.
    verify
        When the digest of stored content is computed before it is used: ``"changed"``, where it may have
        changed since it was last known to be right; or ``"always"``.
    bucket_cache
        How much content of stores in buckets is kept on this machine.
    insecure_registries
        Image registries (``HOST:PORT``) that may be spoken to without TLS, beside those on this machine.
    targets
        By name. Those of :data:`UNCONFIGURED` are always there.
    """

    source: Path | None = None
    default_target: str = "local"
    catalog: str | None = None
    store: str | None = None
    s3root: str | None = None
    durability: str = "process"
    verify: str = "changed"
    bucket_cache: str = BUCKET_CACHE
    insecure_registries: tuple[str, ...] = ()
    targets: Mapping[str, Target] = attrs.field(factory=dict)

    def target(self, name: str | None = None) -> Target:
        """The target of this name, or else of this backend: one that needs none, or the only one of it.

        Raises
        ------
        NotFound
            There is none, or several have this backend.
        """
        name = name or self.default_target
        if name in self.targets:
            return self.targets[name]
        if name in UNCONFIGURED:
            return Target(name=name, backend=name)
        alike = [target for target in self.targets.values() if target.backend == name]
        if len(alike) == 1:
            return alike[0]
        known = sorted({*self.targets, *UNCONFIGURED})
        where = str(self.source) if self.source else None
        meant = nearest(name, [*known, *CONFIGURED])
        fix = suggestion(name, known)
        if meant in CONFIGURED and not any(target.backend == meant for target in self.targets.values()):
            fix = (
                f"Configure one of {meant} in upshift.toml, and give its name instead:\n"
                f'[targets.NAME]\nbackend = "{meant}"\nstore = "s3://BUCKET/PREFIX"'
            )
        raise NotFound(f"no target is named {name!r}", where=where, fix=fix)

    @property
    def store_options(self) -> dict[str, str]:
        """How its stores are opened."""
        return {"durability": self.durability, "verify": self.verify}

    @property
    def has_buckets(self) -> bool:
        """Whether the store of any of its targets is in a bucket."""
        addresses = (self.store, *(target.store for target in self.targets.values()))
        return any(address is not None and in_bucket(address) for address in addresses)

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
    source, table = _find(start or working_folder())
    where = str(source) if source else None
    overrides = {
        name: _line(environ[variable], f"{variable} ", None)
        for name in ("default_target", "catalog", "store", "s3root", "durability", "verify", "bucket_cache")
        if environ.get(variable := f"UPSHIFT_{name.upper()}")
    }
    targets = table.pop("targets", {})
    insecure = _registries(table.pop("insecure_registries", []), where, environ)
    fields = _checked(table, Configuration, where, exclude=("source", "targets")) | overrides
    for name, known in (("durability", DURABILITIES), ("verify", VERIFY)):
        if fields.get(name, known[0]) not in known:
            raise ConfigError(
                f"{name} = {shown(fields[name])} is invalid",
                where=f"UPSHIFT_{name.upper()}" if name in overrides else where,
                fix=f"Expected one of {', '.join(known)}.",
            )
    if not (root := fields.get("s3root") or "s3://").startswith("s3://"):
        raise ConfigError(
            f"s3root = {shown(root)} is invalid",
            where="UPSHIFT_S3ROOT" if "s3root" in overrides else where,
            fix="Expected s3://BUCKET/PREFIX.",
        )
    if "bucket_cache" in fields:
        try:
            parse_size(fields["bucket_cache"])
        except ValueError as error:
            raise ConfigError(
                f"bucket_cache: {error}", where=where, fix='Write "100GB", for example.'
            ) from None
    silence = environ.get("UPSHIFT_NODES_SILENCE") or "15"
    if not re.fullmatch(r"\d*\.?\d+", silence) or not float(silence):
        raise ConfigError(
            f"UPSHIFT_NODES_SILENCE = {shown(silence)} is invalid", fix="Expected a number of seconds: 60."
        )
    if not isinstance(targets, dict):
        raise ConfigError("targets is not a table", where=where, fix="Write [targets.NAME].")
    return Configuration(
        source=source,
        insecure_registries=insecure,
        targets={name: _target(name, t, where) for name, t in targets.items()},
        **fields,
    )


def _registries(value: Any, where: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    override = environ.get("UPSHIFT_INSECURE_REGISTRIES")
    if override:
        value, where = [name.strip() for name in override.split(",")], "UPSHIFT_INSECURE_REGISTRIES"
    if not isinstance(value, list) or not all(
        isinstance(name, str) and name and "/" not in name and not unfit(name) for name in value
    ):
        raise ConfigError(
            f"insecure_registries = {shown(value)} is invalid",
            where=where,
            fix='Expected a list of HOST or HOST:PORT, such as ["registry.example.org:5000"].',
        )
    return tuple(name.lower() for name in value)


def _target(name: str, table: Any, where: str | None) -> Target:
    if not isinstance(table, dict):
        raise ConfigError(f"targets.{name} is not a table", where=where, fix=f"Write [targets.{name}].")
    at = f"{where} [targets.{name}]"
    fields = _checked(table, Target, at, exclude=("name", "where"))
    if "backend" not in fields:
        raise ConfigError(
            f"target {name!r} names no backend", where=at, fix='Add a line such as backend = "local".'
        )
    for field in ("start_within", "nodes_silence"):
        try:
            if field in fields:
                parse_span(fields[field])
        except ValueError as error:
            raise ConfigError(
                f"target {name!r}: {field}: {error}", where=at, fix=f"Write {SPAN_FORMS}."
            ) from None
    return Target(name=name, where=at, **fields)


def _checked(
    table: dict[str, Any], cls: type, where: str | None, *, exclude: tuple[str, ...]
) -> dict[str, Any]:
    known = [f.name for f in attrs.fields(cls) if f.name not in exclude]
    for key, value in table.items():
        if key not in known:
            fix = suggestion(key, [*known, "targets"] if cls is Configuration else known)
            if cls is Target:
                fix = f"Known: {', '.join(known)}. Options of the backend itself belong under options."
            raise ConfigError(f"unknown key {shown(key)}", where=where, fix=fix)
        wanted = dict if key in ("mounts", "options") else str
        if not isinstance(value, wanted):
            form = 'a table, such as { "/data" = "/shared/data" }' if wanted is dict else "a string"
            raise ConfigError(f"{key} = {shown(value)} is invalid", where=where, fix=f"Expected {form}.")
        if isinstance(value, str):
            _line(value, f"{key} = ", where)
    for name, folder in table.get("mounts", {}).items():
        if not isinstance(folder, str):
            raise ConfigError(
                f"mounts: {shown(name)} = {shown(folder)} is invalid",
                where=where,
                fix='Expected the path of a folder, such as { "/data" = "/shared/data" }.',
            )
        _line(name, "mounts: ", where)
        _line(folder, "mounts: ", where)
    return dict(table)


def _line(value: str, subject: str, where: str | None) -> str:
    """A text that can be a path, an address or a name, all of which are one line."""
    problem = unfit(value) or (f"has {len(value):,} characters" if len(value) > MOST_TEXT else None)
    if problem is not None:
        raise ConfigError(
            f"{subject}{shown(value)} {problem}",
            where=where,
            fix=f"Expected one line of at most {MOST_TEXT:,} characters.",
        )
    return value


def _find(start: Path) -> tuple[Path | None, dict[str, Any]]:
    for folder in (start.absolute(), *start.absolute().parents):
        own = folder / "upshift.toml"
        if own.is_file():
            return own, _parse(own)
        shared = folder / "pyproject.toml"
        if shared.is_file():
            tools = _table(_parse(shared), "tool", shared)
            if "upshift" in tools:
                return shared, _table(tools, "upshift", shared)
    return None, {}


def _table(inside: dict[str, Any], key: str, file: Path) -> dict[str, Any]:
    table = inside.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{key} is not a table", where=str(file), fix="Write [tool.upshift].")
    return dict(table)


def _parse(file: Path) -> dict[str, Any]:
    # Here and not at the top: beside a step there may be no tomli, and nothing to configure.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        text = small_text(file)
    except ValueError as error:
        fix = "Name a TOML file that you can read."
        raise ConfigError(f"{file} cannot be read: {error}", fix=fix) from None
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = "It is nested too deeply." if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{file} is not valid TOML", why=why) from None
    return table
