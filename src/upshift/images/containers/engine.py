"""The container engine of this machine, Docker or Podman, by its own command line: :func:`find_engine`.

A failure is reported with the engine's last lines; a few that are known come with a fix.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from upshift.errors import ImageError, UsageError, suggestion
from upshift.images.base import DOCKER_HUB, Parent, Reference, platform_name, whole_id
from upshift.images.output import follow
from upshift.runtime.accelerators.compatibility import parse

DOCKER, PODMAN = "docker", "podman"
NAMES = (DOCKER, PODMAN)
"""The engines, in the order in which they are looked for."""

_PATIENCE = 30.0  # seconds for an engine to say its version
_TIME_TO_STOP = 15.0  # seconds for a command to tidy up
_KEPT_LINES = 200  # of a command's output, for its error
_BUILTIN_BUILDKIT = (20, 10)  # the first Docker whose own BuildKit needs no '# syntax=' line
_SEPARATE_BUILDKIT = (23,)  # the first command line that has BuildKit in a plugin
_MISSING = ("no such image", "image not known", "no such object", "unable to find")
_NOT_RUNNING = (
    "cannot connect to the docker daemon",
    "error during connect",
    "failed to connect to the docker api",
    "unable to connect to podman",
    "cannot connect to podman",
)
_NOT_ALLOWED = (
    "permission denied while trying to connect",
    "got permission denied",
    "dial unix: permission denied",
)
_DISK_FULL = ("no space left on device", "disk quota exceeded")
_NO_LAYER = "invalid tar header"  # what Docker before 23 takes zstd for


@attrs.frozen(kw_only=True)
class ContainerEngine:
    name: str  # `"docker"` or `"podman"`: what it is, whatever its command is called
    command: tuple[str, ...]  # how it is called: `("/usr/bin/docker",)`
    version: str  # of the engine itself, which may be newer or older than its command line
    platform: str  # what it runs: `linux/amd64`
    buildkit: bool = False  # whether `docker build` has BuildKit

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
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the engine to its end, such as ``["image", "ls"]``.

        Raises ImageError if it fails; without ``check``, its ``returncode`` tells.
        """
        return _run((*self.command, *args), self.name, input=input, timeout=timeout, check=check)

    def stream(
        self,
        args: Sequence[str],
        on_line: Callable[[str], None],
        *,
        idle: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[int, tuple[str, ...]]:
        """Run one command, and hand over each line of its output; returns its status and last lines.

        ``idle`` is called now and then while no line comes. An exception in either ends the command. So does
        the end of this process, for Docker where util-linux is installed. ``environment`` adds variables.
        """
        lines: deque[str] = deque(maxlen=_KEPT_LINES)

        def take(line: str) -> None:
            lines.append(line)
            on_line(line)

        command = (*self.command, *args)
        if self.name == DOCKER and shutil.which(command[0]):
            command = (*_ending_with_us(), *command)
        more = {**os.environ, **(environment or {})}
        try:
            status = follow(command, take, idle=idle, environment=more, stdout=True, stop=_stop)
        except OSError as error:
            if error.filename != command[0]:
                raise
            raise _cannot_start(command[0], error) from None
        return status, tuple(lines)

    def inspect(self, reference: Reference | str) -> Parent | None:
        """What the engine says of an image; None: it does not have it."""
        if isinstance(reference, str):
            said = self.describe(reference)
            return None if said is None else _parent(said, _reference_of(said, reference))
        for name in self._names(reference):
            said = self.describe(name.full)
            if said is not None:
                return _parent(said, name)
        return None

    def _names(self, reference: Reference) -> Iterator[Reference]:
        """The names that an image may have: Podman builds short names as ``localhost/NAME``."""
        if self.name == PODMAN and reference.registry == DOCKER_HUB:
            short = reference.repository.removeprefix("library/")
            yield attrs.evolve(reference, registry="localhost", repository=short)
        yield reference

    def describe(self, image: str) -> Mapping[str, Any] | None:
        """The engine's own description of an image, by name, digest or id; None: it does not have it."""
        answer = self.run(["image", "inspect", "--format", "{{json .}}", image], check=False)
        if answer.returncode == 0:
            said = json.loads(answer.stdout)
            first: Mapping[str, Any] = said[0] if isinstance(said, list) else said  # Podman's is a list
            return first
        if any(part in answer.stderr.lower() for part in _MISSING):
            return None
        raise self.failure(["image", "inspect", image], answer.stderr)

    def labelled(self, *labels: str) -> list[Mapping[str, Any]]:
        """The descriptions of the images with any of these labels."""
        images: dict[str, None] = {}
        for label in labels:
            listed = self.run(["images", "--quiet", "--no-trunc", "--filter", f"label={label}"]).stdout
            images |= dict.fromkeys(listed.split())
        if not images:
            return []
        answer = self.run(["image", "inspect", *images], check=False)
        if answer.returncode == 0:
            found: list[Mapping[str, Any]] = json.loads(answer.stdout)
            return found
        # One that was removed since it was listed fails the command for all of them.
        return [said for image in images if (said := self.describe(image)) is not None]

    def check(self) -> None:
        """Raise ImageError if the engine no longer answers."""
        _open(self.name, self.command[0])

    def failure(self, args: Sequence[str], output: str) -> ImageError:
        return _failure(self.name, args, output)


def find_engine(name: str | None = None, *, command: str | None = None) -> ContainerEngine:
    """The container engine of this machine, if one answers."""
    if name is not None and name not in NAMES:
        raise UsageError(f"no container engine is called {name!r}", fix=suggestion(name, NAMES))
    if command is not None:
        return _open(name or os.path.basename(command), command)
    programs = installed(NAMES if name is None else (name,))
    if not programs:
        raise _not_installed(name)
    errors = []
    for one, path in programs.items():
        try:
            return _open(one, path)
        except ImageError as error:
            errors.append(error)
    raise errors[0]


def installed(names: Sequence[str] = NAMES) -> dict[str, str]:
    """The engines on the ``PATH``, each with its program; they may not answer."""
    return {name: path for name in names if (path := shutil.which(name))}


def full_disk(name: str, output: str) -> ImageError | None:
    """The error for an output that says that a disk is full; None: it does not."""
    lines = [line for line in output.splitlines() if any(part in line.lower() for part in _DISK_FULL)]
    if not lines:
        return None
    return ImageError(
        f"the disk on which {name.capitalize()} keeps its images is full",
        why=lines[-1].strip(),
        fix=f"See what takes the room: {name} system df. Images that Upshift built and nobody needs: "
        "upshift image prune.",
    )


def _open(name: str, command: str) -> ContainerEngine:
    answer = _run((command, "version", "--format", "{{json .}}"), name, timeout=_PATIENCE)
    try:
        said = json.loads(answer.stdout)
        client, server = said["Client"], said.get("Server")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _failure(name, ["version"], answer.stderr or answer.stdout) from None
    if "OsArch" in client:  # Podman, whatever it is called; without a server it is the engine itself
        engine = server or client
        version, (system, architecture) = engine["Version"], engine["OsArch"].split("/")[:2]
        name, buildkit = PODMAN, False
    else:
        if not server:
            raise _failure(name, ["version"], answer.stderr)
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
    """Whether ``docker build`` has BuildKit: from 23.0 on it is a plugin, which may be missing."""
    if os.environ.get("DOCKER_BUILDKIT") == "0" or parse(server) < _BUILTIN_BUILDKIT:
        return False
    if parse(client) < _SEPARATE_BUILDKIT:
        return True
    return _run((command, "buildx", "version"), DOCKER, timeout=_PATIENCE).returncode == 0


def _run(
    command: Sequence[str],
    name: str,
    *,
    input: str | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    try:
        answer = subprocess.run(
            command,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout,
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
        raise _cannot_start(command[0], error) from None
    if check and answer.returncode != 0:
        raise _failure(name, command[1:], answer.stderr or answer.stdout)
    return answer


# -- what an engine says of an image --------------------------------------------------------------


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
        platform=platform_name(said["Os"], said["Architecture"], said.get("Variant")),
        environment=dict(one.partition("=")[::2] for one in config.get("Env") or ()),
        labels=dict(config.get("Labels") or {}),
        user=config.get("User") or None,
        bytes=said.get("Size"),
        config=said,
        in_engine=True,
    )


def _digest(said: Mapping[str, Any], reference: Reference) -> str:
    """Its digest in the registry of this name, if it came from there; else its id."""
    for name in said.get("RepoDigests") or ():
        repository, _, digest = name.partition("@")
        if Reference.parse(repository).name == reference.name:
            return str(digest)
    return whole_id(said)


# -- commands that take long ----------------------------------------------------------------------


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a command, so that it ends and removes what it has begun."""
    if not _end_instruction(process.pid):
        process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_TIME_TO_STOP)  # it would die of a closed pipe
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@functools.cache
def _ending_with_us() -> tuple[str, ...]:
    """What precedes a command so that it gets SIGTERM when this thread ends, even by SIGKILL.

    It is a program, since Python code between fork and exec is not safe where there are threads. Podman goes
    without: the process of an instruction outlives ``podman build``, which cleans up only at its own end.
    """
    program = shutil.which("setpriv")
    if program is None or os.path.basename(os.path.realpath(program)) != "setpriv":
        return ()  # busybox has one that cannot
    return (program, "--pdeathsig", "TERM", "--")


def _end_instruction(pid: int) -> bool:
    """Kill the process of an instruction of ``podman build``, which then fails and cleans up."""
    import psutil

    ended = False
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if child.cmdline()[:1] == ["buildah-oci-runtime"]:
                    for first in child.children():
                        first.kill()
                        ended = True
    return ended


# -- failures -------------------------------------------------------------------------------------


def _failure(name: str, args: Sequence[str], output: str) -> ImageError:
    said = output.strip()
    low = said.lower()
    title = name.capitalize()
    if any(part in low for part in _NOT_ALLOWED):
        return ImageError(
            f"this user may not use {title}",
            why=_last_lines(said, 1),
            fix=f"Add the user to the group that the socket belongs to (sudo usermod -aG {name} $USER), and "
            "log in again. Or use Podman, which needs no daemon.",
        )
    if any(part in low for part in _NOT_RUNNING):
        start = "sudo systemctl start docker" if name == DOCKER else "podman machine start"
        return ImageError(
            f"{title} is installed, but its daemon does not answer",
            why=_last_lines(said, 1),
            fix=f"Start it: {start}. DOCKER_HOST and 'docker context' say which daemon is asked."
            if name == DOCKER
            else f"Start it: {start}.",
        )
    full = full_disk(name, said)
    if full is not None:
        return full
    if _NO_LAYER in low:
        return ImageError(
            f"{title} cannot read a layer of the image",
            why=_last_lines(said, 1),
            fix="If it is compressed with zstd, Docker reads it from 23 on: update, or use Podman.",
        )
    return ImageError(f"{name} {' '.join(args[:2])} failed", why=_last_lines(said, 20) or None)


def _last_lines(text: str, number: int) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-number:])


def _not_installed(name: str | None) -> ImageError:
    what = "no container engine is installed" if name is None else f"{name.capitalize()} is not installed"
    programs = " and no ".join(repr(one) for one in (NAMES if name is None else (name,)))
    packages = {None: "docker.io, or podman", DOCKER: "docker.io", PODMAN: "podman"}[name]
    return ImageError(
        what,
        why=f"There is no {programs} on the PATH.",
        fix=f"Install one (on Debian and Ubuntu: {packages}). Without any, images can be built "
        "for other machines, and steps run on this machine itself (target local).",
    )


def _cannot_start(program: str, error: OSError) -> ImageError:
    return ImageError(
        f"{program} cannot be started", why=error.strerror, fix="See whether it is installed whole."
    )
