"""What the catalog asks of a database, whichever it is: SQLite's or PostgreSQL's.

Statements are written once, in the SQL that SQLite takes; :mod:`upshift.runs.catalog.postgres` says them in
its own words. A connection can not be carried across a fork, or even be closed there; so it is closed
before a fork, and opened again where it is used next.

The tables are numbered steps of SQL (:data:`MIGRATIONS`): step *n* takes a catalog from version *n - 1*
to version *n*; a new catalog takes all of them. A released step is never changed: what comes next is
another step. Each is applied in one transaction, so that a catalog is at one version or at the next,
whatever is killed.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import attrs

from upshift.errors import ConfigError, StoreError, StoreUnavailable

BUSY_SECONDS = 30.0
"""How long a writer waits for the others, if nothing else is said."""

Migrations = Sequence[Sequence[str]]
"""Step *n* holds the statements that lead to version *n*."""


@attrs.frozen
class Server:
    """A database of a PostgreSQL server. As text it is without the password.

    Parameters
    ----------
    url
        As libpq reads it: ``postgresql://USER@HOST/DATABASE``.

    Raises
    ------
    ValueError
        It cannot be told where the password is.
    """

    url: str = attrs.field(repr=False)

    @url.validator
    def _check(self, _: object, url: str) -> None:
        rest = url.partition("://")[2]
        if "@" in re.sub("^[^/?#]*", "", rest) or "#" in rest or rest.partition("?")[0].count("@") > 1:
            raise ValueError("in a user or a password, write @, /, ? and # as %40, %2F, %3F and %23")

    @property
    def has_password(self) -> bool:
        """Whether the address contains a password."""
        return ":" in urlsplit(self.url).netloc.rpartition("@")[0] or "password" in self.url

    @property
    def database(self) -> str:
        """Its name; empty: the one that libpq takes then."""
        return urlsplit(self.url).path.strip("/")

    def __str__(self) -> str:
        user, at, host = urlsplit(self.url).netloc.rpartition("@")
        return f"postgresql://{user.partition(':')[0]}{at}{host}/{self.database}"


class Locked(StoreUnavailable):
    """Another process has kept the database locked for longer than was waited."""


class Damaged(StoreError):
    """The database is not what was written."""


class Answer(Protocol):
    """What a statement did."""

    @property
    def rowcount(self) -> int: ...
    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    """A transaction: either all of its writes are recorded, or none."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Answer: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object: ...


class Database(ABC):
    """A database at the newest of its versions. Opened at its first use; safe among threads.

    Parameters
    ----------
    place
        The file, or the server's database. Messages call it so.
    opened
        Called once, when it is open for the first time.

    Attributes
    ----------
    patience
        Seconds that a writer waits for the others.

    Raises
    ------
    StoreUnavailable
        From every method: it cannot be reached, opened or written.
    Damaged
        From every method: it is damaged.
    ConfigError
        From every method: a newer version of Upshift has made it.
    """

    def __init__(self, place: Path | Server, *, opened: Callable[[], None] | None) -> None:
        self.place = place
        self.patience = BUSY_SECONDS
        self._opened = opened
        self._lock = threading.RLock()
        _opened.add(self)

    @abstractmethod
    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one SELECT."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Transaction]:
        """A write transaction, one at a time among all processes."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a catalog already; nothing is made."""

    @abstractmethod
    def check(self) -> None:
        """Look for damage; raise :class:`Damaged`."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    def close(self) -> None:
        """Let go of it; the next use opens it again."""
        with self._lock:
            self._disconnect()

    def hold(self) -> None:
        """Close it and keep every thread from opening it, until :meth:`release`."""
        self._lock.acquire()
        self.close()

    def release(self) -> None:
        """The end of :meth:`hold`, in the same thread."""
        self._lock.release()

    def _tell_opened(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened()

    def _too_new(self, version: int, newest: int) -> ConfigError:
        return ConfigError(
            f"the catalog {self.place} was made by a newer version of Upshift",
            why=f"It is at version {version}; this Upshift supports versions up to {newest}.",
            fix="Upgrade: pip install --upgrade upshift",
        )


def upsert(table: str, identity: str, columns: Sequence[str], *, fixed: int) -> str:
    """Insert a row, or change all but its first ``fixed`` columns, where ``identity`` exists already."""
    marks = ", ".join("?" * len(columns))
    changes = ", ".join(f"{column} = excluded.{column}" for column in columns[fixed:])
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) "
        f"ON CONFLICT ({identity}) DO UPDATE SET {changes}"
    )


_opened: weakref.WeakSet[Database] = weakref.WeakSet()
_held: list[Database] = []
_forking = threading.RLock()


def _before_fork() -> None:
    _forking.acquire()
    _held[:] = _opened
    for database in _held:
        database.hold()


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE runs (
            id TEXT NOT NULL PRIMARY KEY,
            pipeline TEXT NOT NULL,
            status TEXT NOT NULL,
            target TEXT NOT NULL,
            store TEXT NOT NULL,
            user TEXT,
            tags TEXT NOT NULL,      -- JSON: a list
            started REAL NOT NULL,   -- all times are seconds since the epoch
            ended REAL,
            source TEXT NOT NULL,    -- JSON: an object
            params TEXT NOT NULL     -- JSON: name to artifact
        )
        """,
        "CREATE INDEX runs_by_start ON runs (started)",
        """
        CREATE TABLE tasks (
            run TEXT NOT NULL,
            step TEXT NOT NULL,
            item INTEGER,            -- null: the step is not mapped
            status TEXT NOT NULL,
            cached INTEGER NOT NULL,
            cache_reason TEXT,
            key TEXT,
            origin TEXT              -- JSON: [run, step, item, attempt]
        )
        """,
        # NULLs count as different from each other in a unique index, hence the expression.
        "CREATE UNIQUE INDEX task ON tasks (run, step, ifnull(item, -1))",
        """
        CREATE TABLE attempts (
            run TEXT NOT NULL,
            step TEXT NOT NULL,
            item INTEGER,
            number INTEGER NOT NULL,
            status TEXT NOT NULL,
            reason TEXT,
            backend TEXT NOT NULL,
            handle TEXT,
            node TEXT,
            started REAL,
            ended REAL,
            key TEXT,                -- of a result that completed
            result TEXT,             -- JSON
            failure TEXT             -- JSON
        )
        """,
        "CREATE UNIQUE INDEX attempt ON attempts (run, step, ifnull(item, -1), number)",
        "CREATE INDEX attempts_by_key ON attempts (key, ended) WHERE key IS NOT NULL",
    ),
    ("ALTER TABLE attempts ADD COLUMN waits TEXT",),
    ("ALTER TABLE attempts ADD COLUMN target TEXT",),
    (
        """
        CREATE TABLE versions (
            pipeline TEXT NOT NULL,
            step TEXT NOT NULL,
            number INTEGER NOT NULL,
            run TEXT NOT NULL,       -- with the next three: the attempt that made it
            made_step TEXT NOT NULL,
            item INTEGER,
            attempt INTEGER NOT NULL,
            holder TEXT NOT NULL,    -- the first run of the pipeline that has it
            holder_item INTEGER,
            store TEXT NOT NULL,
            made REAL,
            tags TEXT NOT NULL,      -- JSON: a list
            PRIMARY KEY (pipeline, step, number)
        )
        """,
        "CREATE INDEX versions_by_holder ON versions (holder)",
    ),
)
