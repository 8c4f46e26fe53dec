"""The folders of this machine that a container has, and its own one, which goes with it.

::

    UPSHIFT_HOME/containers/NAME       /upshift             home, scratch, code: this attempt's own
                           NAME/tmp    /tmp
    UPSHIFT_HOME/code/RUNTIME          /upshift/runtime     shared by all, to be read only
    the store                          the same path
    mounts of the target               as it says

So nothing that a step leaves in its home, in /tmp or beside its code takes memory, stays, or meets another
step. The own folder of a container that serves several attempts is emptied after each, and its file
``serves`` names the one at work. An own folder is locked by the engine and by the supervisor in the
container; one that nobody has locked is left over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from upshift.backends.docker.container import Mount
from upshift.errors import BackendError
from upshift.model.home import home
from upshift.runtime.storage.serializers import scratch

INSIDE = "/upshift"
"""``UPSHIFT_HOME`` in the container."""
RUNTIME = f"{INSIDE}/runtime"
HOME = f"{INSIDE}/home"
TEMPORARY = "/tmp"
PARTS = ("home", "tmp", "code", "runtime")
"""The folders in an own folder."""
SAID, SERVES = "said", "serves"
"""Files in it: what the engine's command complains of, and the attempt that a container serves now."""


class OwnFolder:
    """The own folder of one container, from before its start until it is gone.

    Raises
    ------
    BackendError
        It cannot be made.
    """

    def __init__(self, name: str) -> None:
        self.path = place() / name
        self._kept = {self.path / part for part in (*PARTS, SAID)}
        self._lock = -1
        try:
            self._lock = scratch.locked(str(self.path))
            for part in PARTS:
                (self.path / part).mkdir(exist_ok=True)
            self._open()
        except OSError as error:
            self.remove()
            raise BackendError(
                f"the folder of a container cannot be made: {self.path}",
                why=error.strerror,
                fix="Set UPSHIFT_HOME to a folder that can be written, on a disk with enough room.",
            ) from None

    @property
    def said(self) -> Path:
        """What the engine's command complains of."""
        return self.path / SAID

    @property
    def code(self) -> Path:
        """Where its copy of the code package goes, for a step finds it there and may write beside it."""
        return self.path / "code"

    @property
    def mount(self) -> Mount:
        """The mount of this folder."""
        return Mount(source=str(self.path), target=INSIDE)

    def mounts(
        self,
        store: str,  # its folder
        runtime: Path,  # its folder
        others: Mapping[str, str],  # paths in the container, each with what is to be there
    ) -> tuple[Mount, ...]:
        """All that the container has of this machine, where it is to be mounted made ready."""
        mounts = [
            self.mount,
            Mount(source=str(self.path / "tmp"), target=TEMPORARY),
            Mount(source=str(runtime), target=RUNTIME, read_only=True),
            Mount(source=os.path.realpath(store), target=store),
            *(Mount(source=os.path.realpath(os.path.expanduser(o)), target=i) for i, o in others.items()),
        ]
        for mount in mounts:
            for inside, part in ((TEMPORARY, "tmp"), (INSIDE, "")):
                if Path(mount.target).is_relative_to(inside):
                    point = self.path / part / Path(mount.target).relative_to(inside)
                    self._kept |= {point, *point.parents}
                    break
            # What the engine has to make in a folder of ours, it would make as root.
            if Path(mount.target).is_relative_to(TEMPORARY) and mount.target != TEMPORARY:
                point = self.path / "tmp" / Path(mount.target).relative_to(TEMPORARY)
                if os.path.isdir(mount.source):
                    point.mkdir(parents=True, exist_ok=True)
                else:
                    point.parent.mkdir(parents=True, exist_ok=True)
                    point.touch()
                for folder in point.relative_to(self.path / "tmp").parents[:-1]:  # whatever the umask
                    (self.path / "tmp" / folder).chmod(0o755)
        return tuple(mounts)

    def serve(self, attempt: str | None) -> None:
        """Note whose it is now, for :func:`serving`; None: nobody's.

        Raises
        ------
        OSError
            It cannot be noted.
        """
        if attempt is not None:
            (self.path / SERVES).write_text(attempt)
        else:
            (self.path / SERVES).unlink(missing_ok=True)

    def clear(self) -> bool:
        """Make it as it was, for the next attempt. False: that cannot be."""
        try:
            return _cleared(self.path, self._kept) and self._open()
        except OSError:
            return False

    def _open(self) -> bool:
        for part in ("", "home", "tmp"):  # whoever the image runs as
            (self.path / part).chmod(0o1777)
        return True

    def remove(self) -> bool:
        """The container is gone. False: it has left something there that is another user's."""
        self.leave()
        return scratch.remove(str(self.path))

    def leave(self) -> None:
        """The container goes on, for another engine to watch."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def place() -> Path:
    """Where all of them are."""
    return home() / "containers"


def serving(attempt: str) -> str | None:
    """The container that serves this attempt, among those that serve several; None: there is none."""
    for note in place().glob(f"*/{SERVES}"):
        with contextlib.suppress(OSError):  # it is gone
            if note.read_text() == attempt:
                return note.parent.name
    return None


def _cleared(folder: Path, kept: Collection[Path]) -> bool:
    """Remove what is in a folder and not to be kept. False: it cannot be removed, or was replaced."""
    folder.chmod(0o755)
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        if path not in kept:
            if not is_folder:
                path.unlink()
            elif not scratch.remove(entry.path):
                return False
        elif entry.is_symlink() or (is_folder and not _cleared(path, kept)):
            return False
    return True


def sweep() -> None:
    """Remove those of containers that are gone with everybody who watched them."""
    for folder in scratch.left_over(place()):
        scratch.remove(folder)
