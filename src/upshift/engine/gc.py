"""``upshift gc``: which runs are to go, the stores that they are in, and what is left over in the home."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs

from upshift.engine.tidy import tidy
from upshift.errors import NotFound, RunOwned, StoreError, UpshiftError, UsageError
from upshift.model.configuration import Configuration
from upshift.runs.catalog import Catalog, catalog_path, no_pipeline, open_catalog
from upshift.runs.claimed import Claimed
from upshift.runs.collect import Collected, Tell, collect
from upshift.runs.history_records import UNFINISHED
from upshift.runs.rebuild import Rebuilt, configured_stores, put_aside_if_damaged, rebuild
from upshift.runs.rows import RunRow
from upshift.runtime.storage.store import Store, open_store


@attrs.frozen(kw_only=True)
class Choice:
    """Which runs are to go. By default none.

    Parameters
    ----------
    runs
        These, by id, prefix of one, or ``latest``; nothing else counts then.
    pipeline
        Only runs of this pipeline.
    keep_last
        All but the newest so many of each pipeline, and those with a value that has a tag.
    older_than
        Those that ended (or started, if they have no end) so many seconds ago. With ``keep_last``:
        only those of which both is true.
    """

    runs: tuple[str, ...] = ()
    pipeline: str | None = None
    keep_last: int | None = None
    older_than: float | None = None


@attrs.frozen(kw_only=True)
class Cleaned:
    """What ``gc`` did, or would do.

    Parameters
    ----------
    collected
        What was removed from the stores and from the home, and what is kept.
    stores
        Addresses of the stores that were cleaned.
    missing
        Addresses of stores that are not there, each with the number of runs that were to go.
    failed
        Addresses of stores where something was wrong. What was done there before may be known in part only.
    """

    collected: Collected
    stores: tuple[str, ...]
    missing: dict[str, int]
    failed: dict[str, UpshiftError] = attrs.field(factory=dict)


def gc(
    configuration: Configuration,
    choice: Choice,
    *,
    dry_run: bool = False,
    tell: Tell = lambda what, done, of: None,
    now: Callable[[], float] = time.time,
) -> Cleaned:
    """Remove runs, and everything that no run that is kept refers to.

    A store that cannot be read, written or understood, or on which another ``gc`` works, is left for
    later, and does not keep the others from being cleaned: see :class:`Cleaned`.

    Parameters
    ----------
    configuration
        Names the catalog and the stores; those that runs in the catalog name count, too.
    choice
        Which runs are to go.
    dry_run
        Whether to change nothing.
    tell
        Told how far the work is.
    now
        Seconds since the epoch.

    Raises
    ------
    NotFound
        There is no such run, or no run of that pipeline.
    RunOwned
        Somebody works on a run that was named.
    UsageError
        ``pipeline`` alone says nothing.
    StoreError, StoreUnavailable
        The catalog cannot be read, the home not be cleaned, or a run that was named not be removed.
    """
    catalog = open_catalog(configuration)
    there = catalog.path.exists() or any(map(is_there, configured_stores(configuration)))
    try:
        chosen = choose(choice, catalog, now()) if there else _none(choice)
        addresses = store_addresses(configuration, catalog if there else None)
        stores: dict[str, Store] = {}
        failed: dict[str, UpshiftError] = {}
        for address in addresses:
            with _noted(failed, address):
                stores[address] = open_store(address, **configuration.store_options)
        missing = {address: 0 for address, store in stores.items() if not is_there(store)}
        by_store: dict[str, list[str]] = {address: [] for address in addresses}
        for row in chosen:
            by_store[row.store].append(row.id)
            if row.store in missing:
                missing[row.store] += 1
        if choice.runs:
            _refuse(chosen, stores, missing, failed)
        total = Collected()
        for address, store in stores.items():
            if address in missing:
                continue
            with _noted(failed, address):
                total += collect(
                    store, catalog if there else None, forget=by_store[address], dry_run=dry_run, tell=tell
                )
        total.removed += tidy(
            total.wanted, dry_run=dry_run, unfinished=(lambda: _unfinished(catalog)) if there else tuple
        )
        return Cleaned(
            collected=total,
            stores=tuple(address for address in stores if address not in missing and address not in failed),
            missing={address: runs for address, runs in missing.items() if runs},
            failed=failed,
        )
    finally:
        catalog.close()


def choose(choice: Choice, catalog: Catalog, now: float) -> list[RunRow]:
    """The runs that are to go, newest first.

    Raises
    ------
    NotFound, UsageError
        As :func:`gc`.
    """
    tagged = catalog.versions.tagged_runs()
    if choice.runs:
        named = {row.id: row for row in map(catalog.run, choice.runs)}
        for run in tagged & named.keys():
            raise UsageError(
                f"run {run} has a value with a tag",
                fix="Give the tag to another version, or take it away: upshift artifacts tag --remove",
            )
        return list(named.values())
    if choice.keep_last is None and choice.older_than is None:
        return _none(choice)
    rows = catalog.runs(pipeline=choice.pipeline)
    if choice.pipeline is not None and not rows:
        raise no_pipeline(choice.pipeline, catalog)
    newer: Counter[str] = Counter()
    chosen = []
    for row in rows:
        surplus = choice.keep_last is None or newer[row.pipeline] >= choice.keep_last
        age = now - max(row.started, row.ended or 0.0)
        if row.id not in tagged and surplus and (choice.older_than is None or age > choice.older_than):
            chosen.append(row)
        newer[row.pipeline] += 1
    return chosen


def rebuild_catalog(
    configuration: Configuration, tell: Tell = lambda what, done, of: None
) -> tuple[Rebuilt, Path | None, tuple[str, ...]]:
    """Make the catalog anew from the stores.

    Parameters
    ----------
    configuration
        Names the catalog and the stores; those that runs in the catalog name count, too.
    tell
        Told how far the work is.

    Returns
    -------
    rebuilt
        What was done.
    aside
        Where the catalog that was there is now, if it could not be read.
    missing
        Addresses of the stores that are not there.

    Raises
    ------
    ConfigError
        A newer Upshift has made the catalog or a store.
    StoreUnavailable
        A store cannot be read, or the catalog not be written.
    """
    with contextlib.closing(Catalog(catalog_path(configuration.catalog))) as catalog:
        aside = put_aside_if_damaged(catalog) if catalog.path.exists() else None
        addresses = store_addresses(configuration, catalog if catalog.path.exists() else None)
        stores = [open_store(address, **configuration.store_options) for address in addresses]
        missing = tuple(store.address for store in stores if not is_there(store))
        rebuilt = rebuild(catalog, [store for store in stores if store.address not in missing], tell)
        return rebuilt, aside, missing


def store_addresses(configuration: Configuration, catalog: Catalog | None) -> list[str]:
    """The stores of the configured targets, and those that runs in the catalog name."""
    targets = (*configuration.targets.values(), configuration.target("local"))
    configured = [open_store(configuration.store_address(target)).address for target in targets]
    named = [] if catalog is None else catalog.stores()
    return list(dict.fromkeys([*configured, *named]))


def is_there(store: Store) -> bool:
    """Whether there is a store, and not just the place where one could be, or is mounted at other times."""
    return any((store.root / name).exists() for name in ("format", "runs", "blobs"))


def _unfinished(catalog: Catalog) -> set[str]:
    return {row.id for row in catalog.runs() if row.status in UNFINISHED}


@contextlib.contextmanager
def _noted(failed: dict[str, UpshiftError], address: str) -> Iterator[None]:
    try:
        yield
    except UpshiftError as error:
        failed[address] = error


def _refuse(
    chosen: Iterable[RunRow],
    stores: dict[str, Store],
    missing: dict[str, int],
    failed: dict[str, UpshiftError],
) -> None:
    for row in chosen:
        if row.store in failed:
            raise failed[row.store]
        if row.store in missing:
            raise StoreError(
                f"run {row.id} cannot be removed: its store is not there",
                where=row.store,
                fix="Mount it. If it is gone for good: upshift gc --rebuild-catalog",
            )
        claimed = Claimed(stores[row.store].address)
        claimed.look()
        if row.id in claimed.runs:
            raise RunOwned(
                f"run {row.id} is live",
                why="An engine works on it, or a task of it still runs.",
                fix=f"Wait until it has ended, or stop it: upshift cancel {row.id}",
            )


def _none(choice: Choice) -> list[RunRow]:
    """No run is to go, unless the choice makes no sense then."""
    if choice.runs:
        raise NotFound(f"no run has the id {choice.runs[0]!r}: there is no run yet")
    if choice.pipeline is None:
        return []
    if choice.keep_last is None and choice.older_than is None:
        raise UsageError(
            "--pipeline says which runs may go, and nothing says which of them do",
            fix="Add --keep-last N or --older-than AGE.",
        )
    raise _no_pipeline(choice.pipeline)


def _no_pipeline(name: str) -> NotFound:
    return NotFound(f"there is no run of a pipeline {name!r}", fix="upshift runs lists the runs.")
