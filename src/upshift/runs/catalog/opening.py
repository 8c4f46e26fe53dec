"""The catalog that is configured, with what others have put into its stores, and how runs stand.

Engines of other homes and machines have catalogs of their own. What they record in a store that this catalog
knows is added when the catalog is opened, or when somebody asks for a run; what they remove goes here, too.

A run that is recorded as running and whose lease nobody holds is *interrupted*: its engine was killed before
it could record the end. People read that word; the status of such a run, in JSON and in Python, is
``cancelled``: it was stopped before its end, though nothing of it failed. That it has no time of its end
tells it from one that was stopped in order. So is a run whose engine was submitted and never began.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from upshift.errors import NotFound, UpshiftError
from upshift.model.configuration import Configuration, load_configuration
from upshift.model.spec.codec import from_json
from upshift.runs.catalog.catalog import Catalog, catalog_place, notes_of_lacking
from upshift.runs.catalog.database import Damaged
from upshift.runs.catalog.rebuild import rebuild, replace, rows_of
from upshift.runs.catalog.rows import UNFINISHED, AttemptRow, Detached, RunRow, TaskRow, awaits_engine
from upshift.runs.catalog.version_rows import recorded_versions
from upshift.runs.lease import held, here
from upshift.runs.needed import Claimed
from upshift.runtime.storage.objects import Version
from upshift.runtime.storage.records import live_path, safe, task_path
from upshift.runtime.storage.store import Store, open_store

ORCHESTRATOR = "orchestrator"
"""Under this name the source of a row says whose the run is, where no engine of Upshift's works on it."""
INTERRUPTED = "interrupted"
"""Status of the row of an interrupted run; no record has it."""
_MEND = "upshift gc --rebuild-catalog"
_STRETCH = 1_000
"""Runs, after each of which one who waits for a new catalog is told how far it is."""


def open_catalog(configuration: Configuration | None = None) -> Catalog:
    """The catalog that is configured; None: in the working folder. Nothing is opened before its first use.

    One that is not there is made from what the configured stores hold, and runs that it lacks are added.

    Raises
    ------
    ConfigError
        The address is not one of a SQLite file, nor of a PostgreSQL database.
    """
    configuration = configuration or load_configuration()
    place = catalog_place(configuration.catalog)

    def fill(new: Catalog) -> None:
        fill_from_stores(new, configuration, str(place))

    def catch_up(catalog: Catalog) -> None:
        if notes_of_lacking(place).exists():
            take_what_lacks(catalog, configuration)
        if configuration.has_buckets:
            take_from_buckets(catalog, configuration)
        if isinstance(place, Path):
            take_from_folders(catalog, configuration)

    return Catalog(place, flush=configuration.durability == "power", fill=fill, opened=catch_up)


def fill_from_stores(catalog: Catalog, configuration: Configuration, name: str) -> None:
    """Give a new catalog the runs that the configured stores hold, and say so on stderr if there are any.

    A store that cannot be read is left out, and named. Runs that an engine works on are its own to record.

    Parameters
    ----------
    catalog
        The catalog, which nobody else sees yet.
    configuration
        Names the stores.
    name
        What messages call it.
    """
    for store in configured_stores(configuration):
        try:
            claimed = Claimed(store.address)
            claimed.look()
            number = sum(run not in claimed.runs for run in store.runs())
            if not number:
                continue
            runs = "1 run" if number == 1 else f"{number:,} runs"
            _say(f"there is no catalog {name}; it is rebuilt from the store {store.name}: {runs}")
            damaged = rebuild(catalog, [store], _say_how_far).damaged
        except UpshiftError as error:
            _say(f"the catalog lacks runs of the store {store.name}: {error.what}; {_MEND} mends it")
            continue
        if damaged:
            _say(f"records of {len(damaged):,} of them cannot be read; {_MEND} says which")


def take_what_lacks(catalog: Catalog, configuration: Configuration) -> None:
    """Add the runs that engines could not write, by their notes; what cannot be now is left to others.

    Raises
    ------
    Damaged
        The catalog is: what it has of these runs is wrong.
    """
    for note in notes_of_lacking(catalog.place).iterdir():
        try:
            _take(note, catalog, configuration)
        except Damaged:
            raise
        except (UpshiftError, OSError, ValueError):
            continue


def take_from_buckets(catalog: Catalog, configuration: Configuration) -> None:
    """Add what other machines have put into the buckets of configured stores since; say where that fails."""
    for store in configured_stores(configuration):
        if store.replica is None:
            continue
        try:
            forget_removed(catalog, store)
            known, unfinished = catalog.ids_of(store.address)
            there = store.replica.runs()
            new = [run for run in there if run not in known]
            going = [row.id for row in unfinished if row.source.get("engine") != here()]
            if isinstance(catalog.place, Path):
                store.replica.bring_runs(new)
            else:  # what others have put into a catalog that is shared may never have been here
                store.replica.bring_runs([run for run in there if not _is_here(run, store)])
            add_runs(catalog, store, new)
            for run in going:
                bring_in(run, catalog, store)
        except UpshiftError as error:
            _say(f"runs of other machines in {store.replica.address} are not seen: {error.why or error.what}")


