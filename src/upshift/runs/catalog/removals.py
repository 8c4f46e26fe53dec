"""Runs that ``gc`` has removed from a bucket, on the machines that did not do it."""

from __future__ import annotations

from pathlib import Path

from upshift.runs.catalog.catalog import Catalog
from upshift.runtime.storage.objects.base import Version
from upshift.runtime.storage.records import safe, task_path
from upshift.runtime.storage.store import Store


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
    forget(catalog, store, gone)
    replica.removals_seen(Version(version))


def forget(catalog: Catalog | None, store: Store, gone: set[str]) -> None:
    """Forget runs here, but for the results of theirs that runs which stay have reused."""
    assert store.replica is not None
    kept = set() if catalog is None else {task for run, task in catalog.origins() if run not in gone}
    if catalog is not None and gone:
        catalog.forget_runs(sorted(gone), keep=kept)
    paths = set(map(task_path, kept))
    for run in gone:
        store.replica.forget_run(run, paths)
