"""What the catalog asks of a database, whichever it is, and the usual one: a SQLite file.

Statements are written once, in the SQL that SQLite takes; :mod:`upshift.runs.catalog.postgres` says them in
its own words. A connection can not be carried across a fork, or even be closed there; so it is closed
before a fork, and opened again where it is used next.

Several processes write the SQLite file at once, and it survives whatever is killed:

* Write-ahead logging: readers never wait for the writer.
* Every write is one ``BEGIN IMMEDIATE`` transaction, so that writers queue up for each other
  instead of finding out half-way that another one was faster ("database is locked").
* A new file is made complete beside its place and linked there, so that nobody sees it half made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import attrs

from upshift.errors import ConfigError, StoreError, StoreUnavailable, UpshiftError
from upshift.model.configuration import make_folder

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


_DAMAGED = ("file is not a database", "malformed", "file is encrypted")
_UNAVAILABLE = {
    "readonly": "It cannot be written",
    "unable to open": "It cannot be opened",
    "full": "The disk is full",
    "disk I/O error": "The disk reports an error",
    "locked": "Another process has been writing to it for too long",
}


class SqliteDatabase(Database):
    """A SQLite file."""

    def __init__(
        self,
        path: Path,  # the file; its folder is made with it
        migrations: Migrations,  # what leads to each version
        *,
        flush: bool = False,  # whether a commit waits for the disk, so that it survives a power failure
        # given a new file before it is in its place, for what it should hold
        fill: Callable[[Database], None] | None = None,
        opened: Callable[[], None] | None = None,  # called once, when the file is open for the first time
    ) -> None:
        super().__init__(path, opened=opened)
        self.path = path
        self._migrations = migrations
        self._flush = flush
        self._fill = fill
        self._connection: sqlite3.Connection | None = None
        self._closing: weakref.finalize[[], SqliteDatabase] | None = None
        self._as_read: tuple[object, ...] | None = None  # the file's signature, if it can only be read

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one SELECT."""
        with self._lock, self._translated():
            return self._connect().execute(sql, values).fetchall()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is recorded, or nothing."""
        with self._lock, self._translated():
            connection = self._connect()
            connection.execute(f"PRAGMA busy_timeout = {self.patience * 1000:.0f}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.exists()

    def check(self) -> None:
        """Read all of the file."""
        problems = [text for (text,) in self.query("PRAGMA quick_check(1)") if text != "ok"]
        if problems:
            raise self._damaged(problems[0])

    def put_aside(self) -> Path:
        """Move the file, which is damaged, out of the way; give where it is now."""
        self.close()
        names = (f"{self.path.name}.old{number or ''}" for number in range(1000))
        old = next(old for old in map(self.path.with_name, names) if not old.exists())
        for end in ("-wal", "-shm", ""):  # its log first: beside a new file it would be taken for its own
            part = self.path.with_name(self.path.name + end)
            if part.exists():
                os.replace(part, old.with_name(old.name + end))
        return old

    def _disconnect(self) -> None:
        self._connection = None
        if self._closing is not None:
            self._closing()
            self._closing = None

    def _connect(self) -> sqlite3.Connection:
        if self._as_read is not None and self._as_read != _signature(self.path):
            self.close()
        if self._connection is None:
            if not self.path.exists() or (_is_empty(self.path) and self._dropped()):
                self._create()
            # A folder SQLite refuses by itself; of a device it makes an empty database.
            elif not self.path.is_file() and not self.path.is_dir():
                raise ConfigError(
                    f"the catalog {self.path} is not a file",
                    fix="Name a file: UPSHIFT_CATALOG, or catalog = ….",
                )
            # What the process may do counts, with its capabilities, and not its real user alone.
            writable = os.access(
                self.path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids
            )
            self._as_read = None if writable else _signature(self.path)
            connection = self._open(self.path) if writable else _open_to_read(self.path)
            try:
                self._migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._closing = weakref.finalize(self, connection.close)
            self._tell_opened()
        return self._connection

    def _open(self, path: Path) -> sqlite3.Connection:
        # The lock above keeps threads apart, so the module's own check may be off.
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._flush else 'NORMAL'}")
        return connection

    def _create(self) -> None:
        make_folder(self.path.parent)
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(6)}")
        try:
            # SQLite would make it for its owner alone to write, whatever the umask says of a team's folder.
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            connection = self._open(draft)
            try:
                # A file system without shared memory keeps the journal that it has; that is slower
                # and as safe.
                connection.execute("PRAGMA journal_mode = WAL")
                self._migrate(connection)
            finally:
                connection.close()
            if self._fill is not None:
                with contextlib.closing(SqliteDatabase(draft, self._migrations)) as new:
                    self._fill(new)
            with contextlib.suppress(FileExistsError):  # another process was faster, and as complete
                os.link(draft, self.path)
        finally:
            for leftover in (draft, *(draft.with_name(draft.name + end) for end in ("-wal", "-shm"))):
                leftover.unlink(missing_ok=True)

    def _dropped(self) -> bool:
        """Remove the empty file; False: another process did so, and has made one since."""
        with open(self.path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_empty(self.path) or not os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                return False
            for end in ("-wal", "-shm", ""):  # its log first: a new file would be given what is in there
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)
            return True

    def _migrate(self, connection: sqlite3.Connection) -> None:
        newest = len(self._migrations)
        while (version := _version(connection)) < newest:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if _version(connection) == version:  # nobody else did it while this one waited
                    for statement in self._migrations[version]:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {version + 1}")
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
        if version > newest:
            raise self._too_new(version, newest)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            translated = self._explain(error)
            if translated is None:
                raise
            raise translated from error
        except OSError as error:
            raise StoreUnavailable(
                f"the catalog {self.path} cannot be made",
                why=f"{error.filename or self.path}: {error.strerror or error}",
                fix="Set UPSHIFT_HOME to a folder that can be written.",
            ) from error

    def _explain(self, error: sqlite3.Error) -> UpshiftError | None:
        text = str(error)
        if any(sign in text for sign in _DAMAGED):
            return self._damaged(text)
        for sign, what in _UNAVAILABLE.items():
            if sign in text:
                return (Locked if sign == "locked" else StoreUnavailable)(
                    f"the catalog {self.path} is not available",
                    why=f"{what}. SQLite reports: {text}.",
                    fix="Free the disk or correct the permissions, or set UPSHIFT_HOME to another folder.",
                )
        return None

    def _damaged(self, why: str) -> Damaged:
        """The error for a file that SQLite says this of."""
        return Damaged(
            f"the catalog {self.path} is damaged",
            why=f"SQLite reports: {why}.",
            fix="Nothing is lost: the catalog is only an index of the store. Rebuild it:\n"
            "upshift gc --rebuild-catalog",
        )


def _open_to_read(path: Path) -> sqlite3.Connection:
    """Open a file in a folder where SQLite can make neither a lock nor shared memory."""
    # Without a write-ahead log nobody is writing: it is read as it is, until its signature changes.
    unchanging = "" if _size(_log_of(path)) else "&immutable=1"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro{unchanging}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _signature(path: Path) -> tuple[object, ...]:
    status = path.stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns, _size(_log_of(path)))


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _is_empty(path: Path) -> bool:
    """Whether a full disk, or a copy that was cut off, has left a file without content: nobody else does."""
    return path.is_file() and path.stat().st_size == 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # SQLite has rolled back by itself where the disk is full
        connection.execute("ROLLBACK")
