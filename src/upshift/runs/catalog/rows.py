"""The rows of the catalog, and how its tables hold them.

A run whose engine was submitted (``run --detach``) says so under ``source``: whoever submits an engine
records the run as pending, with a new token, and only then submits. An engine takes a pending run with
its own token and no other, so that one that is late does nothing.

A catalog that machines share names buckets, not the folders that follow them: :class:`Addresses`.

The tables are numbered steps of SQL (:data:`MIGRATIONS`): step *n* takes a catalog from version *n - 1*
to version *n*; a new catalog takes all of them. A released step is never changed: what comes next is
another step. Each is applied in one transaction, so that a catalog is at one version or at the next,
whatever is killed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from upshift.model.checks import in_bucket
from upshift.model.configuration import home
from upshift.model.spec.codec import decode, encode, from_json
from upshift.model.spec.task import Failure, TaskId, TaskResult
from upshift.runtime.storage.replica import replica_at, replica_of

UNFINISHED = ("pending", "running")
"""Status of a run, task or attempt that is not over."""
RUN_COLUMNS = (
    "id",
    "pipeline",
    "status",
    "target",
    "store",
    "user",
    "tags",
    "started",
    "ended",
    "source",
    "params",
)
TASK_COLUMNS = ("run", "step", "item", "status", "cached", "cache_reason", "key", "origin")
ATTEMPT_COLUMNS = (
    *("run", "step", "item", "number", "status", "reason", "backend", "handle", "node"),
    *("started", "ended", "key", "result", "failure", "waits", "target"),
)


@attrs.frozen(kw_only=True)
class RunRow:
    """A run. Its JSON form is the run's record ``run.json`` in the store."""

    id: str  # unique among all runs
    pipeline: str
    status: str  # ``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``
    target: str
    store: str  # address of the store with its artifacts
    # seconds since the epoch; ``ended`` is None while the run is not over
    started: float
    ended: float | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()  # in the order that the user gave them
    # what ``resume`` needs to load the pipeline again and to go on in the same way: file, pipeline attribute,
    # working folder, and under ``run`` the options of the run. And under ``engine`` where the engine ran that
    # was the last to work on it
    source: Mapping[str, Any] = attrs.field(factory=dict)
    # the pipeline's parameters: name to the JSON form of an artifact
    params: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class TaskRow:
    """A task and its current status."""

    task: TaskId
    status: str  # ``pending``, ``running``, ``completed``, ``failed``, ``cancelled`` or ``skipped``
    cached: bool = False  # whether its result is that of another task
    cache_reason: str | None = None  # why a result was reused or not, or why the task was skipped, for people
    key: str | None = None  # what its result may be found under again
    # whose result it is: run, step, index, attempt. None: its own attempts'
    origin: tuple[str, str, int | None, int] | None = None


@attrs.frozen(kw_only=True)
class AttemptRow:
    """One try of a task."""

    task: TaskId
    number: int  # from 1
    status: str  # ``pending``, ``running``, ``completed``, ``failed`` or ``cancelled``
    backend: str
    # where it runs, and the backend's name for the job. The target is None in older records
    target: str | None = None
    reason: str | None = None  # why it did not complete: one of :data:`upshift.model.settings.retry.REASONS`
    handle: str | None = None
    node: str | None = None  # name of the host
    # seconds since the epoch
    started: float | None = None
    ended: float | None = None
    result: TaskResult | None = None  # what the attempt recorded, once it is over
    failure: Failure | None = None  # why there is no result
    waits: str | None = None  # what it waits for before it can start, in words; None: for nothing


@attrs.frozen(kw_only=True)
class VersionRow:
    """A result of a step that has a number."""

    pipeline: str
    step: str
    number: int  # from 1
    # the attempt that made it; of a result that was reused one of an earlier run
    run: str
    made_step: str
    item: int | None
    attempt: int
    # the first run of the pipeline that has it, and the index of the task in it
    holder: str
    holder_item: int | None
    store: str  # address of the store that has it
    made: float | None = None  # when it was made, in seconds since the epoch
    tags: tuple[str, ...] = ()  # in the order in which they were given


def attempt_of(result: TaskResult) -> AttemptRow:
    """The attempt that made a result, as far as the result knows it."""
    return AttemptRow(
        task=result.task,
        number=result.attempt,
        status=result.status,
        reason=result.failure.reason if result.failure else None,
        target=result.target,
        backend=result.backend or "unknown",
        node=result.node,
        started=result.started,
        ended=result.ended,
        result=result,
    )


