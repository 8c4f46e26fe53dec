"""The container engine of this machine, Docker or Podman, by its own command line: :func:`find_engine`.

A command is a list of arguments, all the way down. What an engine says in a failure is told in its own
words, with what to do about it where that is known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import ImageError, UsageError, suggestion
from upshift.images.base import Parent
from upshift.images.containers.failures import DOCKER as DOCKER
from upshift.images.containers.failures import NAMES as NAMES
from upshift.images.containers.failures import PODMAN as PODMAN
from upshift.images.containers.failures import cannot_start, failure, not_installed
from upshift.images.containers.processes import started, stop
from upshift.images.following import lines_of
from upshift.images.reference import DOCKER_HUB, Reference

_PATIENCE = 30.0  # seconds for an engine to say its version
_MISSING = ("no such image", "image not known", "no such object", "unable to find")
_KEPT_LINES = 200  # of a command's output, for its error
_BUILTIN_BUILDKIT = (
    20,
    10,
)  # the first Docker whose own BuildKit takes RUN --mount without a '# syntax=' line
_SEPARATE_BUILDKIT = (23,)  # the first command line that has BuildKit in a plugin
_PODMAN_MOUNTS = (4, 0)  # the first Podman with RUN --mount=type=cache


@attrs.frozen(kw_only=True)
class ContainerEngine:
    """Docker or Podman on this machine.

    Parameters
    ----------
    name
        ``"docker"`` or ``"podman"``: what it is, whatever its command is called.
    command
        How it is called: ``("/usr/bin/docker",)``.
    version
        Of the engine itself, which may be newer or older than its command line.
    platform
        What it runs: ``linux/amd64``.
    buildkit
        Whether its builds take ``RUN --mount=type=cache``.
    """

    name: str
    command: tuple[str, ...]
    version: str
    platform: str
    buildkit: bool

    @property
    def title(self) -> str:
        """For people: ``Docker 20.10.24``."""
        return f"{self.name.capitalize()} {self.version}"

    def run(
        self,
        args: Sequence[str],
        *,
        input: str | None = None,
        timeout: float | None = None,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the engine to its end.

        Parameters
        ----------
        args
            After the engine's name: ``["image", "ls"]``.
        input
            What it reads; None: nothing.
        timeout
            Seconds.
        check
            Whether a failure is an error; else it is in the result's ``returncode``.
        environment
            More variables for the command.

        Raises
        ------
        ImageError
            It failed, or took longer.
        """
        return _run(
            (*self.command, *args),
            name=self.name,
            input=input,
            timeout=timeout,
            check=check,
            more=environment,
        )

    def stream(
        self,
        args: Sequence[str],
        on_line: Callable[[str], None],
        *,
        idle: Callable[[], None] = lambda: None,
        input: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int, tuple[str, ...]]:
        """Run one command, and hand each line that it writes to ``on_line`` as it comes.

        ``idle`` is called now and then while no line comes. What either raises ends the command; of Docker,
        so does the end of this process, where util-linux is installed.

        Returns
        -------
        tuple
            Its exit status, and the last of its lines.

        Raises
        ------
        ImageError
            The engine's program has gone.
        """
        lines: list[str] = []
        with started((*self.command, *args), self.name, input, environment) as process:
            assert process.stdout is not None
            try:
                for line in lines_of(process.stdout, idle=idle):
                    lines.append(line)
                    del lines[:-_KEPT_LINES]
                    on_line(lines[-1])
            except BaseException:
                stop(process)
                raise
        return process.returncode, tuple(lines)

    def inspect(self, reference: Reference | str) -> Parent | None:
        """What the engine says of an image; None: it does not have it.

        Raises
        ------
        ImageError
            The engine cannot be asked.
        """
        if isinstance(reference, str):
            said = self.describe(reference)
            return None if said is None else _parent(said, _reference_of(said, reference))
        for name in self._names(reference):
            said = self.describe(name.full)
            if said is not None:
                return _parent(said, name)
        return None

    def _names(self, reference: Reference) -> Iterator[Reference]:
        """Where an image may be: what Podman builds under a short name is called ``localhost/NAME``."""
        if self.name == PODMAN and reference.registry == DOCKER_HUB:
            short = reference.repository.removeprefix("library/")
            yield attrs.evolve(reference, registry="localhost", repository=short)
        yield reference

    def describe(self, image: str) -> Mapping[str, Any] | None:
        """The engine's own description of an image, by name, digest or id; None: it does not have it.

        Raises
        ------
        ImageError
            The engine cannot be asked.
        """
        answer = self.run(["image", "inspect", "--format", "{{json .}}", image], check=False)
        if answer.returncode == 0:
            said = json.loads(answer.stdout)
            first: Mapping[str, Any] = said[0] if isinstance(said, list) else said  # Podman's is a list
            return first
        if _is_missing(answer.stderr):
            return None
        raise self.failure(["image", "inspect", image], answer.stderr)

    def check(self) -> None:
        """See whether the engine still answers.

        Raises
        ------
        ImageError
            It does not.
        """
        _open(self.name, self.command[0])

    def failure(self, args: Sequence[str], output: str) -> ImageError:
        """The error for a command of the engine that failed and wrote this."""
        return failure(self.name, args, output)


