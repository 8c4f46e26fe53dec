"""Removing from a store in a bucket what no kept run refers to: the work of ``upshift gc`` there.

::

    1  runs that are to go: run.json becomes removed.json          from here on nobody reuses them
    2  read all records of all other runs                          see upshift.runs.bucket_survey
    3  condemn the rest, and look which engines are at work        see upshift.runtime.storage.claims
    4  read what was recorded since, and remove what is condemned and not referred to

While one of the engines of step 3 is at work, step 4 is left to the first ``gc`` after its end. Killed at any
point, the next ``gc`` goes on. One works at a time: it has a lease as engines have, ``leases/gc``.

Ages are by the clock of the bucket's server alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import attrs

from upshift.errors import RunOwned, StoreError, StoreUnavailable, UsageError
from upshift.model.spec.codec import from_json
from upshift.runs.bucket_lease import BucketLease, key_of, owner_of, seen_to_live
from upshift.runs.bucket_survey import DAY, Survey, digest_of_key, task_of
from upshift.runs.catalog.catalog import Catalog
from upshift.runs.catalog.opening import forget_here
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.collect import Collected, Tally, Tell
from upshift.runs.lease import BEAT, EXPIRY, here
from upshift.runs.needed import Claimed
from upshift.runtime.storage.claims import (
    CONDEMNED,
    EVERYBODY,
    IDLE,
    REMOVING,
    GcState,
    read_state,
    write_state,
)
from upshift.runtime.storage.objects import Meta, Version
from upshift.runtime.storage.records import REMOVED, safe, unpack_result
from upshift.runtime.storage.replica import PACK, RUN_RECORD, Replica
from upshift.runtime.storage.store import Store

GC = "gc"
"""What its lease is for, where engines have the id of a run."""
_MOST = 50_000
"""Blobs that are condemned at once: everybody who starts meanwhile reads their names."""
_MARKED = (RUN_RECORD, PACK)
"""What goes when a run is marked as removed."""
_BATCH = 1000
"""Objects that are removed between two looks whether the lease is still ours."""


def collect_bucket(
    store: Store,
    catalog: Catalog | None,
    *,
    forget: Collection[str] = (),
    exports_before: float | None = None,
    dry_run: bool = False,
    tell: Tell = lambda what, done, of: None,
) -> Collected:
    """Remove runs, and then what no run that is kept refers to; parameters and errors as for a folder.

    Exported pipelines count as runs: those exported longer than ``exports_before`` seconds ago go.
    """
    assert store.replica is not None
    work = _Collector(store, store.replica, catalog, exports_before, dry_run=dry_run, tell=tell)
    if dry_run:
        return work.foretell(forget)
    return work.run(forget)


class _Collector:
    def __init__(
        self,
        store: Store,
        replica: Replica,
        catalog: Catalog | None,
        exports_before: float | None,
        *,
        dry_run: bool,
        tell: Tell,
    ) -> None:
        self._store = store
        self._replica = replica
        self._objects = replica.objects
        self._catalog = catalog
        self._dry = dry_run
        self._tell = tell
        self._lease: BucketLease | None = None
        self._seen = Survey(store, replica, catalog, exports_before, tell)
        self._blobs: dict[str, Meta] = {}
        self._cleared: set[str] = set()  # removed runs of which nothing is left that may go
        self._done = Collected()

    def run(self, chosen: Collection[str]) -> Collected:
        with self._alone():
            asked = self._mark(chosen)
            self._remove_exports()
            state, version = read_state(self._objects)
            if state.phase != IDLE:
                self._list_blobs()
                state, version = self._finish(state, version, asked)
            if state.phase == IDLE:
                self._seen.look()
                self._list_blobs()
                blobs = self._seen.unneeded(self._blobs)
                while self._seen.gone() - self._cleared or blobs:
                    some, blobs = blobs[:_MOST], blobs[_MOST:]
                    state, version = self._condemn(some, version)
                    state, version = self._finish(state, version, asked)
                    if state.phase != IDLE:
                        self._done.later.add("values", sum(map(self._size_of, blobs)), len(blobs))
                        break
            self._sweep_checkpoints(self._seen.gone(), self._at_work())
            self._sweep_uploads()
        self._count_kept()
        return self._done

    def foretell(self, chosen: Collection[str]) -> Collected:
        """What :meth:`run` would do now, as far as that can be known without doing it."""
        self._seen.list_runs()
        at_work = self._at_work()
        self._done.live |= {run for run in chosen if safe(run) in at_work}
        going = {safe(run) for run in chosen} - at_work
        self._remove_exports()
        self._seen.read(going)
        self._list_blobs()
        blobs = self._seen.unneeded(self._blobs)
        tally = self._done.later if at_work else self._done.removed
        for run in sorted(self._seen.gone(going)):
            self._count_removed(run, self._keys_to_remove(run), tally, asked=run in going)
        tally.add("values", sum(map(self._size_of, blobs)), len(blobs))
        if tally.by_kind():
            self._done.waiting |= at_work
        self._sweep_checkpoints(self._seen.gone(going), at_work)
        self._sweep_uploads()
        self._count_kept(going)
        return self._done

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        def owned(record: Mapping[str, object]) -> UsageError:
            where = f"{record.get('host', 'another machine')} (process {record.get('pid')})"
            return UsageError(
                f"another gc works on the store {self._objects.address}",
                why=f"It is on {where}.",
                fix="Wait until it has ended.",
            )

        lease = BucketLease(objects=self._objects, run=GC, record=here(), beat=BEAT, expiry=EXPIRY)
        lease.acquire(
            notice=lambda line: self._tell(line, 0, None),
            owned=owned,
            monotonic=time.monotonic,
            sleep=time.sleep,
        )
        self._lease = lease
        lease.start()
        try:
            yield
        finally:
            lease.release()

    def _size_of(self, key: str) -> int:
        return self._blobs[key].size if key in self._blobs else 0

    def _confirm(self) -> None:
        """See that no other ``gc`` can have taken this one for dead."""
        if self._lease is not None and not self._lease.fresh:
            self._lease.renew()
            if self._lease.lost is not None:
                raise StoreUnavailable(
                    f"gc has stopped in {self._objects.address}",
                    why="It was silent for so long that another one took it for dead.",
                    fix="Run it again.",
                )

    # 1: runs that are to go

    def _mark(self, chosen: Collection[str]) -> set[str]:
        """Mark runs as removed; give those that are."""
        if not chosen:
            return set()
        self._seen.list_runs()
        at_work = self._at_work()
        marked = set()
        for run in sorted(chosen):
            record = self._objects.get(f"runs/{safe(run)}/{RUN_RECORD}")
            if safe(run) in at_work or not self._take(run):
                self._done.live.add(run)
                continue
            folder = f"runs/{safe(run)}"
            if record is not None:
                self._objects.put(f"{folder}/{REMOVED}", record.data)
            self._objects.delete([*(f"{folder}/{name}" for name in _MARKED), key_of(run)])
            marked.add(safe(run))
            files = self._seen.files.get(safe(run), {})
            size = sum(files[key].size for name in _MARKED if (key := f"{folder}/{name}") in files)
            self._done.removed.add("runs", size, 0)
        if self._catalog is not None and marked:
            kept = {task for run, task in self._catalog.origins() if safe(run) not in marked}
            self._catalog.forget_runs([run for run in chosen if safe(run) in marked], keep=kept)
        return marked

    def _take(self, run: str) -> bool:
        """Have the lease of a run, so that nobody resumes it; the one of a dead engine does not count."""
        lease = BucketLease(objects=self._objects, run=run, record=here(), beat=BEAT, expiry=0.0)
        try:
            lease.acquire(
                notice=lambda line: None,
                owned=lambda record: RunOwned(f"an engine owns run {run}"),
                monotonic=time.monotonic,
                sleep=time.sleep,
            )
        except RunOwned:
            return False
        return True

    def _remove_exports(self) -> None:
        old = self._seen.old_exports()
        self._done.removed.add("exports", sum(meta.size for meta in old), len(old))
        self._remove([meta.key for meta in old])

    def _list_blobs(self) -> None:
        if not self._blobs:
            self._tell("listing content", 0, None)
            self._blobs = {m.key: m for m in self._objects.list("blobs/") if digest_of_key(m.key) is not None}

    # 3: who may need what is condemned

    def _at_work(self) -> set[str]:
        """The runs with an engine, or with steps that go on without one, by the names of their folders."""
        found = set()
        for meta in self._objects.list("leases/"):
            run = meta.key.removeprefix("leases/")
            if run != GC and self._is_at_work(run, meta):
                found.add(run)
        for run, files in self._seen.files.items():
            news = (meta for key, meta in files.items() if key.startswith(f"runs/{run}/live/"))
            if (
                run not in found
                and any(not self._seen.is_old(meta) for meta in news)
                and self._is_unfinished(run)
            ):
                found.add(run)
        return found

    def _is_at_work(self, run: str, meta: Meta) -> bool:
        if seen_to_live(owner_of(run, self._objects)) is False or self._seen.is_old(meta):
            if not self._dry:
                self._objects.delete([meta.key])
            return False
        return True

    def _is_unfinished(self, run: str) -> bool:
        found = self._objects.get(f"runs/{run}/{RUN_RECORD}")
        try:
            return found is not None and from_json(RunRow, bytes(found.data)).status in UNFINISHED
        except ValueError:
            return True

    def _condemn(self, blobs: Collection[str], version: Version | None) -> tuple[GcState, Version]:
        runs = frozenset(self._seen.gone())
        new = GcState(phase=CONDEMNED, runs=runs, blobs=frozenset(blobs), engines=frozenset({EVERYBODY}))
        return new, self._write(new, version)

    # 4: what goes

    def _finish(
        self, state: GcState, version: Version | None, asked: Collection[str]
    ) -> tuple[GcState, Version | None]:
        """Remove what is condemned, if nobody is at work who may not know of it."""
        self._seen.list_runs()
        at_work = self._at_work()
        if state.phase == CONDEMNED:
            if EVERYBODY in state.engines:  # whoever begins from here on knows of it
                state, version = self._change(state, version, engines=frozenset(at_work))
            if state.engines & at_work:
                self._done.waiting |= state.engines & at_work
                self._done.later.add("values", sum(map(self._size_of, state.blobs)), len(state.blobs))
                self._count_later(state.runs, asked)
                return state, version
            self._seen.look()
            state, version = self._change(state, version, phase=REMOVING)
        else:
            self._seen.look()
        self._clear_runs(state.runs, asked)
        doomed = sorted(k for k in state.blobs & self._blobs.keys() if self._is_unneeded(k))
        self._done.removed.add("values", sum(map(self._size_of, doomed)), len(doomed))
        self._remove(doomed)
        self._remove_here(doomed)
        for key in doomed:
            del self._blobs[key]
        left = {
            run for run in self._seen.gone() if len(self._keys_to_remove(run)) < len(self._seen.files[run])
        }
        state = GcState(runs=frozenset(left))
        version = self._write(state, version)
        self._replica.removals_seen(version)
        return state, version

    def _is_unneeded(self, key: str) -> bool:
        return digest_of_key(key) not in self._seen.references.blobs

    def _clear_runs(self, runs: Collection[str], asked: Collection[str]) -> None:
        gone = self._seen.gone() & set(runs) - self._cleared
        for run in sorted(gone):
            keys = self._keys_to_remove(run)
            self._count_removed(run, keys, self._done.removed, asked=run in asked)
            self._remove(keys)
        self._cleared |= gone
        forget_here(self._catalog, self._store, gone)

    def _count_later(self, runs: Collection[str], asked: Collection[str]) -> None:
        self._seen.look()
        for run in sorted(self._seen.gone() & set(runs)):
            self._count_removed(run, self._keys_to_remove(run), self._done.later, asked=run in asked)

    def _change(
        self, state: GcState, version: Version | None, **changes: Any
    ) -> tuple[GcState, Version | None]:
        """Replace the state; in between, somebody may have taken content off the list."""
        while True:
            self._confirm()
            changed = attrs.evolve(state, **changes)
            new = write_state(self._objects, changed, version)
            if new is not None:
                return changed, new
            state, version = read_state(self._objects)

    def _write(self, state: GcState, version: Version | None) -> Version:
        self._confirm()
        new = write_state(self._objects, state, version)
        if new is None:
            raise StoreError(
                f"another gc works on the store {self._objects.address}", fix="Wait until it has ended."
            )
        return new

    def _keys_to_remove(self, run: str) -> list[str]:
        """The objects of a removed run that nobody has reused; with the mark, if nothing else is left."""
        wanted, marker = self._seen.references.task_paths(), f"runs/{run}/{REMOVED}"
        keys = [key for key in self._seen.files[run] if task_of(key) not in wanted]
        return [key for key in keys if key != marker] if len(keys) < len(self._seen.files[run]) else keys

    def _count_removed(self, run: str, keys: Collection[str], tally: Tally, *, asked: bool) -> None:
        files = self._seen.files[run]
        size = sum(files[key].size for key in keys if key != f"runs/{run}/{REMOVED}")
        stay = files.keys() - set(keys) - {f"runs/{run}/{REMOVED}"}
        self._done.kept.add("results", sum(files[key].size for key in stay), len(set(map(task_of, stay))))
        went = {task_of(key) or run for key in keys if key != f"runs/{run}/{REMOVED}"}
        if asked or run in went:
            tally.add("runs", size)
        elif went:
            tally.add("results", size, len(went))

    def _sweep_checkpoints(self, gone: Collection[str], at_work: Collection[str]) -> None:
        """Remove those of runs that were removed, and of tasks that have completed."""
        folders: dict[str, list[Meta]] = {}
        for meta in self._objects.list("checkpoints/"):
            folders.setdefault("/".join(meta.key.split("/")[1:4]), []).append(meta)
        for folder, metas in folders.items():
            run, step, index = (*folder.split("/"), "", "")[:3]
            if run in at_work or not (
                run in gone
                or (run not in self._seen.files and all(map(self._seen.is_old, metas)))
                or self._has_completed(run, f"runs/{run}/tasks/{step}/{index}.")
            ):
                continue
            self._done.removed.add("checkpoints", sum(meta.size for meta in metas))
            self._remove([meta.key for meta in metas])

    def _has_completed(self, run: str, base: str) -> bool:
        for key in self._seen.files.get(run, ()):
            if key.startswith(base) and key.endswith(".result.json"):
                found = self._objects.get(key)
                result = None if found is None else unpack_result(bytes(found.data), key)
                if result is not None and result.status == "completed":
                    return True
        return False

    def _sweep_uploads(self) -> None:
        for upload in self._objects.unfinished_uploads():
            if self._seen.now - upload.begun > DAY:
                self._done.removed.add("temporary", upload.size)
                if not self._dry:
                    upload.drop()

    def _remove(self, keys: Collection[str]) -> None:
        if self._dry:
            return
        rest = iter(keys)
        removed = 0
        while batch := list(itertools.islice(rest, _BATCH)):
            self._tell("removing", removed, len(keys))
            self._confirm()
            self._objects.delete(batch)
            removed += len(batch)

    def _remove_here(self, keys: Iterable[str]) -> None:
        """Remove content from this machine's copy as well, unless a process here needs it."""
        claimed = Claimed(self._store.address)
        claimed.look()
        for key in keys:
            if digest_of_key(key) not in claimed.blobs:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._store.address}/{key}")

    # Numbers

    def _count_kept(self, going: Collection[str] = ()) -> None:
        gone = self._seen.gone(going)
        for run in self._seen.files.keys() - gone:
            self._done.kept.add("runs", sum(meta.size for meta in self._seen.files[run].values()))
        for key, meta in self._blobs.items():
            if not self._is_unneeded(key):
                self._done.kept.add("values", meta.size)
        self._done.wanted = self._seen.references.blobs