def json_text(value: Any) -> str:
    """A value of a row as its column has it."""
    return json.dumps(encode(value), ensure_ascii=False, separators=(",", ":"))


def run_values(row: RunRow) -> tuple[Any, ...]:
    """A run by its columns."""
    known = (row.id, row.pipeline, row.status, row.target, row.store, row.user, json_text(row.tags))
    return (*known, row.started, row.ended, json_text(row.source), json_text(row.params))


def run_rows(rows: Sequence[tuple[Any, ...]]) -> list[RunRow]:
    """Runs from their columns."""
    # One document for all of them: 10,000 small ones would take ten times as long.
    documents = iter(json.loads("[" + ",".join(f"{row[6]},{row[9]},{row[10]}" for row in rows) + "]"))
    return [
        RunRow(
            id=row[0],
            pipeline=row[1],
            status=row[2],
            target=row[3],
            store=row[4],
            user=row[5],
            tags=tuple(next(documents)),
            started=row[7],
            ended=row[8],
            source=next(documents),
            params=next(documents),
        )
        for row in rows
    ]


def task_values(row: TaskRow) -> tuple[Any, ...]:
    """A task by its columns."""
    origin = None if row.origin is None else json_text(row.origin)
    where = (row.task.run, row.task.step, row.task.index)
    return (*where, row.status, int(row.cached), row.cache_reason, row.key, origin)


def task_row(values: tuple[Any, ...]) -> TaskRow:
    """A task from its columns."""
    run, step, index, status, cached, cache_reason, key, origin = values
    return TaskRow(
        task=TaskId(run=run, step=step, index=index),
        status=status,
        cached=bool(cached),
        cache_reason=cache_reason,
        key=key,
        origin=None if origin is None else tuple(json.loads(origin)),
    )


def attempt_values(row: AttemptRow) -> tuple[Any, ...]:
    """An attempt by its columns."""
    task, result = row.task, row.result
    reusable = result is not None and result.status == "completed"
    return (
        *(task.run, task.step, task.index, row.number, row.status, row.reason, row.backend, row.handle),
        *(row.node, row.started, row.ended, result.key if reusable and result else None),
        None if result is None else json_text(result),
        None if row.failure is None else json_text(row.failure),
        row.waits,
        row.target,
    )


def attempt_row(values: tuple[Any, ...]) -> AttemptRow:
    """An attempt from its columns."""
    run, step, index, number, status, reason, backend, handle, node, started, ended, *rest = values
    _, result, failure, waits, target = rest
    return AttemptRow(
        task=TaskId(run=run, step=step, index=index),
        number=number,
        status=status,
        reason=reason,
        target=target,
        backend=backend,
        handle=handle,
        node=node,
        started=started,
        ended=ended,
        result=None if result is None else from_json(TaskResult, result),
        failure=None if failure is None else from_json(Failure, failure),
        waits=waits,
    )


KEY = "detached"


@attrs.frozen(kw_only=True)
class Detached:
    """The engine of a run as it was submitted last."""

    token: str  # of this submission; no other has it
    name: str  # of its job
    log: str  # the file that it prints to
    host: str  # where it was submitted
    since: float  # when, in seconds since the epoch
    target: str | None = None  # whose job it is; None: a process of that host
    lost: str | None = None  # why it does not work on the run any more, where that is known

    @classmethod
    def of(cls, row: RunRow) -> Detached | None:
        """That of a run; None: it was not submitted."""
        said = row.source.get(KEY)
        return decode(cls, said) if isinstance(said, Mapping) else None

    def source(self) -> dict[str, Any]:
        """What is recorded of it."""
        return {KEY: encode(self)}


def awaits_engine(row: RunRow) -> bool:
    """Whether an engine was submitted for it that has not begun yet, as far as anybody knows."""
    found = Detached.of(row) if row.status == "pending" else None
    return found is not None and found.lost is None


class Addresses:
    """Translates the addresses of stores between this machine and its catalog, which may be shared."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared

    def there(self, store: str) -> str:
        """What the catalog calls a store of this machine."""
        return _named(store) if self.shared else store

    def here(self, address: str) -> str:
        """The folder on this machine of a store in the catalog."""
        return _folder(address, str(home())) if self.shared and in_bucket(address) else address


@functools.lru_cache(maxsize=64)
def _named(store: str) -> str:
    replica = replica_at(store)
    return store if replica is None else replica.address


@functools.lru_cache(maxsize=64)
def _folder(address: str, at: str) -> str:
    replica = replica_of(address)
    replica.mark()
    return str(Path(replica.root))


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
