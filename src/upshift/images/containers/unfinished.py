"""What builds that failed, or were killed, leave in an engine: it has names by which it is found again.

Of a build that failed, Docker without BuildKit keeps the layers that were made, and the next try begins with
them. So they go when the next build has ended, or with ``upshift image prune``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from upshift.errors import ImageError
from upshift.images.containers.engine import PODMAN, ContainerEngine
from upshift.images.kept import this_home
from upshift.images.workshop import in_use

REPOSITORY = "localhost/upshift-unfinished"


def name_in(folder: Path, what: str) -> str:
    """A name for an image that is needed no longer than a build.

    Parameters
    ----------
    folder
        Where the image is made.
    what
        What the image is, for people: ``dockerfile``.
    """
    return f"{REPOSITORY}:{this_home()}.{folder.name}.{what}"


def left_in(engine: ContainerEngine) -> list[str]:
    """The names of images that builds of this ``UPSHIFT_HOME`` have left, and nobody works on.

    Raises
    ------
    ImageError
        The engine cannot be asked.
    """
    command = ["images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={REPOSITORY}:*"]
    found = []
    for name in engine.run(command).stdout.split():
        home, _, rest = name.removeprefix(f"{REPOSITORY}:").partition(".")
        if home == this_home() and not in_use(rest.partition(".")[0]):
            found.append(name)
    return found


def remove_left(engine: ContainerEngine) -> None:
    """Remove them; what another image was built on loses its name."""
    with contextlib.suppress(ImageError):  # the engine has gone: the next build removes them
        for name in left_in(engine):
            removed = engine.run(["rmi", name], check=False).returncode == 0
            if not removed and engine.name == PODMAN:
                engine.run(["untag", name], check=False)