def _is_here(run: str, store: Store) -> bool:
    """Whether this machine has the records of a run in a bucket, which do not change any more."""
    content = store.read_record(run, "run.json")
    try:
        return content is not None and from_json(RunRow, content).status not in UNFINISHED
    except ValueError:
        return False


def take_from_folders(catalog: Catalog, configuration: Configuration) -> None:
    """See how runs stand that engines of other homes work on: in shared folders, if anything has changed."""
    for known in catalog.unfinished():
        if known.source.get("engine", here()) == here() and not awaits_engine(known):
            continue
        with contextlib.suppress(UpshiftError, ValueError):  # what the catalog has can be shown all the same
            store = open_store(known.store, **configuration.store_options)
            content = None if store.replica is not None else store.read_record(known.id, "run.json")
            if content is not None and from_json(RunRow, content) != known:
                bring_in(known.id, catalog, store)


def see_running(catalog: Catalog) -> None:
    """See how far runs are that engines of other homes work on."""
    for known in catalog.unfinished():
        if known.status == "running" and known.source.get("engine", here()) != here():
            with contextlib.suppress(UpshiftError):  # what the catalog has can be shown all the same
                bring_in(known.id, catalog, open_store(known.store))


def _take(note: Path, catalog: Catalog, configuration: Configuration) -> None:
    store = open_store(os.readlink(note), **configuration.store_options)
    claimed = Claimed(store.address)
    claimed.look()
    if note.name in claimed.runs:  # its engine lives
        return
    with catalog.without_waiting():
        if (rows := rows_of(note.name, store)) is not None:
            _, row, tasks, attempts = rows
            if row is not None and row.status in UNFINISHED:  # the catalog may know more of it
                catalog.add_run(row)
                catalog.record(tasks, attempts)
            else:
                replace([rows], catalog, claimed)
            catalog.versions.put(recorded_versions(note.name, store))
    note.unlink(missing_ok=True)


def known_run(ref: str, catalog: Catalog, configuration: Configuration) -> RunRow:
    """A run by its id, a prefix of it, or ``latest``; also one that another home has put into a store.

    Raises
    ------
    NotFound
        There is no such run, or there are several.
    """
    try:
        row = catalog.run(ref)
    except NotFound:
        stores = configured_stores(configuration)
        found = [(run, store) for store in stores for run in store.runs() if run.startswith(ref)]
        if len(found) != 1:
            raise
        run, store = found[0]
        bring_in(run, catalog, store)
        return catalog.run(run)
    try:
        bring_in(row.id, catalog, open_store(row.store, **configuration.store_options))
    except Damaged:
        raise
    except UpshiftError:  # what the catalog has can be shown all the same
        return row
    return catalog.run(row.id)


def bring_in(run: str, catalog: Catalog, store: Store) -> None:
    """Take a run into the catalog as its store has it, where an engine of another home worked on it last."""
    store.bring_run(run)
    content = store.read_record(run, "run.json")
    with contextlib.suppress(ValueError):  # it is damaged: the catalog may know better
        row = None if content is None else from_json(RunRow, content)
        if row is not None and row.source.get("engine", here()) != here():
            known = _known(run, catalog)
            told = known is not None and (known.ended, known.tags) == (row.ended, row.tags)
            if known is None or known.status in UNFINISHED or not told:
                _merge(run, catalog, store, known)


def _merge(run: str, catalog: Catalog, store: Store, known: RunRow | None) -> None:
    """Replace a run that is over; of one that is not the catalog may know more, which stays."""
    rows = rows_of(run, store)
    if rows is None:
        return
    _, row, tasks, attempts = rows
    if row is None or row.status not in UNFINISHED:
        catalog.replace_runs([rows])
    else:
        catalog.add_run(row)
        if known is not None and known.status not in UNFINISHED:
            reopen(run, catalog)
        _add_news(run, catalog, store, tasks, attempts)
    catalog.versions.put(recorded_versions(run, store))


def _add_news(
    run: str, catalog: Catalog, store: Store, tasks: Sequence[TaskRow], attempts: Sequence[AttemptRow]
) -> None:
    """Add what the store has of a run that goes on, but for what the catalog knows better."""
    recorded = catalog.attempts(run)
    better = {(a.task, a.number) for a in recorded if a.handle is not None}  # by its engine, in here
    over = {(a.task, a.number) for a in recorded if a.status not in UNFINISHED}
    # What an engine has given up leaves no result either: only the newest attempt of a task may run.
    newest = {result.task: result.number for result in sorted(attempts, key=lambda a: a.number)}
    last = {a.task: a for a in sorted(_begun(run, store), key=lambda a: a.number)}
    begun = [
        a
        for a in last.values()
        if a.number > newest.get(a.task, 0) and (a.task, a.number) not in better | over
    ]
    new = [attempt for attempt in (*attempts, *begun) if (attempt.task, attempt.number) not in over]
    # Of a task that the catalog has, the store may know only how it stood before it was begun anew.
    ended = dict(sorted(over, key=lambda one: one[1]))  # the newest of each task
    since = {attempt.task for attempt in new if attempt.number > ended.get(attempt.task, 0)}
    status = {task.task: task.status for task in catalog.tasks(run)}
    told = [
        task
        for task in (*tasks, *(TaskRow(task=attempt.task, status=attempt.status) for attempt in begun))
        if task.task in since
        or task.task not in status
        or (task.status == "completed" and status[task.task] in UNFINISHED)
    ]
    catalog.record(told, new)


