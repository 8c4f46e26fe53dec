"""Logins for image registries, from where Docker and Podman keep theirs: :class:`RegistryCredentials`.

Looked at in this order; the first one that has a login for the registry counts:

1. ``DOCKER_AUTH_CONFIG``: a variable with the content of a ``config.json``, as CI systems set it
2. ``REGISTRY_AUTH_FILE``: the file that Podman is told to use
3. ``config.json`` in ``DOCKER_CONFIG``, or else in ``~/.docker``
4. ``auth.json`` of Podman, in ``XDG_RUNTIME_DIR`` (or ``/run``) or ``~/.config``

A file may name a program that keeps the secrets (``credHelpers``, ``credsStore``); it is asked for the one
registry that is about to be read. Nothing here is ever printed, logged or put into an error.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from upshift.images.reference import DOCKER_HUB

# The variable goes before the files for Docker itself too, from version 28.3: github.com/docker/cli/pull/6008
VARIABLE = "DOCKER_AUTH_CONFIG"
"""The variable that may hold a whole configuration."""

_HUB_KEY = "https://index.docker.io/v1/"  # what Docker files its own registry under
_NOT_THERE = "credentials not found"  # how helpers say so: docker-credential-helpers, credentials/error.go
_TOKEN_USER = "<token>"  # how helpers say that the secret is an identity token
_PATIENCE = 30.0
"""Seconds that a helper may take: some of them ask a cloud."""


@attrs.frozen(kw_only=True)
class RegistryLogin:
    """What proves who somebody is. Its secrets are in no ``repr``."""

    source: str  # where it is from, for people
    # username, password: as for `docker login`
    username: str = ""
    password: str = attrs.field(default="", repr=False)
    # Exchanged for a token of the registry, in place of a password
    identity_token: str = attrs.field(default="", repr=False)
    registry_token: str = attrs.field(default="", repr=False)  # sent to the registry as it is


@attrs.frozen(kw_only=True)
class FoundLogin:
    """What was found for one registry."""

    login: RegistryLogin | None = None  # the login; None: there is none
    looked: tuple[str, ...] = ()  # where it was looked for: files and helpers that are there
    # What could not be read, in a sentence each. A registry that asks for no login works all the same
    problems: tuple[str, ...] = ()


class RegistryCredentials:
    """The logins of this user."""

    def __init__(self, *, environ: Mapping[str, str] = os.environ, patience: float = _PATIENCE) -> None:
        self._environ = environ
        self._patience = patience

    def find(self, registry: str, repository: str = "") -> FoundLogin:
        """The login for a repository; a login for a part of a registry goes before one for all of it."""
        looked, problems = list[str](), list[str]()
        for source, table in self._tables(problems):
            login = self._from_table(table, source, registry, repository, looked, problems)
            if login is not None:
                return FoundLogin(login=login, looked=tuple(looked), problems=tuple(problems))
        return FoundLogin(looked=tuple(looked), problems=tuple(problems))

    def _tables(self, problems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        inline = self._environ.get(VARIABLE)
        if inline:
            table = _table(inline, VARIABLE, problems)
            if table is not None:
                yield VARIABLE, table
        for file in self._files():
            try:
                text = file.read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"{file} cannot be read ({getattr(error, 'strerror', None) or 'no text'})")
                continue
            table = _table(text, str(file), problems)
            if table is not None:
                yield str(file), table

    def _files(self) -> list[Path]:
        environ = self._environ
        home = Path(environ.get("HOME") or Path.home())
        files = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
        files.append(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
        # https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md, read in November 2026
        running = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/containers/{os.getuid()}")
        below = "containers/auth.json" if environ.get("XDG_RUNTIME_DIR") else "auth.json"
        config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        return [*files, running / below, config / "containers/auth.json"]

    def _from_table(
        self,
        table: dict[str, Any],
        source: str,
        registry: str,
        repository: str,
        looked: list[str],
        problems: list[str],
    ) -> RegistryLogin | None:
        looked.append(source)
        for key, helper in _helpers(table, registry):
            program = f"docker-credential-{helper}"
            if not program.isprintable():
                problems.append(f"{source} names {program!r}, which is not a program")
                continue
            looked.append(program)
            login = self._ask(program, key, source, problems)
            if login is not None:
                return login
        entries = table.get("auths")
        if not isinstance(entries, dict):
            return None
        for key in _keys(entries, registry, repository):
            login = _from_entry(entries[key], source, key, problems)
            if login is not None:
                return login
        return None

    def _ask(self, program: str, key: str, source: str, problems: list[str]) -> RegistryLogin | None:
        """Speak with a helper: the registry's key in, JSON out."""
        try:
            asked = subprocess.run(
                [program, "get"],
                input=key.encode(),
                capture_output=True,
                timeout=self._patience,
                env=dict(self._environ),
            )
        except FileNotFoundError:
            problems.append(f"{program}, which {source} names, is not installed")
            return None
        except OSError as error:
            problems.append(f"{program}, which {source} names, cannot be started ({error.strerror})")
            return None
        except subprocess.TimeoutExpired:
            problems.append(f"{program}, which {source} names, has not answered within {self._patience:g} s")
            return None
        if asked.returncode != 0:
            if _NOT_THERE not in (asked.stdout + asked.stderr).decode(errors="replace"):
                # Not in its own words: nobody knows what a helper writes into them.
                problems.append(f"{program}, which {source} names, failed (exit code {asked.returncode})")
            return None
        try:
            answer = json.loads(asked.stdout)
            username, secret = answer["Username"], answer["Secret"]
            (username + secret).encode()  # of text, and none that no request can carry
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"{program}, which {source} names, gave an answer that is invalid")
            return None
        if not secret:
            return None
        if username == _TOKEN_USER:
            return RegistryLogin(source=program, identity_token=secret)
        return RegistryLogin(source=program, username=username, password=secret)


