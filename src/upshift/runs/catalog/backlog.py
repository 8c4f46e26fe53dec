"""What an engine writes to the catalog, kept back while that is locked, damaged or away, or its disk is full.

The store decides what is done, and the catalog is only its index. So a run goes on without it, and what the
catalog lacks is written as soon as it can be. Until then this engine reads it from here. A note beside the
catalog names the run, so that whoever opens the catalog after this engine brings the run in from the store.
What cannot be read any more is taken from the store and from what this engine has written.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

from upshift.errors import NotFound, StoreError
from upshift.model.spec.task import TaskId
from upshift.runs.catalog.catalog import FOUND_AT_MOST, Catalog, notes_of_lacking
from upshift.runs.catalog.database import Damaged, Locked
from upshift.runs.catalog.rebuild import rows_of
from upshift.runs.catalog.rows import AttemptRow, RunRow, TaskRow
from upshift.runtime.storage.store import Store

_T = TypeVar("_T")

PATIENCE = 5.0
"""Seconds that a run waits for the catalog before it goes on without."""
FINALLY = 30.0
"""Seconds that it waits at its end."""


class Backlog(Catalog):
    """A catalog that is written later where it cannot be written now.

    Parameters
    ----------
    catalog
        The catalog.
    store
        Of the run.
    tell
        Told that it cannot be written, and what became of it.
    """

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
