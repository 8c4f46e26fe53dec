"""Where a fork server keeps its files, what its attempts are called, and what is done once it has died."""

from __future__ import annotations

import contextlib
from pathlib import Path

import attrs

from upshift.errors import BackendError
from upshift.model.configuration import home, make_folder
from upshift.model.spec import TaskId
from upshift.runtime import marks
from upshift.runtime.storage import home_folders

_FOLDER = "forkservers"


@attrs.frozen
class ServerFiles:
    """Where a fork server of this name keeps its files."""

    name: str  # unique on this machine

    @property
    def folder(self) -> Path:
        return home() / _FOLDER

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.name}.lock"

    @property
    def errors(self) -> Path:
        return self.folder / f"{self.name}.err"

    def remove(self) -> None:
        """Remove the files of the server."""
        for path in (self.socket, self.lock, self.errors):
            path.unlink(missing_ok=True)


def adopt(other: Path) -> None:
    """Make the fork servers of another home on this machine known in this one: their tasks may still run."""
    for path in (other / _FOLDER).glob("*.*"):
        own = ServerFiles(path.stem).folder / path.name
        make_folder(own.parent)
        with contextlib.suppress(FileExistsError):
            own.symlink_to(path.resolve())


def handle(name: str, task: TaskId, attempt: int) -> str:
    """The name of an attempt under the server of this name."""
    return f"{name}/{task.run}/{task}#{attempt}"


def sweep(place: ServerFiles) -> None:
    """Kill whatever is left of a fork server that has died, and wait until it is gone."""
    if not place.lock.exists():
        return
    while left := list(marks.marked(place.name)):
        lasting = marks.kill(left, lambda pid: any(name == place.name for name, _ in marks.marks(pid)))
        if lasting:
            raise BackendError(
                f"process {lasting[0]} of a task that was interrupted cannot be ended",
                why="It runs as another user, or waits for a device or a network drive that does not answer.",
                fix="End it, or wait until it has ended; then run this again.",
            )
    home_folders.sweep()
    place.remove()