def reopen(run: str, catalog: Catalog) -> None:
    """Tasks of a run that is resumed are still to be done, but for those that have completed."""
    left = [task for task in catalog.tasks(run) if task.status != "completed"]
    catalog.record([attrs.evolve(task, status="pending", cache_reason=None) for task in left], [])


def _begun(run: str, store: Store) -> Iterator[AttemptRow]:
    """Attempts that have left no result yet: what runs has left something else."""
    for spec in store.unfinished(run):
        if spec.backend is not None:
            left = (store.log_path, store.series_path)
            began = (store.root / live_path(spec.task, spec.attempt)).exists() or any(
                path(spec.task, spec.attempt).exists() for path in left
            )
            yield AttemptRow(
                task=spec.task,
                number=spec.attempt,
                status="running" if began else "pending",
                target=spec.target,
                backend=spec.backend,
            )


def _known(run: str, catalog: Catalog) -> RunRow | None:
    with contextlib.suppress(NotFound):
        return catalog.run(run)
    return None


def add_runs(catalog: Catalog, store: Store, runs: Iterable[str]) -> None:
    """Add runs that were copied into a store; those in another store that is there stay as they are."""
    for run in runs:
        known = _known(run, catalog)
        if known is None or known.store == store.address or not os.path.isdir(known.store):
            _merge(run, catalog, store, known)


def configured_stores(configuration: Configuration) -> list[Store]:
    """The stores of the configured targets that this version can open, whether anything is in them or not."""
    stores: dict[str, Store] = {}
    for target in (*configuration.targets.values(), configuration.target("local")):
        with contextlib.suppress(UpshiftError):  # whoever uses it is told
            store = open_store(configuration.store_address(target), **configuration.store_options)
            stores.setdefault(store.address, store)
    return list(stores.values())


def _say_how_far(what: str, done: int, of: int | None) -> None:
    if done and done % _STRETCH == 0:
        _say(f"{what}: {done:,} of {of:,}")


def _say(text: str) -> None:
    sys.stderr.write(f"upshift: {text}\n")


def forget_removed(catalog: Catalog, store: Store) -> None:
    """Have neither the catalog nor this machine's copy of a bucket offer runs that were removed from it.

    One request, unless a ``gc`` has worked since.
    """
    replica = store.replica
    if replica is None:
        return
    state, version = replica.condemned.look()
    if version is None or version == replica.removals_seen():
        return
    known, _ = catalog.ids_of(store.address)
    gone = {run for run in known if safe(run) in state.runs}
    if isinstance(catalog.place, Path):  # others do not put their runs into it before the bucket has them
        there = {*replica.runs(), *replica.unpublished()}
        gone |= {run for run in known if safe(run) not in there}
    forget_here(catalog, store, gone)
    replica.removals_seen(Version(version))


def forget_here(catalog: Catalog | None, store: Store, gone: set[str]) -> None:
    """Forget runs here, but for the results of theirs that runs which stay have reused."""
    assert store.replica is not None
    kept = set() if catalog is None else {task for run, task in catalog.origins() if run not in gone}
    if catalog is not None and gone:
        catalog.forget_runs(sorted(gone), keep=kept)
    paths = set(map(task_path, kept))
    for run in gone:
        store.replica.forget_run(run, paths)


def standing(rows: Iterable[RunRow], catalog: Catalog) -> list[RunRow]:
    """The rows of runs as these stand. Leases are asked for those only that are recorded as running."""
    return [_standing(row, catalog) if row.status in ("pending", "running") else row for row in rows]


def plain_status(row: RunRow) -> str:
    """The status in the words of the records: ``cancelled`` for a run that is interrupted."""
    return "cancelled" if row.status == INTERRUPTED else row.status


def _standing(row: RunRow, catalog: Catalog) -> RunRow:
    if row.status == "pending":  # nobody has a lease yet
        engine = Detached.of(row)
        return row if engine is None or engine.lost is None else attrs.evolve(row, status=INTERRUPTED)
    if ORCHESTRATOR in row.source or _owned(row):
        return row
    # An engine records the end before it gives the lease up: so the row that was read may be older.
    try:
        now = catalog.run(row.id)
    except NotFound:  # it was removed meanwhile
        return row
    over = now.status != "running" or _owned(now)
    return now if over else attrs.evolve(now, status=INTERRUPTED)


def _owned(row: RunRow) -> bool:
    return held(row.id, row.store)
