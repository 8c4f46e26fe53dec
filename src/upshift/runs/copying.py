"""Copying runs from one store to another, in folders and in buckets.

::

    format        once, if the store is new
    blobs         all that a run's records name, each compared with its digest on the way
    records       of the run, and of tasks of other runs whose results it has
    run.json      last: from here on the run is there

Killed at any point, the next copy goes on: what is there already stays. Checkpoints belong to tasks that have
not ended, and stay behind with the runs that have not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import attrs

from upshift.errors import BlobDamaged, BlobMissing, NotFound, StoreError, UsageError, suggestion
from upshift.model.spec.codec import from_json
from upshift.runs.bucket_lease import BucketLease
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.checking import Contents, RunFiles, Tell, read_all, see_version, side_by_side
from upshift.runs.lease import BEAT, EXPIRY
from upshift.runs.needed import References
from upshift.runtime.storage.claims import Condemned
from upshift.runtime.storage.files import discard, make_folder, temporary
from upshift.runtime.storage.objects import Objects
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.records import ARRAY, REMOVED, STORE_VERSION, safe, unpack_array
from upshift.runtime.storage.replica import APPENDED, RUN_RECORD, blob_key, upload
from upshift.runtime.storage.store import Store


@attrs.define(kw_only=True)
class Copied:
    """What a copy did."""

    runs: list[str] = attrs.field(factory=list)  # those that the destination has now
    live: list[str] = attrs.field(factory=list)  # left out: they have not ended
    values: int = 0
    bytes: int = 0
    there: int = 0  # values that the destination had already
    problems: list[str] = attrs.field(factory=list)  # what the source lacks, or has damaged


def copy_store(
    source: Objects,
    destination: Objects,
    *,
    runs: Collection[str] = (),
    again: bool = False,
    tell: Tell = lambda what, done, of: None,
) -> Copied:
    """Copy runs, by default all, with everything that they refer to.

    Parameters
    ----------
    runs
        Ids, or prefixes of ids that no other run has.
    again
        Whether to copy what is there already, too.

    Raises
    ------
    NotFound
        The source has no such run.
    StoreUnavailable
        One of the stores cannot be read or written.
    """
    if source.address == destination.address:
        raise UsageError(
            f"source and destination are the same store: {source.address}", fix="Name another one."
        )
    see_version(source)
    see_version(destination, new=True)
    done = Copied()
    chosen = _chosen(RunFiles(source), runs, done)
    if isinstance(destination, FolderObjects):
        place: _Place = _FolderPlace(destination, again=again)
    else:
        place = _Place(destination, again=again)
    place.begin()
    values = Contents(
        source, lazily=bool(runs)
    )  # a second list of runs: those that are over have all files in it
    with place, tempfile.TemporaryDirectory(prefix="upshift-copy-") as drafts:
        for number, run in enumerate(sorted(chosen)):
            tell("copying runs", number, len(chosen))
            place.claim_run(run)
            _copy_run(run, values, place, Path(drafts), done)
    return done


class _Place:
    """Where a copy goes: a bucket."""

    def __init__(self, objects: Objects, *, again: bool) -> None:
        self.objects = objects
        self._again = again
        self._condemned = Condemned(objects)
        self._files: dict[str, Mapping[str, int]] = {}
        self.seen: set[bytes] = set()
        """Content that this copy has had a look at."""

    def __enter__(self) -> _Place:
        # gc waits for who has a lease, whatever it is for.
        self._lease = BucketLease(
            objects=self.objects,
            run=f"copy-{os.urandom(4).hex()}",
            record={"host": socket.gethostname()},
            beat=BEAT,
            expiry=EXPIRY,
        )
        self._lease.acquire(
            notice=lambda line: None,
            owned=lambda record: StoreError("another copy has the same name", fix="Try again."),
            monotonic=time.monotonic,
            sleep=time.sleep,
        )
        self._lease.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lease.release()

    def begin(self) -> None:
        """Make the store, if there is none."""
        self.objects.put("format", f"{STORE_VERSION}\n".encode(), absent=True)

    def claim_run(self, run: str) -> None:
        """Keep a run, and what it needs, from being removed while it is copied."""

    def has(self, digest: str, size: int) -> bool:
        """Whether the destination has a value already."""
        key = blob_key(digest)
        self._condemned.rescue([key])
        return not self._again and any(m.key == key and m.size == size for m in self.objects.list(key))

    def take(self, digest: str, path: Path) -> None:
        """Write a value to the destination."""
        upload(self.objects, blob_key(digest), str(path))

    def lacks(self, run: str, key: str, size: int) -> bool:
        """Whether a file is not there, or there in another length, or may have another content."""
        if run not in self._files:
            self._files[run] = {meta.key: meta.size for meta in self.objects.list(f"runs/{run}/")}
        same = self._files[run].get(key) == size
        return self._again or not same or not key.endswith((*APPENDED, ".result.json"))


class _FolderPlace(_Place):
    """Where a copy goes: a folder, in which others may work."""

    def __init__(self, objects: FolderObjects, *, again: bool) -> None:
        super().__init__(objects, again=again)
        self._store = Store(objects.root)
        self._held = contextlib.ExitStack()

    def __enter__(self) -> _Place:
        self._held.enter_context(self._store.claims.held())
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def begin(self) -> None:
        make_folder(self._store.temporaries)
        super().begin()

    def claim_run(self, run: str) -> None:
        self._store.claim_run(run)

    def has(self, digest: str, size: int) -> bool:
        if not self._store.find(digest) or self._again:
            return False
        try:
            self._store.check(digest, size)
        except (BlobDamaged, BlobMissing):
            return False
        return True

    def take(self, digest: str, path: Path) -> None:
        draft = Path(temporary(self._store.temporaries))
        try:
            FolderObjects(path.parent).download(path.name, draft)
            self._store.take(digest, draft)
        finally:
            discard(str(draft))


def _copy_run(run: str, values: Contents, place: _Place, drafts: Path, done: Copied) -> None:
    source, files = values.objects, values.runs.files[run]
    records = dict(read_all(source, [key for key in files if not key.endswith(APPENDED)]))
    references = References(values, needed=True)
    for key, content in records.items():
        references.add_record(key, content or b"")
    others = {
        key: size
        for task in references.task_paths()
        for key, size in values.runs.files.get(task.split("/")[0], {}).items()
        if key.startswith(f"runs/{task}.") and not key.startswith(f"runs/{run}/")
    }
    for key, content in read_all(source, [key for key in others if not key.endswith(APPENDED)]):
        references.add_record(key, content or b"")

    def copy_value(digest: bytes) -> tuple[int, bool] | str | None:
        found = values.find(digest)
        if found is None and digest not in references.needed:
            return None
        if found is not None and place.has(*found):
            return found[1], False
        try:
            with values.file(digest, drafts) as (name, path):
                place.take(name, path)
                return path.stat().st_size, True
        except (BlobMissing, BlobDamaged) as error:
            return f"run {run}: {error.what}" + (f": {error.why}" if error.why else "")

    new = references.blobs - place.seen
    place.seen |= new
    for result in side_by_side(copy_value, sorted(new)):
        if isinstance(result, str):
            done.problems.append(result)
        elif result is not None:
            size, copied = result
            done.values += copied
            done.bytes += size * copied
            done.there += not copied

    def copy_file(key: str) -> None:
        whose = key.split("/")[1]
        size = files.get(key, others.get(key, -1))
        if place.lacks(whose, key, size):
            content = source.get(key)
            if content is not None:
                place.objects.put(key, content.data)
                if key.endswith(ARRAY):  # a folder has each spec by itself
                    for name, text in unpack_array(bytes(content.data)).specs.items():
                        place.objects.put(f"{key.rpartition('/')[0]}/{name}", text.encode())

    last = f"runs/{run}/{RUN_RECORD}"
    for _ in side_by_side(copy_file, [*others, *(key for key in files if key != last)]):
        pass
    for other in {key.split("/")[1] for key in others}:
        # It marks results of a run that is not here itself, so that nobody takes it for one that has begun.
        if not any(place.objects.list(f"runs/{other}/{RUN_RECORD}")):
            place.objects.put(f"runs/{other}/{REMOVED}", b"{}", absent=True)
    content = records[last]
    assert content is not None
    place.objects.put(last, content)
    place.objects.delete([f"runs/{run}/{REMOVED}"])
    done.runs.append(run)


def _chosen(runs: RunFiles, named: Collection[str], done: Copied) -> list[str]:
    """The runs to copy that have ended; those that were named and have not are told."""
    every = [run for run, files in runs.files.items() if f"runs/{run}/{RUN_RECORD}" in files]
    chosen = {_named(name, every, runs.objects.address) for name in named} if named else set(every)
    ended = []
    for run in sorted(chosen):
        found = runs.objects.get(f"runs/{run}/{RUN_RECORD}")
        try:
            row = None if found is None else from_json(RunRow, bytes(found.data))
        except ValueError as error:
            done.problems.append(f"run {run}: its record cannot be read: {error}")
            continue
        if row is None or row.status in UNFINISHED or run in runs.live:
            done.live.append(run)
        else:
            ended.append(run)
    return ended


def _named(name: str, every: Iterable[str], address: str) -> str:
    every = list(every)
    found = [run for run in every if run == safe(name)] or [run for run in every if run.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(
            f"several run ids start with {name!r}: {', '.join(sorted(found)[:5])}", fix="Give more of it."
        )
    raise NotFound(f"no run in {address} has the id {name!r}", fix=suggestion(name, every))
