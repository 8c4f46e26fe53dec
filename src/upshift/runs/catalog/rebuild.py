"""What the catalog lacks: rebuilt from what the stores hold, or kept back until it can be written.

The store decides what is done, and the catalog is only its index.

It is rebuilt by ``upshift gc --rebuild-catalog``, and where there is none. A run is found by its record
``run.json``, the JSON form of a :class:`~upshift.runs.catalog.rows.RunRow`; its attempts by their results.
The rest is in the record ``tasks.json``, an :class:`Ending`, which is written when the run ends: how each
task stands, also one that was skipped or whose result is that of another run; and attempts that left no
result. Of an interrupted run these are not found again until somebody resumes it.

The catalog is mended in its place, a few runs at a time, so that engines can go on writing to it, and
whoever is killed may begin again. Only one that cannot be read is put aside first.

A run goes on without a catalog that is locked, damaged or away, or whose disk is full: a :class:`Backlog`
writes as soon as it can what the catalog lacks, and until then its engine reads it from there. A note beside
the catalog names the run, so that whoever opens the catalog after this engine brings the run in from the
store. What cannot be read any more is taken from the store and from what this engine
has written.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from upshift.errors import NotFound, StoreError
from upshift.model.spec.codec import from_json, to_json
from upshift.model.spec.task import TaskId, TaskResult
from upshift.runs.catalog.catalog import FOUND_AT_MOST, Catalog, notes_of_lacking
from upshift.runs.catalog.database import Damaged, Locked
from upshift.runs.catalog.rows import UNFINISHED, AttemptRow, RunRow, TaskRow, attempt_of
from upshift.runs.catalog.version_rows import recorded_versions
from upshift.runs.lease import held, here
from upshift.runs.needed import Claimed
from upshift.runtime.storage.records import REMOVED
from upshift.runtime.storage.store import Store

ENDING = "tasks.json"
"""The record with an :class:`Ending`."""
PATIENCE = 5.0
"""Seconds that a run waits for the catalog before it goes on without."""
FINALLY = 30.0
"""Seconds that it waits at its end."""
_BATCH = 5_000
"""Rows in one transaction."""

_T = TypeVar("_T")
Rows = tuple[str, RunRow | None, list[TaskRow], list[AttemptRow]]
"""A run's id, its own row (None: it was removed, and others have its results), its tasks and attempts."""


@attrs.frozen(kw_only=True)
class Rebuilt:
    """What :func:`rebuild` did."""

    runs: int  # how many runs the catalog has now
    dropped: int = 0  # how many it had that are in none of the stores
    interrupted: tuple[str, ...] = ()  # runs without a record of their end, that the catalog did not know
    # runs whose records cannot be read, each with the reason
    damaged: Mapping[str, str] = attrs.field(factory=dict)
    kept: tuple[str, ...] = ()  # those of them that the catalog had, and has as they were


