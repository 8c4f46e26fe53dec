"""Where a fork server keeps its files, what its attempts are called, and what is done once it has died."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import attrs

from upshift.model.home import home
from upshift.model.spec import TaskId
from upshift.runtime import proc
from upshift.runtime.confine import MARKER
from upshift.runtime.storage.serializers import scratch


@attrs.frozen
class Place:
    """Where a fork server of this name keeps its files.

    Parameters
    ----------
    name
        Unique on this machine.
    """

    name: str

    @property
    def folder(self) -> Path:
        return home() / "forkservers"

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
        """Remove the files."""
        for path in (self.socket, self.lock, self.errors):
            path.unlink(missing_ok=True)


def handle(name: str, task: TaskId, attempt: int) -> str:
    """The name of an attempt under the server of this name."""
    return f"{name}/{task.run}/{task}#{attempt}"


def sweep(place: Place) -> None:
    """Kill whatever is left of a fork server that has died, and wait until it is gone."""
    if not place.lock.exists():
        return
    marker = f"{MARKER}={place.name}"
    while True:
        left = list(proc.holders(str(place.lock), marker))
        if not left:
            break
        watched: list[int] = []
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                watched.append(os.pidfd_open(pid))
        proc.kill(left)
        for descriptor in watched:
            _wait_for_exit(descriptor)
    scratch.sweep()
    place.remove()


def _wait_for_exit(pidfd: int) -> None:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll()
    os.close(pidfd)