def find_engine(name: str | None = None, *, command: str | None = None) -> ContainerEngine:
    """The container engine of this machine, ready to be used.

    Parameters
    ----------
    name
        ``"docker"`` or ``"podman"``; None: the first of them that works.
    command
        The program, where it is not the one of that name on the ``PATH``.

    Raises
    ------
    UsageError
        There is no engine of this name.
    ImageError
        It is not installed, does not run, or may not be used by this user; says what to do.
    """
    if name is not None and name not in NAMES:
        raise UsageError(f"no container engine is called {name!r}", fix=suggestion(name, NAMES))
    if command is not None:
        return _open(name or os.path.basename(command), command)
    programs = installed(NAMES if name is None else (name,))
    if not programs:
        raise not_installed(name)
    errors = []
    for one, path in programs.items():
        try:
            return _open(one, path)
        except ImageError as error:
            errors.append(error)
    raise errors[0]


def installed(names: Sequence[str] = NAMES) -> dict[str, str]:
    """Which of the engines are on the ``PATH``, each with its program; whether they answer is not known."""
    return {name: path for name in names if (path := shutil.which(name))}


def _open(name: str, command: str) -> ContainerEngine:
    answer = _run((command, "version", "--format", "{{json .}}"), name=name, timeout=_PATIENCE, check=False)
    try:
        said = json.loads(answer.stdout)
        client, server = said["Client"], said.get("Server")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise failure(name, ["version"], answer.stderr or answer.stdout) from None
    if "OsArch" in client:  # Podman, whatever it is called; without a server it is the engine itself
        engine = server or client
        version, (system, architecture) = engine["Version"], engine["OsArch"].split("/")[:2]
        name, buildkit = PODMAN, _numbers(version) >= _PODMAN_MOUNTS
    else:
        if not server:
            raise failure(name, ["version"], answer.stderr)
        name, version, system, architecture = DOCKER, server["Version"], server["Os"], server["Arch"]
        buildkit = _has_buildkit(command, client["Version"], version)
    return ContainerEngine(
        name=name,
        command=(command,),
        version=version.partition("+")[0],
        platform=f"{system}/{architecture}",
        buildkit=buildkit,
    )


def _has_buildkit(command: str, client: str, server: str) -> bool:
    """Whether ``docker build`` has BuildKit: from 23.0 on that is in a plugin, which may be missing."""
    if os.environ.get("DOCKER_BUILDKIT") == "0" or _numbers(server) < _BUILTIN_BUILDKIT:
        return False
    if _numbers(client) < _SEPARATE_BUILDKIT:
        return True
    return _run((command, "buildx", "version"), name=DOCKER, timeout=_PATIENCE, check=False).returncode == 0


def _numbers(version: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in version.split(".")[:2]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _run(
    command: Sequence[str],
    *,
    name: str,
    input: str | None = None,
    timeout: float | None = None,
    check: bool,
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    try:
        answer = subprocess.run(
            command,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout,
            env={**os.environ, **(more or {})},
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(
            f"{name} did not answer within {timeout:g} s: {' '.join(command[1:3])}",
            fix=f"See whether {name} works at all: {name} info",
        ) from None
    except OSError as error:
        raise cannot_start(command[0], error) from None
    if check and answer.returncode != 0:
        raise failure(name, command[1:], answer.stderr or answer.stdout)
    return answer


def _is_missing(output: str) -> bool:
    return any(part in output.lower() for part in _MISSING)


def _reference_of(said: Mapping[str, Any], text: str) -> Reference:
    """A name for an image that was asked for by its id."""
    names = [*(said.get("RepoTags") or ()), *(said.get("RepoDigests") or ())]
    named = [name for name in names if "<none>" not in name]
    return Reference.parse(named[0] if named else text)


def _parent(said: Mapping[str, Any], reference: Reference) -> Parent:
    config = said.get("Config") or {}
    return Parent(
        reference=reference,
        digest=_digest(said, reference),
        platform=_platform(said),
        environment=dict(one.partition("=")[::2] for one in config.get("Env") or ()),
        labels=dict(config.get("Labels") or {}),
        user=config.get("User") or None,
        entrypoint=tuple(config.get("Entrypoint") or ()),
        working_dir=config.get("WorkingDir") or None,
        bytes=said.get("Size"),
        config=said,
        in_engine=True,
    )


def _digest(said: Mapping[str, Any], reference: Reference) -> str:
    """What a registry calls it, where it came from this one; else its id."""
    for name in said.get("RepoDigests") or ():
        repository, _, digest = name.partition("@")
        if Reference.parse(repository).name == reference.name:
            return str(digest)
    identity = str(said["Id"])
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


def _platform(said: Mapping[str, Any]) -> str:
    parts = [said["Os"], said["Architecture"]]
    variant = said.get("Variant")
    if variant and (said["Architecture"], variant) != ("arm64", "v8"):  # the only one that there is
        parts.append(variant)
    return "/".join(parts)
