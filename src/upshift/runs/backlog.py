"""What an engine writes to the catalog, kept back while that is locked or its disk is full.

The store decides what is done, and the catalog is only its index. So a run goes on without it, and what the
catalog lacks is written as soon as it can be. Until then this engine reads it from here. A note beside the
catalog names the run, so that whoever opens the catalog after this engine brings the run in from the store.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable

import attrs

from upshift.errors import StoreError
from upshift.model.spec.task import TaskId
from upshift.runs.catalog import FOUND_AT_MOST, Catalog, notes_of_lacking
from upshift.runs.database import Locked
from upshift.runs.rows import AttemptRow, RunRow, TaskRow

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
    tell
        Told that it cannot be written, and what became of it.
    """

    def __init__(self, catalog: Catalog, tell: Callable[[str], None]) -> None:
        self.path, self._database = catalog.path, catalog._database
        self._database.patience = PATIENCE
        self._tell = tell
        self._behind = False
        self._written = False
        self._stores: dict[str, str] = {}
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
        self._tasks |= {row.task: row for row in tasks}
        self._attempts |= {(row.task, row.number): row for row in attempts}
        self._write()

    def forget(self, tasks: Iterable[TaskId]) -> None:
        """Remove tasks and their attempts."""
        gone = set(tasks)
        self._gone |= gone
        self._tasks = {task: row for task, row in self._tasks.items() if task not in gone}
        self._attempts = {which: row for which, row in self._attempts.items() if which[0] not in gone}
        self._write()

    def settle(self) -> None:
        """The run is over: wait longer for a catalog that is behind, and say what becomes of it."""
        if self._behind:
            self._database.patience = FINALLY
            self._write()
        if self._behind:
            self._tell(
                f"the catalog {self.path} still cannot be written and lacks the end of this run; "
                "the next command that can write it takes that from the store"
            )

    def _write(self) -> None:
        try:
            with self._database.writing() as connection:
                for row in self._runs.values():
                    self.put_run(connection, row)
                self.drop(connection, self._gone)
                self.put(connection, self._tasks.values(), self._attempts.values())
        except StoreError as error:
            if not self._written and not isinstance(error, Locked):
                raise
            if not self._behind:
                self._behind = True
                self._note()
                self._tell(
                    f"another process keeps the catalog {self.path} locked; the run goes on, and the catalog "
                    "is brought up to date afterwards"
                    if isinstance(error, Locked)
                    else f"{error.in_short} The run goes on; the catalog is written when it can be"
                )
            self._database.patience = 0.0  # whoever waits holds up the run: try again with the next news
            return
        self._written = True
        self._runs, self._gone, self._tasks, self._attempts = {}, set(), {}, {}
        if self._behind:
            self._behind = False
            self._database.patience = PATIENCE
            for run in self._stores:
                (notes_of_lacking(self.path) / run).unlink(missing_ok=True)
            self._tell(f"the catalog {self.path} is up to date again")

    def _note(self) -> None:
        with contextlib.suppress(OSError):  # the disk has no room even for that, or an earlier engine did it
            notes_of_lacking(self.path).mkdir(exist_ok=True)
            for run, store in self._stores.items():
                (notes_of_lacking(self.path) / run).symlink_to(store)

    def run(self, ref: str) -> RunRow:
        """The run that ``ref`` means."""
        return self._runs.get(ref) or super().run(ref)

    def tasks(self, run: str, step: str | None = None) -> list[TaskRow]:
        """The tasks of a run, or of one of its steps; those of a step in the order of their indices."""
        written = super().tasks(run, step)
        if not self._behind:
            return written
        rows = {row.task: row for row in written if row.task not in self._gone}
        rows |= {task: row for task, row in self._tasks.items() if _is_of(task, run, step)}
        mapped = {task.step for task in rows if task.index is not None}
        standing = [row for task, row in rows.items() if task.index is not None or task.step not in mapped]
        return sorted(standing, key=lambda row: _place(row.task))

    def attempts(
        self, run: str, step: str | None = None, *, without_result: bool = False
    ) -> list[AttemptRow]:
        """The attempts of a run, or of one of its steps; those of a task in the order of their numbers."""
        written = super().attempts(run, step, without_result=without_result)
        if not self._behind:
            return written
        rows = {(row.task, row.number): row for row in written if row.task not in self._gone}
        rows |= {which: row for which, row in self._attempts.items() if _is_of(which[0], run, step)}
        found = [row for row in rows.values() if row.result is None or not without_result]
        return sorted(found, key=lambda row: (*_place(row.task), row.number))

    def counts(self, run: str) -> list[tuple[str, str, int, int]]:
        """For each step of a run and each status of its tasks: how many there are, and how many reused."""
        if not self._behind:
            return super().counts(run)
        rows = self.tasks(run)
        reused = Counter((row.task.step, row.status) for row in rows if row.cached)
        tasks = Counter((row.task.step, row.status) for row in rows)
        return [(*which, number, reused[which]) for which, number in tasks.items()]

    def find_results(
        self, key: str, *, store: str | None = None, limit: int = FOUND_AT_MOST
    ) -> list[tuple[TaskId, int]]:
        """Attempts that completed with this key; none while the catalog cannot even be read."""
        try:
            return super().find_results(key, store=store, limit=limit)
        except Locked:
            return []


def _is_of(task: TaskId, run: str, step: str | None) -> bool:
    return task.run == run and step in (None, task.step)


def _place(task: TaskId) -> tuple[str, int]:
    return task.step, -1 if task.index is None else task.index
