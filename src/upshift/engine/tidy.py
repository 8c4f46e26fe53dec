"""What killed processes left in ``UPSHIFT_HOME``, and what is only remembered there to save time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from pathlib import Path

from upshift.engine.control import socket_path
from upshift.errors import RunOwned, StoreUnavailable
from upshift.images import cache
from upshift.model.home import home
from upshift.runs.collect import ABANDONED, Tally
from upshift.runs.lease import Lease, held, lease_path
from upshift.runtime import marks
from upshift.runtime.storage import unpacking
from upshift.runtime.storage.files import available, stale
from upshift.runtime.storage.serializers import scratch
from upshift.runtime.supervisor.serving import server_place

FORGOTTEN = 30 * 86_400.0
"""Seconds after which an answer that nobody has worked out anew is worked out again at its next use, what
images are made from counts as not used any more, and the log of a build that failed is old."""


def tidy(
    wanted: Collection[bytes], *, dry_run: bool, unfinished: Callable[[], Collection[str]] = tuple
) -> Tally:
    """Remove it; give how much there was. Whatever a process that lives has, stays.

    Parameters
    ----------
    wanted
        Digests of the content that some run refers to.
    dry_run
        Whether to change nothing.
    unfinished
        Gives the runs whose end nobody has recorded. Their leases stay: other machines see by them that
        nobody works on these runs.

    Raises
    ------
    StoreUnavailable
        The home cannot be read or written.
    """
    from upshift.backends.docker import folders  # not where nothing is tidied up

    tally = Tally()
    if not home().is_dir():
        return tally
    with available("cleaned", str(home())):
        for folder in chain(scratch.left_over(), scratch.left_over(folders.place())):
            size = _bytes(folder)
            if dry_run or scratch.remove(folder):  # what another user has left there stays
                tally.add("scratch", size)
        for folder in unpacking.left_over(wanted, ABANDONED):
            tally.add("unpacked", _bytes(folder))
            if not dry_run:
                unpacking.remove(folder)
        for path in [*_drafts(), *_memos()]:
            _remove(path, "memos", tally, dry_run=dry_run)
        for path in _of_images():
            _remove(path, "images", tally, dry_run=dry_run)
        for path in _logs():
            _remove(path, "logs", tally, dry_run=dry_run)
        for place in _dead_servers():
            for file in (place.errors, place.socket, place.lock):
                _remove(str(file), "processes", tally, dry_run=dry_run)
        dead = [run for run in _runs() if not held(run)]
        kept = unfinished() if dead else ()
        for run in dead:
            if run not in kept:
                _release(run, tally, dry_run=dry_run)
    return tally


def _memos() -> Iterator[str]:
    for folder in ("memo", "fingerprints"):
        for path in _entries(folder):
            with contextlib.suppress(FileNotFoundError):
                limit = ABANDONED if path.name.startswith(".") else FORGOTTEN
                if _age(path) > limit:
                    yield str(path)


def _of_images() -> Iterator[str]:
    """What was kept to make and check images, and no image has needed for long."""
    for kind in cache.KINDS:
        for folder, _, names in os.walk(cache.folder(kind), topdown=False):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if _age(path) > (ABANDONED if name.startswith(".") else FORGOTTEN):
                        yield str(path)


def _logs() -> Iterator[str]:
    """Of builds that failed, and that nobody looks into any more."""
    for path in _entries("logs/builds"):
        with contextlib.suppress(FileNotFoundError):
            if _age(path) > FORGOTTEN:
                yield str(path)


def _drafts() -> Iterator[str]:
    """Catalogs that somebody was killed making."""
    for path, _ in stale(str(home()), ABANDONED):
        if os.path.basename(path).startswith(".catalog.db."):
            yield path


def _dead_servers() -> Iterator[server_place.Place]:
    """Fork servers that died, with everything below them. A dead one of which something lives is left to
    whoever resumes its run, and kills that first."""
    for path in _entries("forkservers"):
        place = server_place.Place(path.stem)
        if path.suffix != ".lock" or _age(path) < ABANDONED:  # a young one may be about to lock it
            continue
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if not any(marks.marked(place.name)):
                yield place


def _runs() -> set[str]:
    """Runs with a lease, or an engine's socket, that nobody may have any more."""
    return {path.stem for folder in ("leases", "engines") for path in _entries(folder)}


def _release(run: str, tally: Tally, *, dry_run: bool) -> None:
    paths = [socket_path(run), lease_path(run)]
    sizes = [_size(path) for path in paths if os.path.lexists(path)]
    with contextlib.suppress(RunOwned, StoreUnavailable):  # somebody has just taken it
        if not dry_run:
            with Lease(run):
                paths[0].unlink(missing_ok=True)
        tally.add("processes", sum(sizes), len(sizes))


def _remove(path: str, kind: str, tally: Tally, *, dry_run: bool) -> None:
    with contextlib.suppress(FileNotFoundError):
        size = os.lstat(path).st_size
        if not dry_run:
            os.unlink(path)
        tally.add(kind, size)


def _entries(folder: str) -> list[Path]:
    try:
        return sorted((home() / folder).iterdir())
    except FileNotFoundError:
        return []


def _age(path: Path) -> float:
    return time.time() - path.lstat().st_ctime


def _bytes(folder: str) -> int:
    """Of all that can be seen of it: it may go meanwhile, and hold folders that a step closed."""
    size = 0
    for path, _, names in os.walk(folder):
        size += sum(_size(os.path.join(path, name)) for name in names)
    return size


def _size(path: str | Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # somebody else was faster
        return 0
