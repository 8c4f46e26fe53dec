"""``upshift.current.checkpoint``: a folder that a step keeps between its attempts.

The step's own process does all of it; the supervisor is only told. Where the folders are, and when one is
complete: :mod:`upshift.runtime.storage.checkpoints`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from upshift.errors import StoreUnavailable, UsageError
from upshift.model.settings.sizes import format_size
from upshift.model.spec import Checkpoints, Rank, TaskId
from upshift.model.spec.task import DEBUGGED
from upshift.runtime import marks
from upshift.runtime.messages import channel, tell
from upshift.runtime.step.stopping import stopping
from upshift.runtime.storage.checkpoints import Checkpoint, Name, Part, TaskCheckpoints
from upshift.runtime.storage.home_folders import new_folder, remove

if TYPE_CHECKING:
    from upshift.model.spec import TaskSpec
    from upshift.runtime.storage.store import Store

__all__ = ["CurrentCheckpoint", "checkpoint"]

FULL = 16 << 20
"""Bytes: a disk with less than that is full."""
PATIENCE = 30.0
"""Seconds that others may be late with their part of the first checkpoint, before that is said."""


class CurrentCheckpoint:
    """The checkpoints of the running step; ``upshift.current.checkpoint``."""

    def __init__(self) -> None:
        self._saved: TaskCheckpoints | None = None
        self._offered: tuple[TaskCheckpoints, ...] = ()
        self._task = ""
        self._key: str | None = None
        self._attempt = 1
        self._rank = Rank()
        self._pid = os.getpid()
        self._temporary = False
        self._forget()

    def _forget(self) -> None:
        self._count = 0
        self._alone: bool | None = None
        self._told = False
        self._patient_until = 0.0
        self._saving = threading.Lock()

    def open(
        self,
        # spec, store: the task, and where its checkpoints are
        spec: TaskSpec,
        store: Store,
        *,
        rank: Rank | None = None,  # which of several processes this one is
        into: Store | None = None,  # where new ones go instead, because a person steps through the task
    ) -> None:
        """Start working for a task."""
        kept = checkpoints_of(store, spec.task, ranks=1 if rank is None else rank.local_world_size)
        self._saved = kept if into is None else TaskCheckpoints(into.address, spec.task)
        self._offered = (kept,) if into is None else (self._saved, kept)
        self._task, self._key, self._attempt = str(spec.task), spec.key, spec.attempt
        if into is not None and spec.key is not None:
            self._key = spec.key.replace(DEBUGGED, "")
        self._rank = rank or Rank()
        self._pid = os.getpid()
        self._temporary = False
        self._forget()

    def close(self) -> None:
        """This process works for no task any more. What it saved without one is gone."""
        if self._saved is not None and self._temporary and os.getpid() == self._pid:
            remove(self._saved.store)
        self._saved, self._offered = None, ()
        self._forget()

    @property
    def latest(self) -> Path | None:
        """The folder of the newest complete checkpoint of this task; None: there is none.

        It is what an earlier attempt of this run has saved last, until this attempt saves one itself. One
        that was saved with other code, inputs or settings is not offered. It goes when the next one is
        complete, and nothing may be written to it.

        Raises
        ------
        UsageError
            Asked by a process that the step has started.
        StoreUnavailable
            The store cannot be read.
        """
        self._look()
        for place in self._offered:
            found = place.newest(self._key)
            if found is not None:
                self._resumed(found)
                return found.folder
        self._unusable(self._offered[-1])
        return None

    @contextlib.contextmanager
    def save(self, *, alone: bool = False) -> Iterator[Path]:
        """Save a checkpoint: ``with current.checkpoint.save() as folder:``.

        The folder is empty, and for the block to fill. When the block ends, what is in it is flushed to
        disk, and it becomes :attr:`latest` at one moment; older ones go. When the block raises, or its
        process is killed, nothing has changed. SIGTERM waits for the end of the block.

        Where several processes make one step, each of them saves, into the same folder, as often as the
        others; the checkpoint is complete when the last one is through, and none waits for another.

        Parameters
        ----------
        alone
            Whether this process saves for all, and the others do not.

        Yields
        ------
        pathlib.Path
            The folder.

        Raises
        ------
        UsageError
            Nothing was written to the folder, a checkpoint is being saved already, or this is a process
            that the step has started.
        StoreUnavailable
            The store cannot be written.
        """
        place = self._look()
        if not self._saving.acquire(blocking=False):
            raise UsageError(
                "a checkpoint of this step is being saved already", fix="Save one after the other."
            )
        try:
            with stopping.held_back():
                name, alone = self._next(place, alone)
                try:
                    folder = place.begin(name, alone=alone)
                except FileExistsError:
                    raise UsageError(
                        f"rank {self._rank.rank} saves checkpoint {name}{' alone' if alone else ''}, "
                        f"and so does another rank{'' if alone else ', alone'}",
                        fix="Let one rank save with alone=True, or all of them without it.",
                    ) from None
                try:
                    yield folder
                except BaseException as error:
                    if isinstance(error, FileNotFoundError) and not folder.exists():
                        raise _given_up(name, place) from error
                    self._lost(place, name, folder, alone=alone)
                    raise
                self._finish(place, name, alone=alone)
        finally:
            self._saving.release()

    # Where, and which

    def _look(self) -> TaskCheckpoints:
        """Where checkpoints are saved: of a process without a task, in a folder that goes with it."""
        own = os.getpid() == self._pid
        if self._saved is not None and (own or not self._temporary):
            if not own:
                raise _not_the_steps_own()
            return self._saved
        if marks.VARIABLE in os.environ:
            raise _not_the_steps_own()
        self._saved = TaskCheckpoints(new_folder(), TaskId(run="none", step="none"))
        self._offered = (self._saved,)
        self._key, self._attempt, self._rank, self._pid = None, 1, Rank(), os.getpid()
        self._temporary = True
        self._forget()
        return self._saved

    def _next(self, place: TaskCheckpoints, alone: bool) -> tuple[Name, bool]:
        """The name of the next one, to which other ranks come, too; and whether one process makes it."""
        if self._rank.world_size == 1:
            alone = True
        if self._alone not in (None, alone):
            raise UsageError(
                f"rank {self._rank.rank} saves a checkpoint {'alone' if alone else 'with the others'}, and "
                f"saved the last one {'with the others' if alone else 'alone'}",
                fix="Pass the same values on every call and in every process.",
            )
        self._alone = alone
        self._count += 1
        if self._count == 1:
            self._patient_until = time.monotonic() + PATIENCE
        elif not alone and time.monotonic() >= self._patient_until:
            self._patient_until = math.inf
            self._miss_others(place)
        return Name(self._attempt, self._count), alone

    # What becomes of it

    def _finish(self, place: TaskCheckpoints, name: Name, *, alone: bool) -> None:
        rank = self._rank
        part = Part(ranks=1 if alone else rank.world_size, world_size=rank.world_size, key=self._key)
        try:
            size = place.finish(name, rank.rank, part)
        except FileNotFoundError as error:
            raise UsageError(
                f"checkpoint {name} is empty: nothing was written to {error}",
                fix="Write to the folder that current.checkpoint.save() gives, within its block.",
            ) from None
        if size is not None:
            self._say(Checkpoints(saved=1, newest=str(name), bytes=size))

    def _lost(self, place: TaskCheckpoints, name: Name, folder: Path, *, alone: bool) -> None:
        """The block has raised. Where the disk is full that is said: the error may say anything."""
        free = FULL
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
        if alone or free < FULL:  # what other ranks write to it will not be complete, and is in the way
            place.drop(name)
        if free < FULL:  # said once there is room for what is said, too
            why = f"the disk of {place.folder} is full ({format_size(free)} were free)"
            tell([f"checkpoint {name} is not saved: {why}; the one before it stays"])

    def _resumed(self, found: Checkpoint) -> None:
        if self._told or found.name.attempt >= self._attempt:
            return
        self._told = True
        part, rank = found.part, self._rank
        self._say(Checkpoints(resumed_from=str(found.name)))
        if rank.rank:
            return
        others = (
            f"; it was saved by {part.world_size} processes, and now there are {rank.world_size}"
            if part.world_size != rank.world_size
            else ""
        )
        tell([f"{self._task} continues from checkpoint {found.name}{others}"])

    def _unusable(self, place: TaskCheckpoints) -> None:
        found = None if self._told or self._rank.rank else place.unusable(self._key)
        self._told = True
        if found is None or found.name.attempt >= self._attempt:
            return
        if found.complete:
            why = "is of other code, inputs or settings, and is not used"
        elif found.missing:
            ranks = ", ".join(map(str, found.missing))
            why = f"is not complete: rank{'s' * (len(found.missing) > 1)} {ranks} did not save to the end"
        else:
            why = "was not saved to the end"
        tell([f"checkpoint {found.name} {why}; {self._task} begins from the start"])

    def _miss_others(self, place: TaskCheckpoints) -> None:
        """Where one rank saves and the others never do, nothing will ever be complete."""
        first = Name(self._attempt, 1)
        missing = next((one.missing for one in place.begun() if one.name == first), [])
        if missing:
            ranks = ", ".join(map(str, missing))
            which = f"rank{'s' * (len(missing) > 1)} {ranks}"
            rule = "every rank has to, or one with save(alone=True)"
            tell([f"checkpoint {first} is not complete, since {which} did not save: {rule}"])

    def _say(self, news: Checkpoints) -> None:
        with contextlib.suppress(OSError):  # the supervisor has died, and soon so does this process
            channel.tell(news)


def _given_up(name: Name, place: TaskCheckpoints) -> StoreUnavailable:
    return StoreUnavailable(
        f"checkpoint {name} cannot be saved: its folder has gone",
        where=str(place.folder),
        why="Another rank found the disk full and gave it up, or it was removed by hand.",
        fix="Free some space, or choose another store.",
    )


def _not_the_steps_own() -> UsageError:
    return UsageError(
        "upshift.current.checkpoint was used in a process that the step has started",
        why="Checkpoints belong to the step's own process, which may be one of several ranks.",
        fix="Save and load in the step itself; give other processes the folder.",
    )


checkpoint = CurrentCheckpoint()
"""Those of this process."""


def checkpoints_of(store: Store, task: TaskId, *, ranks: int = 1) -> TaskCheckpoints:
    """The checkpoints of a task, of which so many ranks are on this node."""
    if store.direct and store.replica is not None:
        from upshift.runtime.storage.bucket_checkpoints import (
            BucketCheckpoints,  # what most steps do not need
        )

        return BucketCheckpoints(store.address, task, store.replica, ranks)
    return TaskCheckpoints(store.address, task)
