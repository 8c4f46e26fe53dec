"""A PostgreSQL database that the engines of a team write at once.

* Its tables are in a schema of their own, ``upshift``, so that a database may have others beside it.
* Writers queue up for each other by a lock of the database's, as those of a SQLite file do: what a
  transaction has read is still so when it writes. Readers wait for nobody.
* A connection that was lost since its last use, because the server was restarted, is made anew. What is lost
  in the middle of a transaction has not happened.
* What is recorded survives what the server's own settings let it survive.
* A new catalog is made and filled in one transaction, so that nobody sees it half made.
"""

from __future__ import annotations

import contextlib
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from upshift.errors import ConfigError, StoreUnavailable, UpshiftError
from upshift.runs.catalog.database import Database, Locked, Migrations, Server, Transaction

_T = TypeVar("_T")
_Connection = psycopg.Connection[tuple[Any, ...]]

_FILLING = 600.0
"""Seconds to wait for another process that makes a new catalog, or brings one to a newer version."""
_AGAIN = 2.0
"""Seconds after which one who must not wait tries again to reach a server that did not answer."""
_LOCK = b"SELECT pg_advisory_xact_lock(33070185432254068)"
_CONNECTING: dict[str, Any] = {
    "application_name": "upshift",
    "connect_timeout": 5,
    # A server that went away without a word is noticed in half a minute, and not in a quarter of an hour.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
# Whoever is stopped in the middle of a transaction, as a laptop is, must not hold up everybody else.
_SETTINGS = b"""
    SET search_path = upshift; SET jit = off; SET client_min_messages = warning;
    SET idle_in_transaction_session_timeout = '60s'
"""
_THERE = b"SELECT 1 FROM pg_tables WHERE schemaname = 'upshift' AND tablename = 'catalog'"
_DIALECT = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        ("%", "%%"),
        (r"\?", "%s"),
        (r"\bifnull\(", "coalesce("),
        # An escaped NUL is text in JSON, and nothing that jsonb takes.
        (
            r"json_extract\(([\w.]+), ('\$[^']*')\)",
            r"(jsonb_path_query_first(replace(\1, '\\u0000', '\\u0001')::jsonb, \2) #>> '{}')",
        ),
        (r"json_each\((\w+)\)", r"jsonb_array_elements_text(\1::jsonb) AS each(value)"),
        (r"\buser\b", '"user"'),
        (r"\bended DESC\b", "ended DESC NULLS LAST"),  # NULL is SQLite's smallest value
        (r"\bTEXT\b", 'TEXT COLLATE "C"'),
        (r"\bREAL\b", "DOUBLE PRECISION"),
        (r"CREATE TABLE (\w+) \(", r"CREATE TABLE \1 (rowid BIGINT GENERATED ALWAYS AS IDENTITY,"),
    )
)
_PROBLEMS = (  # the first whose sign is in what PostgreSQL says: why, and what to do
    ("password|authentication failed|no pg_hba.conf entry|role .* does not exist", "It does not let you in", (
        "Correct the user, and put the password where PostgreSQL's own programs look for it: ~/.pgpass, "
        "PGPASSFILE or PGPASSWORD."
    )),
    ("database .* does not exist", "It has no such database", "Create it: createdb {database}"),
    ("resolve|translate host name", "There is no host of this name", "Correct the host in the address."),
    ("Connection refused|No such file or directory", "Nothing answers there",
        "Start PostgreSQL, or correct the host and the port."),
    ("timeout|timed out", "It does not answer", "Look whether it runs and a firewall lets you through."),
    ("too many|connection slots", "It has no connection left", "Raise max_connections, or try again later."),
    ("starting up|shutting down|recovery mode", "It is being started or stopped", "Try again in a moment."),
    ("permission denied|must be owner", "You may not do that there",
        "Use the user that owns the schema upshift, or to make a new one, let a superuser do this: "
        "GRANT CREATE ON DATABASE {database} TO …"),
    ("read-only", "It can only be read", "Name the primary server, which can be written."),
    ("No space left|disk full", "The disk is full", "Free its disk."),
)  # fmt: skip


