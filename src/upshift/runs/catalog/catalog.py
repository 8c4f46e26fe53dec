"""The catalog: the queryable index of runs, tasks and attempts.

The store decides what is done; the catalog only makes it quick to find, and
:mod:`upshift.runs.catalog.rebuild` makes it anew from the store. SQLite by default, in ``UPSHIFT_HOME``; or
PostgreSQL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from upshift.errors import ConfigError, MissingExtra, NotFound, suggestion
from upshift.model.checks import MOST_RUNS, local_path, number, shown, text, unfit
from upshift.model.configuration import home
from upshift.model.spec.codec import decode
from upshift.model.spec.task import TaskId
from upshift.model.spec.telemetry import MetricSummary
from upshift.runs.catalog.database import Database, Server, SqliteDatabase, Transaction, upsert
from upshift.runs.catalog.rows import (
    ATTEMPT_COLUMNS,
    MIGRATIONS,
    RUN_COLUMNS,
    TASK_COLUMNS,
    Addresses,
    AttemptRow,
    RunRow,
    TaskRow,
    attempt_row,
    attempt_values,
    json_text,
    run_rows,
    run_values,
    task_row,
    task_values,
)
from upshift.runs.catalog.version_rows import VersionRows

_AT_ONCE = 500
"""Runs that one query names."""
FOUND_AT_MOST = 50
"""Results with the same key that are worth looking at; the newest ones."""


_PUT_RUN = upsert("runs", "id", RUN_COLUMNS, fixed=1)
_PUT_TASK = upsert("tasks", "run, step, ifnull(item, -1)", TASK_COLUMNS, fixed=3)
_PUT_ATTEMPT = upsert("attempts", "run, step, ifnull(item, -1), number", ATTEMPT_COLUMNS, fixed=4)
# A mapped step that fails or is skipped before its length is known has one task without an index. It
# stands for the step only until a later engine of the run knows the items.
_STANDS = (
    "NOT (item IS NULL AND EXISTS (SELECT 1 FROM tasks AS other WHERE other.run = tasks.run "
    "AND other.step = tasks.step AND other.item IS NOT NULL))"
)
_ADDRESSES = 'Write catalog = "/shared/upshift/catalog.db", or catalog = "postgresql://USER@HOST/DATABASE".'
_GET_TASKS = f"SELECT {', '.join(TASK_COLUMNS)} FROM tasks"
_GET_ATTEMPTS = f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM attempts"
_GET_RUNS = f"SELECT {', '.join(RUN_COLUMNS)} FROM runs"


def catalog_place(address: str | None) -> Path | Server:
    """The file or the database behind the address of a catalog; None: the file in ``UPSHIFT_HOME``.

    Raises
    ------
    ConfigError
        The address is not one of a SQLite file, nor of a PostgreSQL database.
    """
    if address is None:
        return home() / "catalog.db"
    scheme, separator, rest = address.partition("://")
    try:
        if not separator or (scheme == "sqlite" and rest.strip("/")):
            return local_path((rest.removeprefix("/") if rest.startswith("//") else rest) or address)
        if scheme in ("postgresql", "postgres"):
            return Server(address)
    except ValueError as error:
        named = "postgresql://…:" if scheme.startswith("postgres") else shown(address)
        raise ConfigError(f"catalog = {named} {error}", fix=_ADDRESSES) from None
    raise ConfigError(f"catalog = {shown(address)}: only SQLite and PostgreSQL work", fix=_ADDRESSES)


def notes_of_lacking(place: Path | Server) -> Path:
    """The folder with a note for each run that a catalog lacks: a link of its name to its store.

    A link needs no room on a disk that is full. The notes of a database are in this user's home.
    """
    if isinstance(place, Path):
        return place.with_name(f"{place.name}-behind")
    return home() / f"catalog-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}-behind"


def _database(place: Path | Server | Database, *, flush: bool, **options: Any) -> Database:
    if isinstance(place, Database):
        return place
    if isinstance(place, Path):
        return SqliteDatabase(place, MIGRATIONS, flush=flush, **options)
    try:
        from upshift.runs.catalog.postgres import PostgresDatabase
    except ImportError as error:
        raise MissingExtra(
            f"the catalog {place} needs psycopg, which cannot be imported",
            why=str(error),
            fix='Install it: pip install "upshift[postgres]"',
        ) from None
    return PostgresDatabase(place, MIGRATIONS, **options)


class Catalog:
    """Runs, tasks and attempts. Several engines may write it at once; see :class:`Database`.

    Every method raises what :class:`~upshift.runs.catalog.database.Database` raises, too.
    """

    def __init__(
        self,
        place: Path | Server | Database,
        *,
        # whether what is recorded in a file survives a power failure at once. A server has its own settings
        flush: bool = False,
        # writes into a new catalog, before anybody sees it, what it should hold
        fill: Callable[[Catalog], None] | None = None,
        # given the catalog once, when it is open for the first time
        opened: Callable[[Catalog], None] | None = None,
    ) -> None:
        def fill_database(new: Database) -> None:
            if fill is not None:
                fill(Catalog(new))

        self._database = _database(
            place, flush=flush, fill=fill_database, opened=opened and partial(opened, self)
        )
        self.place = self._database.place
        self.addresses = Addresses(shared=not isinstance(self.place, Path))
        self.versions = VersionRows(self._database, self.addresses)

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Within, what cannot be written at once, because another process writes, is refused."""
        patience, self._database.patience = self._database.patience, 0.0
        try:
            yield
        finally:
            self._database.patience = patience

    def add_run(self, row: RunRow) -> None:
        """Record a run, or all of its fields anew."""
        with self._database.writing() as transaction:
            self.put_run(transaction, row)

    def update_run(self, run: str, *, status: str, ended: float | None = None) -> None:
        """A run has another status; ``ended`` is seconds since the epoch.

        Raises
        ------
        NotFound
            No run has this id.
        """
        with self._database.writing() as transaction:
            change = "UPDATE runs SET status = ?, ended = ? WHERE id = ?"
            if not transaction.execute(change, (status, ended, run)).rowcount:
                raise _no_run(run)

    def change_tags(self, run: str, remove: Collection[str], add: Collection[str]) -> RunRow:
        """A run loses these tags, and gets those; the run as it stands then."""
        with self._database.writing() as transaction:
            rows = transaction.execute("SELECT tags FROM runs WHERE id = ?", (run,)).fetchall()
            if not rows:
                raise _no_run(run)
            kept = [tag for tag in json.loads(rows[0][0]) if tag not in remove]
            tags = dict.fromkeys((*kept, *sorted(add)))
            transaction.execute("UPDATE runs SET tags = ? WHERE id = ?", (json_text(list(tags)), run))
        return self.run(run)

    def record(self, tasks: Iterable[TaskRow] = (), attempts: Iterable[AttemptRow] = ()) -> None:
        """Record tasks and attempts as they stand now, in one transaction."""
        with self._database.writing() as transaction:
            self.put(transaction, tasks, attempts)

    def forget(self, tasks: Iterable[TaskId]) -> None:
        """Remove tasks and their attempts: a list that a step is mapped over got shorter, on a resume."""
        with self._database.writing() as transaction:
            self.drop(transaction, tasks)

    def put_run(self, transaction: Transaction, row: RunRow) -> None:
        """:meth:`add_run` in a transaction."""
        if self.addresses.shared:
            row = attrs.evolve(row, store=self.addresses.there(row.store))
        transaction.execute(_PUT_RUN, run_values(row))

    @staticmethod
    def put(transaction: Transaction, tasks: Iterable[TaskRow], attempts: Iterable[AttemptRow]) -> None:
        """:meth:`record` in a transaction."""
        transaction.executemany(_PUT_TASK, map(task_values, tasks))
        transaction.executemany(_PUT_ATTEMPT, map(attempt_values, attempts))

    @staticmethod
    def drop(transaction: Transaction, tasks: Iterable[TaskId]) -> None:
        """:meth:`forget` in a transaction."""
        which = "run = ? AND step = ? AND ifnull(item, -1) = ifnull(?, -1)"
        for task in tasks:
            for table in ("tasks", "attempts"):
                transaction.execute(f"DELETE FROM {table} WHERE {which}", (task.run, task.step, task.index))

    def forget_runs(self, runs: Sequence[str], *, keep: Collection[TaskId] = ()) -> None:
        """Remove runs, all of their tasks, and the attempts of those tasks that nobody wants to ``keep``."""
        gone = set(runs)
        kept = [(task.run, task.step, task.index) for task in keep if task.run in gone]
        if not runs:
            return
        with self._database.writing() as transaction:
            transaction.execute("CREATE TEMP TABLE kept (run TEXT, step TEXT, item INTEGER)")
            transaction.executemany("INSERT INTO kept VALUES (?, ?, ifnull(?, -1))", kept)
            transaction.execute("CREATE INDEX kept_by_task ON kept (run, step, item)")
            wanted = (
                "SELECT 1 FROM kept k WHERE k.run = a.run AND k.step = a.step AND k.item = ifnull(a.item, -1)"
            )
            for run in runs:
                transaction.execute("DELETE FROM runs WHERE id = ?", (run,))
                transaction.execute("DELETE FROM tasks WHERE run = ?", (run,))
                transaction.execute(
                    f"DELETE FROM attempts AS a WHERE a.run = ? AND NOT EXISTS ({wanted})", (run,)
                )
            transaction.execute("DROP TABLE kept")

    def replace_runs(
        self, runs: Iterable[tuple[str, RunRow | None, Iterable[TaskRow], Iterable[AttemptRow]]]
    ) -> None:
        """Record runs anew, each with all of its tasks and attempts; without a row: only those."""
        with self._database.writing() as transaction:
            for run, row, tasks, attempts in runs:
                transaction.execute("DELETE FROM tasks WHERE run = ?", (run,))
                transaction.execute("DELETE FROM attempts WHERE run = ?", (run,))
                if row is None:
                    transaction.execute("DELETE FROM runs WHERE id = ?", (run,))
                else:
                    self.put_run(transaction, row)
                self.put(transaction, tasks, attempts)

    def stores(self) -> list[str]:
        """Addresses of the stores that runs name."""
        found = self._database.query("SELECT DISTINCT store FROM runs")
        return [self.addresses.here(address) for (address,) in found]

    def count(self) -> int:
        """How many runs there are."""
        return int(self._database.query("SELECT count(*) FROM runs")[0][0])

    def check(self) -> None:
        """Check the whole database for damage.

        Raises
        ------
        Damaged
            It is damaged.
        """
        self._database.check()

    def exists(self) -> bool:
        """Whether the catalog exists; it is not created."""
        return self._database.exists()

    def put_aside(self) -> Path | None:
        """Move a file that is damaged out of the way; give where it is now."""
        return self._database.put_aside() if isinstance(self._database, SqliteDatabase) else None

    def knows(self, run: str) -> bool:
        """Whether there is a run of this id."""
        return bool(self._database.query("SELECT 1 FROM runs WHERE id = ?", (run,)))

    def origins(self) -> list[tuple[str, TaskId]]:
        """Every run that has results of other runs, with each task that made one."""
        sql = (
            "SELECT DISTINCT run, json_extract(origin, '$[0]'), json_extract(origin, '$[1]'), "
            "CAST(json_extract(origin, '$[2]') AS INTEGER) FROM tasks WHERE origin IS NOT NULL"
        )
        rows = self._database.query(sql)
        return [(user, TaskId(run=run, step=step, index=item)) for user, run, step, item in rows]

    def find_results(
        self, key: str, *, store: str | None = None, limit: int = FOUND_AT_MOST
    ) -> list[tuple[TaskId, int]]:
        """Attempts that completed with this key, newest first.

        Parameters
        ----------
        key
            What the result was recorded under.
        store
            Only results of runs whose store has this address.
        limit
            Of how many; -1: of all.

        Returns
        -------
        list of (TaskId, int)
            Task and number of the attempt, to be read from the store.
        """
        sql = "SELECT a.run, a.step, a.item, a.number FROM attempts a"
        values: tuple[Any, ...] = (key,)
        if store is not None:
            # A result that outlives its run belongs to a run that reused it.
            sql += " LEFT JOIN runs r ON r.id = a.run WHERE a.key = ? AND ifnull(r.store, ?) = ?"
            store = self.addresses.there(store)
            values = (key, store, store)
        else:
            sql += " WHERE a.key = ?"
        sql += " ORDER BY a.ended DESC" + (f" LIMIT {int(limit)}" if limit >= 0 else "")
        found = self._database.query(sql, values)
        return [(TaskId(run=run, step=step, index=item), number) for run, step, item, number in found]

    def run(self, ref: str) -> RunRow:
        """The run that ``ref`` means: an id, a unique prefix of one, or ``latest``.

        Raises
        ------
        NotFound
            There is none, or there are several; those are named.
        """
        if not isinstance(ref, str) or unfit(ref):
            raise _no_run(ref)
        if ref == "latest":
            newest = self.runs(limit=1)
            if not newest:
                raise NotFound("there is no run yet", fix="Start one: upshift run FILE.")
            return newest[0]
        sql = f"{_GET_RUNS} WHERE id >= ? AND id < ? ORDER BY id = ? DESC, started DESC LIMIT 6"
        found = self._rows(self._database.query(sql, (ref, ref + "\U0010ffff", ref))) if ref else []
        if not found:
            raise _no_run(ref)
        if found[0].id != ref and len(found) > 1:
            named = ", ".join(row.id for row in found[:5]) + (", …" if len(found) > 5 else "")
            raise NotFound(
                f"{shown(ref)} is the beginning of several runs",
                why=f"They are {named}.",
                fix="Give more of the id.",
            )
        return found[0]

    def runs(
        self,
        *,
        pipeline: str | None = None,
        user: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> list[RunRow]:
        """The runs for which all of what is given holds, newest first."""
        for field, value in (("pipeline", pipeline), ("user", user), ("tag", tag)):
            text("list_runs", field, value)
        if limit is not None:
            limit = number("list_runs", "limit", limit, most=MOST_RUNS, whole=True)
        conditions = {
            "pipeline = ?": pipeline,
            "user = ?": user,
            "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)": tag,
        }
        given = {condition: value for condition, value in conditions.items() if value is not None}
        sql = _GET_RUNS + (f" WHERE {' AND '.join(given)}" if given else "")
        sql += " ORDER BY started DESC, rowid DESC" + ("" if limit is None else f" LIMIT {limit}")
        return self._rows(self._database.query(sql, tuple(given.values())))

    def ids_of(self, store: str) -> tuple[set[str], list[RunRow]]:
        """The runs in a store: the ids of all, and the rows of those that are not recorded as ended."""
        store = self.addresses.there(store)
        ids = {run for (run,) in self._database.query("SELECT id FROM runs WHERE store = ?", (store,))}
        sql = _GET_RUNS + " WHERE store = ? AND status IN ('pending', 'running')"
        return ids, self._rows(self._database.query(sql, (store,)))

    def unfinished(self) -> list[RunRow]:
        """The runs that are not recorded as ended."""
        return self._rows(self._database.query(f"{_GET_RUNS} WHERE status IN ('pending', 'running')"))

    def _rows(self, found: Sequence[tuple[Any, ...]]) -> list[RunRow]:
        rows, here = run_rows(found), self.addresses.here
        return [attrs.evolve(row, store=here(row.store)) for row in rows] if self.addresses.shared else rows

    def tasks(self, run: str, step: str | None = None) -> list[TaskRow]:
        """The tasks of a run, or of one of its steps; those of a step in the order of their indices."""
        condition, values = _of(run, step)
        sql = f"{_GET_TASKS} WHERE {condition} AND {_STANDS} ORDER BY step, ifnull(item, -1)"
        return [task_row(row) for row in self._database.query(sql, values)]

    def attempts(
        self, run: str, step: str | None = None, *, without_result: bool = False
    ) -> list[AttemptRow]:
        """The attempts of a run, or of one of its steps; those of a task in the order of their numbers.

        Parameters
        ----------
        run, step
            Which.
        without_result
            Only those that recorded nothing, or less than is known of them.
        """
        condition, values = _of(run, step)
        condition += " AND (result IS NULL OR failure IS NOT NULL)" if without_result else ""
        sql = f"{_GET_ATTEMPTS} WHERE {condition} ORDER BY step, ifnull(item, -1), number"
        return [attempt_row(row) for row in self._database.query(sql, values)]

    def measures(
        self, runs: Sequence[str]
    ) -> Iterator[tuple[str, str, int | None, Mapping[str, MetricSummary]]]:
        """What tasks logged at their last attempts, of those that ended: run, step, index, and the metrics.

        Of a task whose result was reused, what the task that made it logged.
        """
        sql = (
            "SELECT t.run, t.step, t.item, json_extract(a.result, '$.metrics') "
            "FROM tasks t JOIN attempts a ON a.run = ifnull(json_extract(t.origin, '$[0]'), t.run) "
            "AND a.step = ifnull(json_extract(t.origin, '$[1]'), t.step) AND ifnull(a.item, -1) = "
            "ifnull(CASE WHEN t.origin IS NULL THEN t.item "
            "ELSE CAST(json_extract(t.origin, '$[2]') AS INTEGER) END, -1) "
            "AND a.number = ifnull(CAST(json_extract(t.origin, '$[3]') AS INTEGER), "
            "(SELECT max(number) FROM attempts "
            "WHERE run = t.run AND step = t.step AND ifnull(item, -1) = ifnull(t.item, -1))) "
            "WHERE t.run IN ({}) AND json_extract(a.result, '$.metrics') IS NOT NULL "
            "ORDER BY t.run, t.rowid"
        )
        for start in range(0, len(runs), _AT_ONCE):
            some = tuple(runs[start : start + _AT_ONCE])
            for run, step, item, logged in self._database.query(sql.format(", ".join("?" * len(some))), some):
                summaries = {n: decode(MetricSummary, one) for n, one in json.loads(logged).items()}
                yield run, step, item, summaries

    def running(self) -> list[AttemptRow]:
        """The attempts that run, or wait for something, of all runs that are recorded as running."""
        sql = (
            f"{_GET_ATTEMPTS} WHERE (status = 'running' OR (status = 'pending' AND waits IS NOT NULL)) "
            "AND run IN (SELECT id FROM runs WHERE status = 'running') "
            "ORDER BY run, step, ifnull(item, -1), number"
        )
        return [attempt_row(row) for row in self._database.query(sql)]

    def counts(self, run: str) -> list[tuple[str, str, int, int]]:
        """For each step of a run and each status of its tasks: how many there are, and how many reused."""
        sql = (
            "SELECT step, status, count(*), sum(cached) FROM tasks "
            f"WHERE run = ? AND {_STANDS} GROUP BY step, status ORDER BY step, status"
        )
        rows = self._database.query(sql, (run,))
        return [(step, status, tasks, reused) for step, status, tasks, reused in rows]

    def close(self) -> None:
        """Let go of it. Whatever is asked next opens it again."""
        self._database.close()


def _of(run: str, step: str | None) -> tuple[str, tuple[str, ...]]:
    return ("run = ?", (run,)) if step is None else ("run = ? AND step = ?", (run, step))


def no_pipeline(name: str, catalog: Catalog) -> NotFound:
    """The error for a name that no pipeline of any run has, with the nearest one that has runs."""
    known = {row.pipeline for row in catalog.runs()}
    return NotFound(f"there is no run of a pipeline {name!r}", fix=suggestion(name, known))


def _no_run(ref: str) -> NotFound:
    return NotFound(f"no run has an id that starts with {shown(ref)}", fix="upshift runs lists the runs.")
