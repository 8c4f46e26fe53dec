"""``upshift gc``: which runs are to go, from which stores, and what killed processes left in the home."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

import attrs

from upshift.errors import NotFound, RunOwned, StoreError, StoreUnavailable, UpshiftError, UsageError
from upshift.images import cache
from upshift.model.configuration import Configuration, home
from upshift.model.settings.sizes import parse_size
from upshift.runs.catalog.catalog import Catalog, catalog_place, no_pipeline
from upshift.runs.catalog.opening import configured_stores, open_catalog
from upshift.runs.catalog.rebuild import Rebuilt, put_aside_if_damaged, rebuild
from upshift.runs.catalog.rows import RunRow
from upshift.runs.collect import ABANDONED, Collected, Tally, Tell, collect
from upshift.runs.collect_bucket import collect_bucket
from upshift.runs.lease import Lease, held, leases
from upshift.runs.needed import Claimed
from upshift.runs.publishing import publish_left
from upshift.runtime import marks
from upshift.runtime.storage import home_folders
from upshift.runtime.storage.files import available, stale
from upshift.runtime.storage.store import Store, open_store
from upshift.runtime.supervisor import server_files


@attrs.frozen(kw_only=True)
class Choice:
    """Which runs are to go. By default none."""

    runs: tuple[str, ...] = ()  # these, by id, prefix of one, or ``latest``; nothing else counts then
    pipeline: str | None = None  # only runs of this pipeline
    keep_last: int | None = None
    """All but the newest so many of each pipeline, and those with a value that has a tag."""
    older_than: float | None = None
    """Those that ended (or started, if they have no end) so many seconds ago. With ``keep_last``: only
    those of which both is true."""


@attrs.frozen(kw_only=True)
class Cleaned:
    """What ``gc`` did, or would do."""

    collected: Collected  # what was removed from the stores and from the home, and what is kept
    stores: tuple[str, ...]  # addresses of the stores that were cleaned
    missing: dict[str, int]
    """Addresses of stores that are not there, each with the number of runs that were to go."""
    failed: dict[str, UpshiftError] = attrs.field(factory=dict)
    """Addresses of stores where something was wrong. What was done there before may be known in part
    only."""


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
    """
    catalog = open_catalog(configuration)
    there = catalog.exists() or any(map(is_there, configured_stores(configuration)))
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
                if store.replica is not None:
                    for size in store.replica.trim(parse_size(configuration.bucket_cache), dry_run=dry_run):
                        total.removed.add("cached", size)
                    if not dry_run:
                        publish_left(store)
                known, forget = catalog if there else None, by_store[address]
                if store.replica is None:
                    total += collect(store, known, forget=forget, dry_run=dry_run, tell=tell)
                else:
                    before = (
                        choice.older_than if choice.pipeline is None and choice.keep_last is None else None
                    )
                    total += collect_bucket(
                        store, known, forget=forget, exports_before=before, dry_run=dry_run, tell=tell
                    )
        cleaned = [address for address in stores if address not in missing and address not in failed]
        used = [a for a in addresses if a not in missing or (there and a in catalog.stores())]
        total.removed += tidy(total.wanted, used, dry_run=dry_run)
        for address in cleaned:
            with _noted(failed, address):
                total.removed += tidy_leases(address, dry_run=dry_run)
        return Cleaned(
            collected=total,
            stores=tuple(cleaned),
            missing={address: runs for address, runs in missing.items() if runs},
            failed=failed,
        )
    finally:
        catalog.close()


def choose(choice: Choice, catalog: Catalog, now: float) -> list[RunRow]:
    """The runs that are to go, newest first."""
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
    """Make the catalog anew from the stores."""
    with contextlib.closing(Catalog(catalog_place(configuration.catalog))) as catalog:
        aside = put_aside_if_damaged(catalog) if catalog.exists() else None
        addresses = store_addresses(configuration, catalog if catalog.exists() else None)
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
    if store.replica is not None and store.replica.objects.get("format") is not None:
        return True
    return any((store.root / name).exists() for name in ("format", "runs", "blobs"))


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
        if _is_live(row.id, stores[row.store]):
            raise RunOwned(
                f"run {row.id} is live",
                why="An engine works on it, or a task of it still runs.",
                fix=f"Wait until it has ended, or stop it: upshift cancel {row.id}",
            )


def _is_live(run: str, store: Store) -> bool:
    if store.replica is not None:
        return held(run, store.address)
    claimed = Claimed(store.address)
    claimed.look()
    return run in claimed.runs