def rebuild(
    catalog: Catalog,
    stores: Collection[Store],
    tell: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Rebuilt:
    """Make a catalog hold the runs that the stores hold.

    Parameters
    ----------
    catalog
        The catalog. What it has of runs that go on, or were interrupted, stays: it knows more than the store.
    stores
        Where to look.
    tell
        Told how far the work is.

    Raises
    ------
    StoreError
        A newer Upshift wrote a record.
    StoreUnavailable
        A store cannot be read, or the catalog not be written.
    """
    known = {row.id: row for row in catalog.runs()}
    found: set[str] = set()
    interrupted: list[str] = []
    damaged: dict[str, str] = {}
    for store in stores:
        runs = list(store.runs())
        if store.replica is not None:
            store.replica.bring_runs(runs)
        claimed = Claimed(store.address)
        claimed.look()
        batch: list[Rows] = []
        for number, run in enumerate(runs):
            tell("reading the records of runs", number, len(runs))
            found.add(run)
            old = known.get(run)
            if run in claimed.runs or (old is not None and not _is_over(old, store)):
                continue
            try:
                rows = rows_of(run, store)
            except ValueError as error:
                damaged[run] = str(error)
                continue
            if rows is None:
                continue
            if rows[1] is not None and rows[1].status in UNFINISHED:
                interrupted.append(run)
            batch.append(rows)
            if sum(len(tasks) + len(attempts) + 1 for _, _, tasks, attempts in batch) > _BATCH:
                replace(batch, catalog, claimed)
                batch = []
        replace(batch, catalog, claimed)
        catalog.versions.put(row for run in runs for row in recorded_versions(run, store))
    addresses = {store.address for store in stores}
    gone = [
        run for run, row in known.items() if row.store in addresses and run not in found and _is_seen(row)
    ]
    catalog.forget_runs(gone)
    return Rebuilt(
        runs=catalog.count(),
        dropped=len(gone),
        interrupted=tuple(interrupted),
        damaged=damaged,
        kept=tuple(run for run in damaged if run in known),
    )


def replace(batch: list[Rows], catalog: Catalog, claimed: Claimed) -> None:
    """Replace runs in the catalog, but for those that an engine works on by now."""
    claimed.look()  # somebody may have resumed one since its records were read
    catalog.replace_runs(rows for rows in batch if rows[0] not in claimed.runs)


def _is_seen(row: RunRow) -> bool:
    """Whether the store of a run is the one that its address means here: on another machine it may not be."""
    engine = row.source.get("engine")
    return "://" in row.store or not isinstance(engine, Mapping) or engine.get("host") == here()["host"]


def _is_over(row: RunRow, store: Store) -> bool:
    """Whether a run has ended: an engine records that in the store first, and may be killed then."""
    if row.status not in UNFINISHED:
        return True
    content = store.read_record(row.id, "run.json")
    try:
        ended = content is not None and from_json(RunRow, content).status not in UNFINISHED
    except ValueError:
        return False
    return ended and not held(row.id, row.store)


def rows_of(run: str, store: Store) -> Rows | None:
    """A run as its store has it; None: it has just begun. ValueError: a record cannot be read."""
    content = store.read_record(run, "run.json")
    if content is None:
        if store.read_record(run, REMOVED) is None:
            return None  # it has just begun
        return run, None, [], [attempt_of(result) for result in store.results(run)]
    row = attrs.evolve(from_json(RunRow, content), store=store.address)
    results = sorted(store.results(run), key=lambda result: result.attempt)
    ending = read_ending(run, store)
    tasks = {task.task: task for task in ending.tasks}
    if row.status in UNFINISHED or not tasks:  # it was resumed since, or the end was not written down
        tasks |= {task.task: task for task in _tasks(results)}
    attempts = {(r.task, r.attempt): attempt_of(r) for r in results if r.task in tasks}
    attempts |= {(attempt.task, attempt.number): attempt for attempt in ending.attempts}
    return run, row, list(tasks.values()), list(attempts.values())


def _tasks(results: Iterable[TaskResult]) -> Iterator[TaskRow]:
    newest: dict[TaskId, TaskResult] = {result.task: result for result in results}
    for result in newest.values():
        yield TaskRow(task=result.task, status=result.status, key=result.key)


def put_aside_if_damaged(catalog: Catalog) -> Path | None:
    """Move a catalog that cannot be read out of the way; give where it is now. None: it can be read.

    Raises
    ------
    ConfigError
        A newer Upshift has made it.
    StoreUnavailable
        It cannot be opened, which does not say that it is damaged.
    """
    try:
        catalog.check()
        return None
    except Damaged:
        return catalog.put_aside()


@attrs.frozen(kw_only=True)
class Ending:
    """How the tasks of a run stood when it ended."""

    tasks: tuple[TaskRow, ...] = ()  # all of them
    # those that left no result, or of which the backend has said more than that
    attempts: tuple[AttemptRow, ...] = ()


def record_ending(row: RunRow, catalog: Catalog, store: Store) -> None:
    """Write down a run that is over, as the catalog has it.

    Raises
    ------
    StoreUnavailable
    """
    ending = Ending(
        tasks=tuple(catalog.tasks(row.id)), attempts=tuple(catalog.attempts(row.id, without_result=True))
    )
    store.write_record(row.id, ENDING, to_json(ending))
    store.write_record(row.id, "run.json", to_json(row))


def read_ending(run: str, store: Store) -> Ending:
    """The tasks of a run when it last ended; none, if it never did."""
    content = store.read_record(run, ENDING)
    return Ending() if content is None else from_json(Ending, content)


class Backlog(Catalog):
    """A catalog that is written later where it cannot be now; ``tell`` is told, and what became of it."""

    def __init__(self, catalog: Catalog, store: Store, tell: Callable[[str], None]) -> None:
        self.addresses = catalog.addresses
        self.place, self._database, self.versions = catalog.place, catalog._database, catalog.versions
        self._database.patience = PATIENCE
        self._store = store
        self._tell = tell
        self._behind = False
        self._written = False
        self._problem: StoreError | None = None
        self._stores: dict[str, str] = {}
        # What the store does not say before the end of the run: how tasks stand, attempts without a result.
        self._standing: dict[TaskId, TaskRow] = {}
        self._without_result: dict[tuple[TaskId, int], AttemptRow] = {}
        self._runs: dict[str, RunRow] = {}
        self._gone: set[TaskId] = set()
        self._tasks: dict[TaskId, TaskRow] = {}
        self._attempts: dict[tuple[TaskId, int], AttemptRow] = {}

    def add_run(self, row: RunRow) -> None:
        """Record a run, or all of its fields anew."""
        self._runs[row.id] = row
        self._stores[row.id] = row.store
        self._write()

    def update_run(self, run: str, *, status: str, ended: float | None = None) -> None:
        """A run has another status; ``ended`` is seconds since the epoch."""
        self.add_run(attrs.evolve(self.run(run), status=status, ended=ended))

    def record(self, tasks: Iterable[TaskRow] = (), attempts: Iterable[AttemptRow] = ()) -> None:
        """Record tasks and attempts as they stand now, in one transaction."""
        for task in tasks:
            self._tasks[task.task] = self._standing[task.task] = task
        for attempt in attempts:
            which = (attempt.task, attempt.number)
            self._attempts[which] = attempt
            if attempt.result is None:
                self._without_result[which] = attempt
            else:
                self._without_result.pop(which, None)
        self._write()

    def forget(self, tasks: Iterable[TaskId]) -> None:
        """Remove tasks and their attempts."""
        gone = set(tasks)
        self._gone |= gone
        for tasks in (self._tasks, self._standing):
            for task in gone.intersection(tasks):
                del tasks[task]
        for attempts in (self._attempts, self._without_result):
            for which in [which for which in attempts if which[0] in gone]:
                del attempts[which]
        self._write()

    def settle(self) -> None:
        """The run is over: wait longer for a catalog that is behind, and say what becomes of it."""
        if isinstance(self._problem, Damaged):
            self._replace()
        elif self._behind:
            self._database.patience = FINALLY
            self._write()
        if self._behind:
            self._tell(
                f"the catalog {self.place} is damaged and lacks this run, which the store has; "
                "upshift gc --rebuild-catalog rebuilds it from there"
                if isinstance(self._problem, Damaged)
                else f"the catalog {self.place} still cannot be written and lacks the end of this run; "
                "the next command that can write it takes that from the store"
            )

    def _write(self) -> None:
        if isinstance(self._problem, Damaged):
            return
        try:
            with self._database.writing() as transaction:
                for row in self._runs.values():
                    self.put_run(transaction, row)
                self.drop(transaction, self._gone)
                self.put(transaction, self._tasks.values(), self._attempts.values())
        except StoreError as error:
            if not self._written and not isinstance(error, Locked):
                raise
            self._lack(error)
            self._database.patience = 0.0  # whoever waits holds up the run: try again with the next news
            return
        self._written = True
        self._runs, self._gone, self._tasks, self._attempts = {}, set(), {}, {}
        if self._behind:
            self._catch_up()

    def _replace(self) -> None:
        """Write the whole run into the catalog that somebody has made in place of a damaged one, if so."""
        self._database.close()
        with contextlib.suppress(StoreError, ValueError):
            self.check()
            self.replace_runs(filter(None, [rows_of(run, self._store) for run in self._stores]))
            self._problem = None
            self._catch_up()

    def _lack(self, error: StoreError) -> None:
        self._problem = error
        if self._behind:
            return
        self._behind = True
        self._note()
        if isinstance(error, Locked):
            said = f"another process keeps the catalog {self.place} locked; the run continues; the catalog "
            said += "is brought up to date afterwards"
        elif isinstance(error, Damaged):
            said = f"{error.in_short} The run continues without it"
        else:
            said = f"{error.in_short} The run continues; the catalog is written when it can be"
        self._tell(said)

    def _catch_up(self) -> None:
        self._behind = False
        self._database.patience = PATIENCE
        for run in self._stores:
            (notes_of_lacking(self.place) / run).unlink(missing_ok=True)
        self._tell(f"the catalog {self.place} is up to date again")

    def _note(self) -> None:
        with contextlib.suppress(OSError):  # the disk has no room even for that, or an earlier engine did it
            notes_of_lacking(self.place).mkdir(exist_ok=True)
            for run, store in self._stores.items():
                (notes_of_lacking(self.place) / run).symlink_to(store)

    def run(self, ref: str) -> RunRow:
        """The run that ``ref`` means."""
        return self._runs.get(ref) or self._read(super().run, lambda: self._row(ref), ref)[0]

    def runs(self, **filters: Any) -> list[RunRow]:
        """The runs for which all of what is given holds; none while the catalog cannot be read."""
        return self._read(super().runs, list[RunRow], **filters)[0]

    def tasks(self, run: str, step: str | None = None) -> list[TaskRow]:
        """The tasks of a run, or of one of its steps; those of a step in the order of their indices."""
        written, complete = self._read(super().tasks, lambda: self._recorded(run)[0], run, step)
        if complete:
            return written
        rows = {row.task: row for row in written if row.task not in self._gone}
        rows |= self._tasks
        rows = {task: row for task, row in rows.items() if _is_of(task, run, step)}
        mapped = {task.step for task in rows if task.index is not None}
        standing = [row for task, row in rows.items() if task.index is not None or task.step not in mapped]
        return sorted(standing, key=lambda row: _place(row.task))

    def attempts(
        self, run: str, step: str | None = None, *, without_result: bool = False
    ) -> list[AttemptRow]:
        """The attempts of a run, or of one of its steps; those of a task in the order of their numbers."""
        written, complete = self._read(
            super().attempts, lambda: self._recorded(run)[1], run, step, without_result=without_result
        )
        if complete:
            return written
        rows = {(row.task, row.number): row for row in written if row.task not in self._gone}
        rows |= self._attempts
        found = [
            row
            for row in rows.values()
            if _is_of(row.task, run, step) and not (without_result and row.result and not row.failure)
        ]
        return sorted(found, key=lambda row: (*_place(row.task), row.number))

    def counts(self, run: str) -> list[tuple[str, str, int, int]]:
        """For each step of a run and each status of its tasks: how many there are, and how many reused."""
        written, complete = self._read(super().counts, list[tuple[str, str, int, int]], run)
        if complete:
            return written
        rows = self.tasks(run)
        reused = Counter((row.task.step, row.status) for row in rows if row.cached)
        tasks = Counter((row.task.step, row.status) for row in rows)
        return [(*which, number, reused[which]) for which, number in tasks.items()]

    def find_results(
        self, key: str, *, store: str | None = None, limit: int = FOUND_AT_MOST
    ) -> list[tuple[TaskId, int]]:
        """Attempts that completed with this key; none while the catalog cannot be read."""
        nothing = list[tuple[TaskId, int]]
        return self._read(super().find_results, nothing, key, store=store, limit=limit)[0]

    def _read(
        self, catalog: Callable[..., _T], without: Callable[[], _T], *which: Any, **filters: Any
    ) -> tuple[_T, bool]:
        """What the catalog says, or what is known ``without`` it; and whether it says everything."""
        try:
            return catalog(*which, **filters), not self._behind
        except StoreError as error:
            if not self._written and not isinstance(error, Locked):
                raise
            if isinstance(error, Damaged):
                self._lack(error)
            return without(), False

    def _recorded(self, run: str) -> tuple[list[TaskRow], list[AttemptRow]]:
        """The tasks and attempts of a run, as its store and this engine know them."""
        _, _, tasks, attempts = rows_of(run, self._store) or (run, None, [], [])
        return [*tasks, *self._standing.values()], [*self._without_result.values(), *attempts]

    def _row(self, run: str) -> RunRow:
        row = (rows_of(run, self._store) or (run, None))[1]
        if row is None:
            raise NotFound(f"the store {self._store.address} has no run {run}")
        return row


def _is_of(task: TaskId, run: str, step: str | None) -> bool:
    return task.run == run and step in (None, task.step)


def _place(task: TaskId) -> tuple[str, int]:
    return task.step, -1 if task.index is None else task.index
