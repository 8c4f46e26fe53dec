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

from upshift.images.base import DOCKER_HUB, HUB_ALIASES

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
    login: RegistryLogin | None = None  # the login; None: there is none
    looked: tuple[str, ...] = ()  # where it was looked for: files and helpers that are there
    # What could not be read, in a sentence each. A registry that asks for no login works all the same
    problems: tuple[str, ...] = ()


class RegistryCredentials:
    def __init__(self, *, environ: Mapping[str, str] = os.environ, patience: float = _PATIENCE) -> None:
        self._environ = environ
        self._patience = patience

    def find(self, registry: str, repository: str = "") -> FoundLogin:
        """The login for a repository; a login for a part of a registry goes before one for all of it."""
        search = _Search(self._environ, self._patience, registry, repository)
        login = next(search.logins(), None)
        return FoundLogin(login=login, looked=tuple(search.looked), problems=tuple(search.problems))


@attrs.define
class _Search:
    """One search for a login: where it looked, and what it could not read."""

    _environ: Mapping[str, str]
    _patience: float
    _registry: str
    _repository: str
    looked: list[str] = attrs.field(factory=list)
    problems: list[str] = attrs.field(factory=list)

    def logins(self) -> Iterator[RegistryLogin]:
        """All of them, the one that counts first."""
        for source, text in self._texts():
            table = self._table(text, source)
            if table is None:
                continue
            self.looked.append(source)
            for key, helper in _helpers(table, self._registry):
                program = f"docker-credential-{helper}"
                if not program.isprintable():
                    self.problems.append(f"{source} names {program!r}, which is not a program")
                    continue
                self.looked.append(program)
                yield from self._asked(program, key, source)
            entries = table.get("auths")
            if isinstance(entries, dict):
                for key in _keys(entries, self._registry, self._repository):
                    yield from self._from_entry(entries[key], source, key)

    def _texts(self) -> Iterator[tuple[str, str]]:
        inline = self._environ.get(VARIABLE)
        if inline:
            yield VARIABLE, inline
        for file in self._files():
            try:
                yield str(file), file.read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "no text"
                self.problems.append(f"{file} cannot be read ({why})")

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

    def _table(self, text: str, source: str) -> dict[str, Any] | None:
        if not text.strip():
            return None
        try:
            table = json.loads(text)
        except (ValueError, RecursionError):
            table = None
        if not isinstance(table, dict):
            self.problems.append(f"{source} is not valid JSON")
            return None
        return table

    def _asked(self, program: str, key: str, source: str) -> Iterator[RegistryLogin]:
        """Speak with a helper: the registry's key in, JSON out."""
        named = f"{program}, which {source} names,"
        try:
            asked = subprocess.run(
                [program, "get"],
                input=key.encode(),
                capture_output=True,
                timeout=self._patience,
                env=dict(self._environ),
            )
            if asked.returncode != 0:
                if _NOT_THERE not in (asked.stdout + asked.stderr).decode(errors="replace"):
                    # Not in its own words: nobody knows what a helper writes into them.
                    self.problems.append(f"{named} failed (exit code {asked.returncode})")
                return
            answer = json.loads(asked.stdout)
            username, secret = answer["Username"], answer["Secret"]
            (username + secret).encode()  # of text, and none that no request can carry
        except FileNotFoundError:
            self.problems.append(f"{named} is not installed")
        except OSError as error:
            self.problems.append(f"{named} cannot be started ({error.strerror})")
        except subprocess.TimeoutExpired:
            self.problems.append(f"{named} has not answered within {self._patience:g} s")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.problems.append(f"{named} gave an answer that is invalid")
        else:
            if secret and username == _TOKEN_USER:
                yield RegistryLogin(source=program, identity_token=secret)
            elif secret:
                yield RegistryLogin(source=program, username=username, password=secret)

    def _from_entry(self, entry: Any, source: str, key: str) -> Iterator[RegistryLogin]:
        if not isinstance(entry, dict):
            return
        kinds = ("username", "password", "auth", "identitytoken", "registrytoken")
        given = (entry.get(kind) for kind in kinds)
        username, password, auth, identity, token = (one if isinstance(one, str) else "" for one in given)
        try:
            if auth:
                decoded = base64.b64decode(auth, validate=True).decode()
                username, _, password = decoded.rstrip("\0").partition(":")
            "".join((username, password, identity)).encode()
            if not (token.isascii() and token.isprintable()):
                raise ValueError
        except ValueError:  # so are those of base64 and of Unicode
            self.problems.append(f"the login for {key} in {source} is damaged")
            return
        if password or identity or token:
            yield RegistryLogin(
                source=source,
                username=username,
                password=password,
                identity_token=identity,
                registry_token=token,
            )


def _names(registry: str) -> tuple[str, ...]:
    """What a registry may be called in these files."""
    return (DOCKER_HUB, *HUB_ALIASES) if registry == DOCKER_HUB else (registry,)


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
    parts = repository.split("/") if repository else []
    lengths = range(len(parts), -1, -1)
    wanted = ["/".join((name, *parts[:length])) for length in lengths for name in _names(registry)]
    exact = [key for key in wanted if key in entries]
    written_otherwise = [key for key in entries if key not in exact and _host(key) in _names(registry)]
    return exact + written_otherwise


def _host(key: str) -> str | None:
    """The registry of a key such as ``https://host/v1/``; None: it is for a part of the registry."""
    _, mark, rest = key.partition("://")
    host, _, path = (rest if mark else key).partition("/")
    return host.lower() if path.strip("/") in ("", "v1", "v2") else None