class PostgresDatabase(Database):
    """A database of a PostgreSQL server; see :class:`~upshift.runs.catalog.database.SqliteDatabase`."""

    def __init__(
        self,
        server: Server,
        migrations: Migrations,
        *,
        fill: Callable[[Database], None] | None = None,
        opened: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(server, opened=opened)
        self._server = server
        self._migrations = migrations
        self._fill = fill
        self._connection: _Connection | None = None
        self._closing: weakref.finalize[[], PostgresDatabase] | None = None
        self._failed: tuple[float, psycopg.Error] | None = None  # when there was no connection last, and why

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one SELECT."""
        with self._lock, self._translated():
            return self._over_again(lambda connection: connection.execute(_said(sql), values).fetchall())

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction: all of it is recorded, or nothing. A part of the one there is, if there is one."""
        with self._lock, self._translated():
            if self._connection is not None and _in_transaction(self._connection):
                with self._connection.transaction():
                    yield _Writing(self._connection)
                return
            with self._alone(self._over_again(lambda connection: self._begin(connection, self.patience))):
                yield _Writing(self._connect())

    def exists(self) -> bool:
        """Whether the database has the tables of a catalog."""
        with self._lock, self._translated():
            if self._connection is not None:
                return True
            try:
                return _version(self._reach()) is not None
            finally:
                self._disconnect()

    def check(self) -> None:
        """Connect; PostgreSQL checks its own files."""
        self.query("SELECT count(*) FROM runs")

    def _over_again(self, ask: Callable[[_Connection], _T]) -> _T:
        """Ask; and once more, where the connection has been lost since its last use."""
        connection = self._connect()
        alone = not _in_transaction(connection)
        try:
            return ask(connection)
        except psycopg.OperationalError:
            if not (alone and connection.closed):
                raise
            return ask(self._connect())

    def _begin(self, connection: _Connection, patience: float) -> _Connection:
        milliseconds = max(1, round(patience * 1000))  # 0 would be for ever
        try:
            connection.execute(b"BEGIN; SET LOCAL lock_timeout = %d; %s" % (milliseconds, _LOCK))
        except BaseException:
            _roll_back(connection)
            raise
        return connection

    @contextlib.contextmanager
    def _alone(self, connection: _Connection) -> Iterator[None]:
        """The rest of a transaction: committed, or rolled back after an error."""
        try:
            yield
            connection.execute(b"COMMIT")
        except BaseException:
            _roll_back(connection)
            raise

    def _connect(self) -> _Connection:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._reach()
            self._migrate(connection)
            self._tell_opened()
        return connection

    def _reach(self) -> _Connection:
        """A new connection; what is in the database may not be what this version knows."""
        self._disconnect()
        if self._failed is not None and not self.patience and time.monotonic() - self._failed[0] < _AGAIN:
            raise self._failed[1]
        try:
            given = conninfo_to_dict(self._server.url)
        except psycopg.ProgrammingError as error:
            said = "" if self._server.has_password else f" {str(error).strip()}."
            raise ConfigError(
                f"catalog = {self.place} is no address of a database",
                why=f"PostgreSQL cannot read it.{said}",
                fix='Write catalog = "postgresql://USER@HOST/DATABASE".',
            ) from None
        try:
            connection = psycopg.connect(
                self._server.url,
                autocommit=True,
                prepare_threshold=None,  # a pooler between may give each transaction another connection
                client_encoding="utf-8",
                **{name: value for name, value in _CONNECTING.items() if name not in given},
            )
            self._closing = weakref.finalize(self, connection.close)
            self._connection = connection
            connection.execute(_SETTINGS)
        except psycopg.Error as error:
            self._failed = time.monotonic(), error
            raise
        self._failed = None
        return connection

    def _disconnect(self) -> None:
        self._connection = None
        if self._closing is not None:
            self._closing()
            self._closing = None

    def _migrate(self, connection: _Connection) -> None:
        newest = len(self._migrations)
        try:
            if (version := _version(connection)) is None or version < newest:
                with self._alone(self._begin(connection, _FILLING)):
                    version = _version(connection)  # somebody else may have done it while this one waited
                    if version is None:
                        connection.execute(b"CREATE SCHEMA IF NOT EXISTS upshift")
                        connection.execute(b"CREATE TABLE catalog (version INTEGER NOT NULL)")
                        connection.execute(b"INSERT INTO catalog VALUES (0)")
                    for statement in (sql for step in self._migrations[version or 0 :] for sql in step):
                        connection.execute(_said(statement))
                    if version is None or version < newest:
                        connection.execute(b"UPDATE catalog SET version = %s", (newest,))
                    if version is None and self._fill is not None:
                        # Between two writes the records of thousands of runs may be read, from a bucket.
                        connection.execute(b"SET LOCAL idle_in_transaction_session_timeout = 0")
                        self._fill(self)
            if version is not None and version > newest:
                raise self._too_new(version, newest)
        except BaseException:
            self._disconnect()
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            translated = self._explain(error)
            if translated is None:
                raise
            raise translated from error

    def _explain(self, error: psycopg.Error) -> UpshiftError | None:
        said = " ".join(str(error).split())
        if isinstance(error, (errors.LockNotAvailable, errors.DeadlockDetected)):
            return Locked(
                f"the catalog {self.place} is not available",
                why=f"Another process has been writing to it for too long. PostgreSQL reports: {said}.",
                fix="Try again in a moment.",
            )
        for sign, why, fix in _PROBLEMS:
            if re.search(sign, said):
                break
        else:
            if not isinstance(error, (psycopg.OperationalError, psycopg.InternalError)):
                return None
            why, fix = "The connection to it was lost", "Look whether it runs, and at its log."
        return StoreUnavailable(
            f"the catalog {self.place} is not available",
            why=f"{why}. PostgreSQL reports: {said}",
            fix=fix.format(database=self._server.database or "NAME"),
        )


class _Writing:
    """A transaction that accepts SQLite's SQL."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(_said(sql), values)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_said(sql), rows)


@lru_cache(maxsize=256)
def _said(sql: str) -> bytes:
    """A statement of SQLite's in PostgreSQL's words."""
    for pattern, words in _DIALECT:
        sql = pattern.sub(words, sql)
    return sql.encode()


def _version(connection: _Connection) -> int | None:
    """The version of the catalog's tables; None if there are none."""
    # to_regclass() may not have heard of a table that was made while this process waited for the lock.
    if not connection.execute(_THERE).fetchall():
        return None
    return int(connection.execute(b"SELECT version FROM upshift.catalog").fetchall()[0][0])


def _in_transaction(connection: _Connection) -> bool:
    return connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def _roll_back(connection: _Connection) -> None:
    """End a transaction; one that cannot be ended in order, with its connection."""
    if not connection.closed:
        try:
            connection.execute(b"ROLLBACK")
        except psycopg.Error:
            connection.close()