def _none(choice: Choice) -> list[RunRow]:
    """No run is to go, unless the choice makes no sense then."""
    if choice.runs:
        raise NotFound(f"no run has the id {choice.runs[0]!r}: there is no run yet")
    if choice.pipeline is None:
        return []
    if choice.keep_last is None and choice.older_than is None:
        raise UsageError(
            "--pipeline limits which runs are removed, and needs another option that selects them",
            fix="Add --keep-last N or --older-than AGE.",
        )
    raise NotFound(f"there is no run of a pipeline {choice.pipeline!r}", fix="upshift runs lists the runs.")


FORGOTTEN = 30 * 86_400.0
"""Seconds after which an answer that nobody has worked out anew is worked out again at its next use, what
images are made from counts as not used any more, and the log of a build that failed is old."""


def tidy(wanted: Collection[bytes], stores: Collection[str] = (), *, dry_run: bool) -> Tally:
    """Remove what is left over in the home but for the ``wanted`` content; give how much there was.

    Whatever a process that lives has, stays. An engine that lives has a lease in one of the ``stores``.
    """
    from upshift.backends.docker.container import containers_folder  # not where nothing is tidied up

    tally = Tally()
    if not home().is_dir():
        return tally
    with available("cleaned", str(home())):
        for folder in chain(home_folders.left_over(), home_folders.left_over(containers_folder())):
            size = _bytes(folder)
            if dry_run or home_folders.remove(folder):  # what another user has left there stays
                tally.add("scratch", size)
        for folder in home_folders.left_over_code(wanted, ABANDONED):
            tally.add("unpacked", _bytes(folder))
            if not dry_run:
                home_folders.remove_code(folder)
        for path in [*_drafts(), *_memos()]:
            _remove(path, "memos", tally, dry_run=dry_run)
        for path in _of_images():
            _remove(path, "images", tally, dry_run=dry_run)
        for path in _logs():
            _remove(path, "logs", tally, dry_run=dry_run)
        for place in _dead_servers():
            for file in (place.errors, place.socket, place.lock):
                _remove(str(file), "processes", tally, dry_run=dry_run)
        for engine in _entries("engines"):
            if not any(held(engine.stem, store) for store in stores):
                _remove(str(engine), "processes", tally, dry_run=dry_run)
    return tally


def tidy_leases(store: str, *, dry_run: bool) -> Tally:
    """Remove the leases of dead engines from a store; give how much there was."""
    tally = Tally()
    for run in leases(store):
        if not held(run, store):
            tally.add("processes", _bytes(f"{store}/leases/{run}"))
            if not dry_run:
                with contextlib.suppress(RunOwned, StoreUnavailable):  # somebody has just taken it
                    Lease(run, store).release()
    return tally


def _memos() -> Iterator[str]:
    for folder in ("memo", "fingerprints"):
        for path in _entries(folder):
            with contextlib.suppress(FileNotFoundError):
                limit = ABANDONED if path.name.startswith(".") else FORGOTTEN
                if _age(path) > limit:
                    yield str(path)


def _of_images() -> Iterator[str]:
    """What was kept to make and check images, and no image has needed for long."""
    for kind in cache.KINDS:
        for folder, _, names in os.walk(cache.folder(kind), topdown=False):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if _age(path) > (ABANDONED if name.startswith(".") else FORGOTTEN):
                        yield str(path)


def _logs() -> Iterator[str]:
    """Of builds that failed, and that nobody looks into any more."""
    for path in _entries("logs/builds"):
        with contextlib.suppress(FileNotFoundError):
            if _age(path) > FORGOTTEN:
                yield str(path)


def _drafts() -> Iterator[str]:
    """Catalogs that somebody was killed making."""
    for path, _ in stale(str(home()), ABANDONED):
        if os.path.basename(path).startswith(".catalog.db."):
            yield path


def _dead_servers() -> Iterator[server_files.ServerFiles]:
    """Fork servers that died, with everything below them. A dead one of which something lives is left to
    whoever resumes its run, and kills that first."""
    for path in _entries("forkservers"):
        place = server_files.ServerFiles(path.stem)
        if path.suffix != ".lock" or _age(path) < ABANDONED:  # a young one may be about to lock it
            continue
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if not any(marks.marked(place.name)):
                yield place


def _remove(path: str, kind: str, tally: Tally, *, dry_run: bool) -> None:
    with contextlib.suppress(FileNotFoundError):
        size = os.lstat(path).st_size
        if not dry_run:
            os.unlink(path)
        tally.add(kind, size)


def _entries(folder: str) -> list[Path]:
    try:
        return sorted((home() / folder).iterdir())
    except FileNotFoundError:
        return []


def _age(path: Path) -> float:
    return time.time() - path.lstat().st_ctime


def _bytes(folder: str) -> int:
    """Of all that can be seen of it: it may go meanwhile, and hold folders that a step closed."""
    size = 0
    for path, _, names in os.walk(folder):
        size += sum(_size(os.path.join(path, name)) for name in names)
    return size


def _size(path: str | Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # somebody else was faster
        return 0
