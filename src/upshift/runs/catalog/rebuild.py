"""The catalog anew, from what the stores hold: ``upshift gc --rebuild-catalog``, or where there is none.

A run is found by its record ``run.json``, the JSON form of a :class:`~upshift.runs.catalog.rows.RunRow`; its
attempts by their results. The rest is in the record ``tasks.json``, an :class:`Ending`, which is written when
the run ends: how each task stands, also one that was skipped or whose result is that of another run; and
attempts that left no result. Of an interrupted run these are not found again until somebody resumes it.

The catalog is mended in its place, a few runs at a time, so that engines can go on writing to it, and
whoever is killed may begin again. Only one that cannot be read is put aside first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from upshift.model.spec.codec import from_json, to_json
from upshift.model.spec.task import TaskId, TaskResult
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.database import Damaged
from upshift.runs.catalog.rows import UNFINISHED, AttemptRow, RunRow, TaskRow, attempt_of
from upshift.runs.catalog.version_rows import recorded_versions
from upshift.runs.lease import held, here
from upshift.runs.needed import Claimed
from upshift.runtime.storage.records import REMOVED
from upshift.runtime.storage.store import Store

ENDING = "tasks.json"
"""The record with an :class:`Ending`."""
_BATCH = 5_000
"""Rows in one transaction."""

Rows = tuple[str, RunRow | None, list[TaskRow], list[AttemptRow]]
"""A run's id, its own row (None: it was removed, and others have its results), its tasks and attempts."""


@attrs.frozen(kw_only=True)
class Rebuilt:
    """What :func:`rebuild` did.

    Parameters
    ----------
    runs
        How many runs the catalog has now.
    dropped
        How many it had that are in none of the stores.
    interrupted
        Runs without a record of their end, that the catalog did not know.
    damaged
        Runs whose records cannot be read, each with the reason.
    kept
        Those of them that the catalog had, and has as they were.
    """

    runs: int
    dropped: int = 0
    interrupted: tuple[str, ...] = ()
    damaged: Mapping[str, str] = attrs.field(factory=dict)
    kept: tuple[str, ...] = ()


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
    """How the tasks of a run stood when it ended.

    Parameters
    ----------
    tasks
        All of them.
    attempts
        Those that left no result, or of which the backend has said more than that.
    """

    tasks: tuple[TaskRow, ...] = ()
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
