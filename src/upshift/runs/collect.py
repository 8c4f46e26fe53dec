"""Removing from one store what no kept run refers to: the work of ``upshift gc``.

::

    1  runs that are to go: run.json becomes removed.json          from here on the run is gone
    2  read all records of all other runs                          what they refer to is kept
    3  removed runs: their rows in the catalog, then their files   but not the tasks whose results others have
    4  checkpoints of tasks that completed, blobs that nobody refers to, temporary files that nobody writes

Killed at any point, the next ``gc`` goes on: what is half removed is named ``removed.json``. Live runs
are never touched, nor is anything that a running process has claimed
(:mod:`upshift.runtime.storage.claims`).
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import attrs

from upshift.errors import NotSerializable, StoreError
from upshift.model.spec.task import TaskId
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.needed import Claimed, References, files_of
from upshift.runtime.storage import checkpoints, home_folders
from upshift.runtime.storage.files import available, discard, stale
from upshift.runtime.storage.records import REMOVED, safe, task_path
from upshift.runtime.storage.store import Store

ABANDONED = 3600.0
"""Seconds without a write, after which a temporary file belongs to nobody."""
_BATCH = 500
"""Files that are removed while nobody can claim anything."""

Tell = Callable[[str, int, int | None], None]
"""Takes what is being done, how much of it is done, and of how much (None: nobody knows)."""


@attrs.define
class Tally:
    """How many things of each kind there are, and their bytes."""

    counts: Counter[str] = attrs.field(factory=Counter)
    bytes: Counter[str] = attrs.field(factory=Counter)

    def add(self, kind: str, size: int, number: int = 1) -> None:
        """Count something."""
        self.counts[kind] += number
        self.bytes[kind] += size

    def by_kind(self) -> dict[str, tuple[int, int]]:
        """How many and how many bytes, by kind."""
        return {kind: (number, self.bytes[kind]) for kind, number in self.counts.items() if number}

    def __iadd__(self, other: Tally) -> Tally:
        self.counts.update(other.counts)
        self.bytes.update(other.bytes)
        return self


@attrs.define(kw_only=True)
class Collected:
    """What a ``gc`` did, or would do."""

    # by kind: ``runs``, ``results`` (of removed runs, which other runs reuse), ``values`` (blobs: values,
    # code packages and runtimes), ``checkpoints`` (folders), ``temporary``
    removed: Tally = attrs.field(factory=Tally)
    kept: Tally = attrs.field(factory=Tally)
    live: set[str] = attrs.field(factory=set)  # runs that were to go, and stay because somebody works on them
    # in buckets: what the first ``gc`` removes after the end of these runs, which are at work
    later: Tally = attrs.field(factory=Tally)
    waiting: set[str] = attrs.field(factory=set)
    wanted: set[bytes] = attrs.field(factory=set, repr=False)  # digests of the content that is kept

    def __iadd__(self, other: Collected) -> Collected:
        self.removed += other.removed
        self.kept += other.kept
        self.live |= other.live
        self.later += other.later
        self.waiting |= other.waiting
        self.wanted |= other.wanted
        return self


def collect(
    store: Store,
    catalog: Catalog | None,
    *,
    forget: Collection[str] = (),
    dry_run: bool = False,
    tell: Tell = lambda what, done, of: None,
) -> Collected:
    """Remove runs, and then what no run that is kept refers to.

    Parameters
    ----------
    store
        The store; there is one.
    catalog
        Knows of runs that were killed what they reuse; loses the rows of removed runs. None: there is none.
    forget
        Ids of the runs that are to go.
    dry_run
        Whether to change nothing.
    tell
        Told how far the work is.

    Raises
    ------
    UsageError
        Another ``gc`` works on the store.
    StoreError
        It cannot be known what is referred to; nothing but runs was removed.
    StoreUnavailable
        The store cannot be read or written.
    """
    with available("cleaned", store.address):
        return _Collector(store, catalog, dry_run=dry_run, tell=tell).run(forget)


class _Collector:
    def __init__(self, store: Store, catalog: Catalog | None, *, dry_run: bool, tell: Tell) -> None:
        self._root = store.address
        self._runs = f"{self._root}/runs"
        self._catalog = catalog
        self._dry = dry_run
        self._tell = tell
        self._claimed = Claimed(self._root)
        self._references = References(store)
        self._asked: Collection[str] = ()
        self._gone: set[str] = set()
        self._seen: set[str] = set()
        self._done = Collected()

    def run(self, forget: Collection[str]) -> Collected:
        with self._working():
            self._asked = self._forget(forget)
            self._gone = set(self._asked)
            self._read(self._sort())
            self._clear()
            self._sweep_checkpoints()
            self._sweep_blobs()
            self._sweep_temporary()
        self._done.wanted = self._references.blobs | self._claimed.blobs
        return self._done

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        if self._dry:
            self._claimed.look()
            yield
            return
        with self._claimed.working():
            yield

    @contextlib.contextmanager
    def _deciding(self) -> Iterator[None]:
        """Within, nobody claims anything; what was claimed, and what that refers to, is known."""
        if self._dry:
            self._follow_claims()
            yield
            return
        with self._claimed.deciding():
            self._follow_claims()
            yield

    def _follow_claims(self) -> None:
        """What somebody is about to reuse of a run that is removed stays, and what that refers to."""
        indices: dict[str, set[str]] = {}
        for task in self._claimed.tasks - self._seen:
            if task.partition("/")[0] in self._gone:
                self._seen.add(task)
                folder, _, index = task.rpartition("/")
                indices.setdefault(folder, set()).add(index)
        for folder, wanted in indices.items():
            for path in files_of(f"{self._runs}/{folder}"):
                if os.path.basename(path).partition(".")[0] in wanted:
                    refer(self._references, path)

    # 1: runs that are to go

    def _forget(self, runs: Collection[str]) -> set[str]:
        forgotten: set[str] = set()
        waiting = sorted(runs)
        while waiting:
            batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
            with self._deciding():
                for run in batch:
                    if run in self._claimed.runs:
                        self._done.live.add(run)
                        continue
                    forgotten.add(run)
                    if not self._dry:
                        with contextlib.suppress(FileNotFoundError):
                            os.rename(f"{self._runs}/{run}/run.json", f"{self._runs}/{run}/{REMOVED}")
        return forgotten

    def _sort(self) -> list[str]:
        """The runs that stay. Beside those that are to go, some were half removed before."""
        kept = []
        with self._deciding():
            for name in _names(self._runs):
                if name in self._gone:
                    continue
                if name in self._claimed.runs or self._is_recorded(name):
                    kept.append(name)
                else:
                    self._gone.add(name)
        return kept

    def _is_recorded(self, run: str) -> bool:
        if os.path.exists(f"{self._runs}/{run}/run.json"):
            return True
        if os.path.exists(f"{self._runs}/{run}/{REMOVED}"):
            return False
        return self._catalog is not None and self._catalog.knows(run)

    # 2: what is referred to

    def _read(self, kept: list[str]) -> None:
        if self._catalog is not None and self._gone:
            origins = self._catalog.origins()
            self._references.tasks.update(task for run, task in origins if run not in self._gone)
        for number, run in enumerate(kept):
            self._tell("reading the records of runs", number, len(kept))
            size = 0
            for path in files_of(f"{self._runs}/{run}"):
                refer(self._references, path)
                size += _size(path)
            self._done.kept.add("runs", size)

    # 3: removed runs

    def _clear(self) -> None:
        wanted = self._references.task_paths()
        gone = sorted(self._gone)
        for at in range(0, len(gone), _BATCH):
            batch = gone[at : at + _BATCH]
            if self._catalog is not None and not self._dry:
                with self._deciding():
                    kept = self._references.tasks | set(self._claimed_tasks(batch, self._catalog))
                    self._catalog.forget_runs(batch, keep=kept)
            for number, run in enumerate(batch, at):
                self._tell("looking at runs" if self._dry else "removing runs", number, len(gone))
                self._clear_run(run, wanted)

    def _claimed_tasks(self, runs: Iterable[str], catalog: Catalog) -> Iterator[TaskId]:
        """Tasks of these runs whose results somebody is about to reuse."""
        claimed = {task.partition("/")[0] for task in self._claimed.tasks}
        for run in runs:
            if safe(run) in claimed:
                for attempt in catalog.attempts(run):
                    if task_path(attempt.task) in self._claimed.tasks:
                        yield attempt.task

    def _clear_run(self, run: str, wanted: set[str]) -> None:
        folder = f"{self._runs}/{run}"
        marker = f"{folder}/{REMOVED}"
        if self._dry and not os.path.exists(marker):
            marker = f"{folder}/run.json"
        size = 0
        left: set[str] = set()
        went: set[str] = set()
        files = sorted(files_of(folder))
        for at in range(0, len(files), _BATCH):
            with self._deciding():
                for path in files[at : at + _BATCH]:
                    task = _task_of(path[len(self._runs) + 1 :])
                    if task is not None and (task in wanted or task in self._claimed.tasks):
                        left.add(task)
                        refer(self._references, path)
                        self._done.kept.add("results", _size(path), 0)
                    elif path != marker:
                        size += self._remove(path)
                        went.add(task or run)
        self._done.kept.add("results", 0, len(left))
        if not left:
            size += self._remove(marker)
            self._remove_folders(folder)
        if run in went or run in self._asked:
            self._done.removed.add("runs", size)
        elif went:
            self._done.removed.add("results", size, len(went))

    def _remove_folders(self, folder: str) -> None:
        if self._dry:
            return
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):  # somebody has just put something there
                os.rmdir(path)

    # 4: content, what is left of writing it, and checkpoints that nobody will ask for

    def _sweep_checkpoints(self) -> None:
        aside = []
        for run in checkpoints.runs_with_any(self._root):
            with self._deciding():
                if run in self._claimed.runs:
                    continue
                gone = run in self._gone or not self._is_recorded(run)
                for folder in list(checkpoints.left_over(self._root, run, gone=gone)):
                    self._done.removed.add("checkpoints", sum(map(_size, files_of(folder))))
                    if not self._dry:
                        aside.append(checkpoints.put_aside(self._root, folder))
        for left in filter(None, aside):
            home_folders.remove(left)

    def _sweep_blobs(self) -> None:
        shards = [
            entry.path
            for kind in _folders(f"{self._root}/blobs")
            for entry in _folders(kind.path)
            if len(entry.name) == 2
        ]
        for number, shard in enumerate(shards):
            self._tell("looking for content that nobody refers to", number, len(shards))
            unknown = []
            with os.scandir(shard) as entries:
                for entry in entries:
                    digest = _digest(os.path.basename(shard) + entry.name)
                    if digest is None:
                        continue
                    if digest in self._references.blobs:
                        self._done.kept.add("values", _size(entry.path))
                    else:
                        unknown.append((digest, entry.path))
            for at in range(0, len(unknown), _BATCH):
                with self._deciding():
                    for digest, path in unknown[at : at + _BATCH]:
                        if digest in self._references.blobs or digest in self._claimed.blobs:
                            self._done.kept.add("values", _size(path))
                        else:
                            self._done.removed.add("values", self._remove(path))

    def _sweep_temporary(self) -> None:
        for path, size in stale(f"{self._root}/tmp", ABANDONED):
            self._done.removed.add("temporary", size)
            if not self._dry:
                home_folders.remove(path) if os.path.isdir(path) else discard(path)

    def _remove(self, path: str) -> int:
        """Remove a file; give its size."""
        size = _size(path)
        if not self._dry:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return size


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _task_of(path: str) -> str | None:
    """The task that a file is about, by its path below the folder of all runs; None: it is about the run."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}" if folder.count("/") == 2 else None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _folders(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _digest(name: str) -> bytes | None:
    try:
        return bytes.fromhex(name) if len(name) == 64 else None
    except ValueError:  # nothing that Upshift has put there
        return None


def refer(references: References, path: str) -> None:
    """Have kept what a record refers to.

    Raises
    ------
    StoreError
        That cannot be known, so nothing may be removed.
    """
    try:
        references.add_file(path)
    except NotSerializable as error:
        raise StoreError(
            f"gc cannot know what {path} refers to, and removes no content",
            why=error.what,
            fix=error.fix,
        ) from error
