"""Checkpoints: folders that a task keeps between its attempts, complete or not offered to anybody.

::

    checkpoints/RUN/STEP/INDEX/
        2.5/          what attempt 2 has written when it saved for the fifth time
        2.5.rank0     process 0 has written its part of it, and all of that is on disk
        2.5.rank1     process 1 likewise
        2.6.alone     one process writes 2.6 for all; another one that joins is told

A checkpoint is complete once there are the records of all processes that take part. Each says how many
these are, so that the record that comes last is the moment at which the checkpoint is there: nobody has to
wait for anybody, and nothing is moved. Everything is flushed before the record, whatever the durability of
the store: a checkpoint is for the day on which things go wrong.

The processes of an attempt count alike, so they agree on a name without asking each other. A process of an
attempt that was given up, and that nobody could kill, may still run on another machine: what it saves after
there is a further attempt does not count, and removes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from upshift.errors import StoreUnavailable
from upshift.model.spec.codec import from_json, to_json
from upshift.model.spec.task import TaskId, TaskResult, same_work
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.files import available, fresh, make_folder, sync_folder, temporary
from upshift.runtime.storage.records import Records, attempt_path, safe, unpack_result

if TYPE_CHECKING:
    from upshift.runtime.storage.store import Store

FOLDER = "checkpoints"
"""Of a store: all of them."""
_ENTRY = re.compile(r"([0-9]+)\.([0-9]+)(?:\.rank[0-9]+|\.alone)?")


@attrs.frozen(order=True)
class Name:
    """Which one: the attempt that saved it, and its number among those of that attempt, both from 1."""

    attempt: int
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.number}"


@attrs.frozen(kw_only=True)
class Part:
    """What one process says when it has written its part."""

    ranks: int = 1  # how many processes have to say so: 1, or all of the task's
    world_size: int = 1  # how many processes the task had
    key: str | None = None  # of the work that it belongs to


@attrs.frozen
class Checkpoint:
    """One that was begun."""

    name: Name  # which one, and where its files are
    folder: Path
    parts: dict[int, Part]  # by rank, what the processes have said that are through

    @property
    def part(self) -> Part:
        """What any of them has said: they agree, but for the time. There is one."""
        return self.parts[min(self.parts)]

    @property
    def complete(self) -> bool:
        """Whether all of it is there. What has nothing in it was emptied by somebody."""
        return bool(self.parts) and len(self.parts) >= self.part.ranks and bool(_listed(str(self.folder)))

    @property
    def missing(self) -> list[int]:
        """The ranks that have not written their part, as far as that is known."""
        return [rank for rank in range(self.part.ranks) if rank not in self.parts] if self.parts else []


class TaskCheckpoints:
    """The checkpoints of one task.

    Every method raises :class:`~upshift.errors.StoreUnavailable` where the file system fails.
    """

    def __init__(self, store: str, task: TaskId) -> None:
        self.store = store
        self._records = Records(store, power=True)
        self._task = task

    @functools.cached_property
    def _relative(self) -> str:  # most steps save no checkpoint
        return f"{FOLDER}/{_path_of(self._task)}"

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of the task's checkpoints."""
        return Path(self.store, self._relative)

    def begin(self, name: Name, *, alone: bool) -> Path:
        """An empty folder for a checkpoint; what earlier attempts had begun and not completed goes."""
        folder = self.folder / str(name)
        with available("written", str(folder)):
            for parent in make_folder(str(self.folder)):
                sync_folder(parent)
            if name.number == 1:
                self._drop_torn(before=name)
            marker = Path(f"{folder}.alone")
            own = _made(marker) if alone else not marker.exists()
            if own and not _made_folder(folder) and alone:  # others had begun it together
                marker.unlink()
                own = False
            if not alone:
                own = not marker.exists()
        if not own:
            raise FileExistsError(str(folder))
        return folder

    def finish(self, name: Name, rank: int, part: Part) -> int | None:
        """Say that a process has written its part.

        Returns
        -------
        int or None
            Bytes of the checkpoint, if it is complete by that. Older ones are gone then. None as well, where
            there is a further attempt already: then nothing is said.

        Raises
        ------
        FileNotFoundError
            All are through, and there is nothing in its folder.
        """
        folder = self.folder / str(name)
        with available("written", str(folder)):
            flush(str(folder))
            sync_folder(str(self.folder))
        if self._superseded(name):
            return None
        self._records.write(f"{self._relative}/{name}.rank{rank}", to_json(part))
        entries = self._records.names(self._relative)
        if sum(entry.startswith(f"{name}.rank") for entry in entries) < part.ranks:
            return None
        if not _listed(str(folder)):
            self.drop(name)
            raise FileNotFoundError(str(folder))
        for older in {found for found in map(name_in, entries) if found is not None and found < name}:
            if not self._superseded(name):
                self.drop(older)
        return _bytes(str(folder))

    def _superseded(self, name: Name) -> bool:
        """Whether there is an attempt after that of a checkpoint."""
        return self._records.has(attempt_path(self._task, name.attempt + 1, "spec.json"))

    def newest(self, key: str | None) -> Checkpoint | None:
        """The newest complete one of this work."""
        found = [one for one in self.begun() if one.complete and fits(one.part.key, key)]
        return max(found, key=lambda one: one.name, default=None)

    def unusable(self, key: str | None) -> Checkpoint | None:
        """The newest one, if it is not complete, or of other work."""
        newest = max(self.begun(), key=lambda one: one.name, default=None)
        if newest is None or (newest.complete and fits(newest.part.key, key)):
            return None
        return newest

    def drop(self, name: Name) -> None:
        """Remove one. Its records go first: what is half removed is not complete."""
        with contextlib.suppress(OSError):  # another user's, or somebody else was faster
            for entry in os.listdir(self.folder):
                if entry.startswith(f"{name}."):
                    os.unlink(self.folder / entry)
            home_folders.remove(str(self.folder / str(name)))

    def _drop_torn(self, *, before: Name) -> None:
        """Remove what earlier attempts had begun, and cannot complete any more."""
        for one in self.begun():
            if one.name < before and not one.complete:
                self.drop(one.name)

    def begun(self) -> list[Checkpoint]:
        """The checkpoints that were begun, complete or not."""
        with available("read", str(self.folder)):
            return _begun(self.folder)


