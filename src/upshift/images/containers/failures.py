"""What Docker and Podman say when they cannot do something, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from upshift.errors import ImageError

DOCKER, PODMAN = "docker", "podman"
NAMES = (DOCKER, PODMAN)
"""The engines, in the order in which they are looked for."""

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


def failure(name: str, args: Sequence[str], output: str) -> ImageError:
    """The error for a command that failed.

    Parameters
    ----------
    name
        Of the engine.
    args, output
        The command, after the engine's name, and what it wrote.
    """
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
    return ImageError(f"{name} {' '.join(args[:2])} failed", why=_last_lines(said, 20) or None)


def full_disk(name: str, output: str) -> ImageError | None:
    """The error for what says that a disk is full; None: nothing of it does."""
    lines = [line for line in output.splitlines() if any(part in line.lower() for part in _DISK_FULL)]
    if not lines:
        return None
    return ImageError(
        f"the disk on which {name.capitalize()} keeps its images is full",
        why=lines[-1].strip(),
        fix=f"See what takes the room: {name} system df. Images that Upshift built and nobody needs: "
        "upshift image prune.",
    )


def _last_lines(text: str, number: int) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-number:])


def not_installed(name: str | None) -> ImageError:
    """The error where an engine, or any, is not on the ``PATH``."""
    what = "no container engine is installed" if name is None else f"{name.capitalize()} is not installed"
    programs = " and no ".join(repr(one) for one in (NAMES if name is None else (name,)))
    packages = {None: "docker.io, or podman", DOCKER: "docker.io", PODMAN: "podman"}[name]
    return ImageError(
        what,
        why=f"There is no {programs} on the PATH.",
        fix=f"Install one (on Debian and Ubuntu: {packages}). Without any, images can be built "
        "(builder = 'daemonless'), and steps run on this machine itself (target local).",
    )


def cannot_start(program: str, error: OSError) -> ImageError:
    """The error for a program that is there, or was, and does not start."""
    return ImageError(
        f"{program} cannot be started", why=error.strerror, fix="See whether it is installed whole."
    )