def _table(text: str, source: str, problems: list[str]) -> dict[str, Any] | None:
    if not text.strip():
        return None
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        problems.append(f"{source} is not valid JSON")
        return None
    return table


def _names(registry: str) -> tuple[str, ...]:
    """What a registry may be called in these files."""
    if registry == DOCKER_HUB:
        return (DOCKER_HUB, "index.docker.io", "registry-1.docker.io")
    return (registry,)


def _helpers(table: dict[str, Any], registry: str) -> Iterator[tuple[str, str]]:
    """What to ask for, and the name of the helper to ask; the registry's own before that of all."""
    asked = _HUB_KEY if registry == DOCKER_HUB else registry
    own = table.get("credHelpers")
    if isinstance(own, dict):
        for key, helper in own.items():
            if _host(key) in _names(registry) and isinstance(helper, str) and helper:
                yield asked, helper
    store = table.get("credsStore")
    if isinstance(store, str) and store:
        yield asked, store


def _keys(entries: dict[str, Any], registry: str, repository: str) -> list[str]:
    """The entries for a repository: those for most of its name first, as Podman has them."""
    wanted = [
        "/".join((name, *parts))
        for parts in _beginnings(repository)
        for name in _names(registry)
    ]  # fmt: skip
    exact = [key for key in wanted if key in entries]
    written_otherwise = [key for key in entries if key not in exact and _host(key) in _names(registry)]
    return exact + written_otherwise


def _beginnings(repository: str) -> list[list[str]]:
    parts = repository.split("/") if repository else []
    return [parts[:length] for length in range(len(parts), -1, -1)]


def _host(key: str) -> str | None:
    """The registry of a key such as ``https://host/v1/``; None: it is for a part of the registry."""
    _, mark, rest = key.partition("://")
    host, _, path = (rest if mark else key).partition("/")
    return host.lower() if path.strip("/") in ("", "v1", "v2") else None


def _from_entry(entry: Any, source: str, key: str, problems: list[str]) -> RegistryLogin | None:
    if not isinstance(entry, dict):
        return None

    def text(name: str) -> str:
        value = entry.get(name)
        return value if isinstance(value, str) else ""

    username, password = text("username"), text("password")
    identity_token, registry_token = text("identitytoken"), text("registrytoken")
    try:
        if text("auth"):
            decoded = base64.b64decode(text("auth"), validate=True).decode()
            username, _, password = decoded.rstrip("\0").partition(":")
        "".join((username, password, identity_token)).encode()
        if not (registry_token.isascii() and registry_token.isprintable()):
            raise ValueError
    except ValueError:  # so are those of base64 and of Unicode
        problems.append(f"the login for {key} in {source} is damaged")
        return None
    login = RegistryLogin(
        source=source,
        username=username,
        password=password,
        identity_token=identity_token,
        registry_token=registry_token,
    )
    return login if password or login.identity_token or login.registry_token else None