def discard(store: Store, result: TaskResult, *, wait: bool) -> None:
    """Remove what a task has saved that completed: no further attempt asks for it."""
    if result.checkpoints is None and result.attempt == 1:
        return
    if store.replica is not None:
        objects, prefix = store.replica.objects, f"{FOLDER}/{_path_of(result.task)}/"
        _work(lambda: objects.delete([meta.key for meta in objects.list(prefix)]), wait=wait)
    aside = put_aside(store.address, f"{store.address}/{FOLDER}/{_path_of(result.task)}")
    if aside is not None:
        _work(lambda: home_folders.remove(aside), wait=wait)


def _work(remove: Callable[[], object], *, wait: bool) -> None:
    def removed() -> None:
        with contextlib.suppress(StoreUnavailable):  # gc finds what is left
            remove()

    if wait:
        removed()
    else:
        threading.Thread(target=removed, name="removes checkpoints").start()


def forget(store: str, task: TaskId) -> None:
    """Remove what a node has of a task, as the bucket has it."""
    home_folders.remove(f"{store}/{FOLDER}/{_path_of(task)}")


def runs_with_any(store: str) -> list[str]:
    """The runs that have any, by the names of their folders."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(f"{store}/{FOLDER}"))
    return []


def left_over(store: str, run: str, *, gone: bool) -> Iterator[str]:
    """Folders of a run on which nobody works that nobody will ask for again.

    Those of tasks that completed, and what was begun and not completed; all, if the run is ``gone``.
    """
    top = f"{store}/{FOLDER}/{run}"
    if gone:
        yield top
        return
    for step in _listed(top):
        results = _listed(f"{store}/runs/{run}/tasks/{step}")
        for index in _listed(f"{top}/{step}"):
            of_this = [r for r in results if r.startswith(f"{index}.") and r.endswith(".result.json")]
            if any(_completed(f"{store}/runs/{run}/tasks/{step}/{name}") for name in of_this):
                yield f"{top}/{step}/{index}"
                continue
            yield from (str(one.folder) for one in _begun(Path(top, step, index)) if not one.complete)


def put_aside(store: str, folder: str) -> str | None:
    """Take one of these folders away at one moment; give where it is, to be removed. None: it cannot be.

    What stays there, because somebody was killed, ``gc`` finds.
    """
    aside = temporary(f"{store}/tmp")
    try:
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.rename(folder, aside)
    except OSError:  # there is none, or it is another user's
        return None
    for parent in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
        with contextlib.suppress(OSError):  # there are others
            if f"/{FOLDER}/" in parent:
                os.rmdir(parent)
    return aside


def _completed(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            result = unpack_result(file.read(), path)
    except FileNotFoundError:
        return False
    return result is not None and result.status == "completed"


def _listed(folder: str) -> list[str]:
    try:
        return sorted(fresh(folder, lambda: os.listdir(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _path_of(task: TaskId) -> str:
    return f"{safe(task.run)}/{safe(task.step)}/{task.index or 0}"


def fits(key: str | None, wanted: str | None) -> bool:
    """Whether a checkpoint of the work with a key is one for what is wanted."""
    return key == wanted or same_work(key, wanted)


def _begun(folder: Path) -> list[Checkpoint]:
    while True:
        with contextlib.suppress(_Gone):  # a newer one is complete by now, and not in what was listed
            return _listed_ones(folder)


class _Gone(Exception):
    """A record that was listed is not there any more."""


def _listed_ones(folder: Path) -> list[Checkpoint]:
    parts: dict[Name, dict[int, Part]] = {}
    for entry in _listed(str(folder)):
        name = name_in(entry)
        if name is None:
            continue
        of_this = parts.setdefault(name, {})
        _, said, rank = entry.partition(".rank")
        if said:
            try:
                file = folder / entry
                of_this[int(rank)] = from_json(Part, fresh(str(file), file.read_bytes))
            except FileNotFoundError:
                raise _Gone from None
            except ValueError:  # damaged
                continue
    return [Checkpoint(name, folder / str(name), of_this) for name, of_this in parts.items()]


def name_in(entry: str) -> Name | None:
    """The checkpoint that a folder or a record is of."""
    found = _ENTRY.fullmatch(entry)
    return None if found is None else Name(int(found[1]), int(found[2]))


def _made(path: Path) -> bool:
    """Whether this has made the file, which was not there."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    return True


def _made_folder(path: Path) -> bool:
    """Whether this has made the folder, which was not there."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def flush(folder: str) -> None:
    """Flush everything below a folder to disk. What goes meanwhile is of a process that is not through."""
    for path, _, names in os.walk(folder):
        for file in (f"{path}/{name}" for name in names):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.lstat(file).st_mode):
                    _flush_file(file)
        with contextlib.suppress(FileNotFoundError):
            sync_folder(path)


def _flush_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(folder: str) -> int:
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(f"{path}/{name}").st_size
    return size
