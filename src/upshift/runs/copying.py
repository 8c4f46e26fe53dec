"""Copying runs from one store to another, and looking whether a store is whole, in folders and in buckets.

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
import json
import mmap
import os
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import attrs

from upshift.errors import (
    BlobDamaged,
    BlobMissing,
    NotFound,
    NotSerializable,
    StoreError,
    UsageError,
    suggestion,
)
from upshift.model.spec.codec import from_json
from upshift.runs.catalog.rows import UNFINISHED, RunRow
from upshift.runs.stores.bucket_lease import BucketLease
from upshift.runs.stores.claimed import Claimed
from upshift.runs.stores.lease import BEAT, EXPIRY
from upshift.runs.stores.references import References
from upshift.runtime.storage.blobs import digest_of_file
from upshift.runtime.storage.condemned import Condemned
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.files import discard, make_folder, temporary
from upshift.runtime.storage.format import VERSION, refuse_version
from upshift.runtime.storage.objects.base import Objects
from upshift.runtime.storage.objects.folder import FolderObjects
from upshift.runtime.storage.records import ARRAY, REMOVED, safe, unpack_array, unpack_result, unpack_spec
from upshift.runtime.storage.store import Store

_AT_ONCE = 8
_RUN = "run.json"
_APPENDED = (".log", ".series", ".metrics", ".cards", ".trouble")
"""Files of attempts that are written by one process to their end: of equal length is equal content."""

Tell = Callable[[str, int, int | None], None]
T = TypeVar("T")
R = TypeVar("R")


@attrs.define(kw_only=True)
class Copied:
    """What a copy did."""

    runs: list[str] = attrs.field(factory=list)  # those that the destination has now
    live: list[str] = attrs.field(factory=list)  # left out: they have not ended
    values: int = 0
    bytes: int = 0
    there: int = 0  # values that the destination had already
    problems: list[str] = attrs.field(factory=list)  # what the source lacks, or has damaged


@attrs.define(kw_only=True)
class Checked:
    """What a store holds, and what is wrong with it."""

    runs: int = 0
    values: int = 0
    bytes: int = 0
    problems: list[str] = attrs.field(factory=list)


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
    _see_version(source)
    _see_version(destination, new=True)
    done = Copied()
    chosen = _chosen(_Runs(source), runs, done)
    if isinstance(destination, FolderObjects):
        place: _Place = _FolderPlace(destination, again=again)
    else:
        place = _Place(destination, again=again)
    place.begin()
    values = _Values(source, lazily=bool(runs))
    with place, tempfile.TemporaryDirectory(prefix="upshift-copy-") as drafts:
        for number, run in enumerate(sorted(chosen)):
            tell("copying runs", number, len(chosen))
            place.claim_run(run)
            _copy_run(run, values, place, Path(drafts), done)
    return done


def check_store(objects: Objects, *, tell: Tell = lambda what, done, of: None) -> Checked:
    """Read everything in a store, and see that it is whole and what it should be.

    Raises
    ------
    StoreUnavailable
        The store cannot be read.
    """
    _see_version(objects)
    values = _Values(objects, lazily=False)
    done = Checked(values=len(values.known), bytes=sum(size for _, size in values.known.values()))
    needed: dict[bytes, str] = {}
    runs = _Runs(objects)
    for number, run in enumerate(sorted(runs.files)):
        tell("reading the records of runs", number, len(runs.files))
        if f"runs/{run}/{_RUN}" not in runs.files[run]:
            continue
        done.runs += 1
        for key, content in _read_all(objects, runs.files[run]):
            if (problem := _wrong_with(key, content)) is not None:
                done.problems.append(f"{key}: {problem}")
            elif content is not None:
                references = References(values, needed=True)
                with contextlib.suppress(NotSerializable):  # of a serializer that is not installed here
                    references.add_record(key, content)
                for digest in references.needed:
                    needed.setdefault(digest, key)
                for task in sorted(references.task_paths()):
                    if not any(
                        name.startswith(f"runs/{task}.") for name in runs.files.get(task.split("/")[0], ())
                    ):
                        done.problems.append(f"{key}: the results of {task} are missing")
    done.problems += [
        f"blob {digest.hex()} is missing; {key} needs it"
        for digest, key in needed.items()
        if digest not in values.known
    ]
    with tempfile.TemporaryDirectory(prefix="upshift-check-") as drafts:

        def compare(digest: bytes) -> str | None:
            try:
                with values.file(digest, Path(drafts)):
                    return None
            except (BlobDamaged, BlobMissing) as error:
                for_whom = f"; {needed[digest]} needs it" if digest in needed else ""
                return f"blob {digest.hex()} is damaged: {error.why or error.what}{for_whom}"

        for number, wrong in enumerate(_side_by_side(compare, sorted(values.known))):
            tell("comparing values with their digests", number, len(values.known))
            if wrong is not None:
                done.problems.append(wrong)
    return done


class _Runs:
    """The files of runs in a store, by the name of the run's folder; each with its size."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.files: dict[str, dict[str, int]] = {}
        for meta in objects.list("runs/"):
            self.files.setdefault(meta.key.split("/")[1], {})[meta.key] = meta.size
        self.live: set[str] = set()
        if isinstance(objects, FolderObjects) and self.files:
            claimed = Claimed(objects.address)
            claimed.look()
            self.live = claimed.runs


class _Values:
    """The content of a store: what :class:`References` follows, and what is copied."""

    def __init__(self, objects: Objects, *, lazily: bool) -> None:
        self.objects = objects
        self._lazily = lazily
        self.runs = _Runs(objects)
        self.known: dict[bytes, tuple[str, int]] = {}
        """By the bytes of the digest: the digest itself, and the size of the content."""
        if not lazily:
            self._list("blobs/")

    def find(self, digest: bytes) -> tuple[str, int] | None:
        """The whole digest, and the size of its content; None: it is not there."""
        if digest not in self.known and self._lazily:
            hexadecimal = digest.hex()
            for name in ("blake3", "sha256"):
                self._list(f"blobs/{name}/{hexadecimal[:2]}/{hexadecimal[2:]}")
        return self.known.get(digest)

    def read(self, digest: str, /) -> memoryview:
        """The content of a blob that names other content, and is small."""
        found = self.objects.get(_key(digest))
        if found is None:
            raise BlobMissing(f"content {digest} is not in the store", where=self.objects.address)
        return found.data

    @contextlib.contextmanager
    def file(self, digest: bytes, folder: Path) -> Iterator[tuple[str, Path]]:
        """The digest, and a file with its content, which was compared, for as long as this block lasts."""
        found = self.find(digest)
        if found is None:
            raise BlobMissing(f"content {digest.hex()} is not in the store", where=self.objects.address)
        name, _ = found
        if isinstance(self.objects, FolderObjects):
            path = self.objects.root / _key(name)
            self._compare(name, path)
            yield name, path
            return
        path = folder / f"{os.urandom(8).hex()}"
        try:
            if self.objects.download(_key(name), path) is None:
                raise BlobMissing(f"content {name} is not in the store", where=self.objects.address)
            self._compare(name, path)
            yield name, path
        finally:
            discard(str(path))

    def _compare(self, digest: str, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                found = digest_of_file(file.fileno(), os.fstat(file.fileno()).st_size, split(digest)[0])
        except FileNotFoundError:
            raise BlobMissing(f"content {digest} is not in the store", where=self.objects.address) from None
        if found not in (digest, None):
            raise BlobDamaged(
                f"content {digest} is damaged",
                where=f"{self.objects.address}/{_key(digest)}",
                why=f"its content has the digest {found}",
            )

    def _list(self, prefix: str) -> None:
        for meta in self.objects.list(prefix):
            parts = meta.key.split("/")
            with contextlib.suppress(ValueError):  # nothing that Upshift has put there
                digest = f"{parts[1]}:{''.join(parts[2:])}"
                self.known[bytes.fromhex(split(digest)[1])] = (digest, meta.size)


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
        self.objects.put("format", f"{VERSION}\n".encode(), absent=True)

    def claim_run(self, run: str) -> None:
        """Keep a run, and what it needs, from being removed while it is copied."""

    def has(self, digest: str, size: int) -> bool:
        """Whether the destination has a value already."""
        key = _key(digest)
        self._condemned.rescue([key])
        return not self._again and any(m.key == key and m.size == size for m in self.objects.list(key))

    def take(self, digest: str, path: Path) -> None:
        """Write a value to the destination."""
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                self.objects.upload(_key(digest), [])
                return
            # Not closed here: an error on the way may keep a view of it for a while.
            self.objects.upload(
                _key(digest), [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))]
            )

    def lacks(self, run: str, key: str, size: int) -> bool:
        """Whether a file is not there, or there in another length, or may have another content."""
        if run not in self._files:
            self._files[run] = {meta.key: meta.size for meta in self.objects.list(f"runs/{run}/")}
        same = self._files[run].get(key) == size
        return self._again or not same or not (key.endswith(_APPENDED) or key.endswith(".result.json"))


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


def _copy_run(run: str, values: _Values, place: _Place, drafts: Path, done: Copied) -> None:
    source, files = values.objects, values.runs.files[run]
    records = dict(_read_all(source, [key for key in files if not key.endswith(_APPENDED)]))
    references = References(values, needed=True)
    for key, content in records.items():
        references.add_record(key, content or b"")
    others = {
        key: size
        for task in references.task_paths()
        for key, size in values.runs.files.get(task.split("/")[0], {}).items()
        if key.startswith(f"runs/{task}.") and not key.startswith(f"runs/{run}/")
    }
    for key, content in _read_all(source, [key for key in others if not key.endswith(_APPENDED)]):
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
    for result in _side_by_side(copy_value, sorted(new)):
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

    last = f"runs/{run}/{_RUN}"
    for _ in _side_by_side(copy_file, [*others, *(key for key in files if key != last)]):
        pass
    for other in {key.split("/")[1] for key in others}:
        # It marks results of a run that is not here itself, so that nobody takes it for one that has begun.
        if not any(place.objects.list(f"runs/{other}/{_RUN}")):
            place.objects.put(f"runs/{other}/{REMOVED}", b"{}", absent=True)
    content = records[last]
    assert content is not None
    place.objects.put(last, content)
    place.objects.delete([f"runs/{run}/{REMOVED}"])
    done.runs.append(run)


def _chosen(runs: _Runs, named: Collection[str], done: Copied) -> list[str]:
    """The runs to copy that have ended; those that were named and have not are told."""
    every = [run for run, files in runs.files.items() if f"runs/{run}/{_RUN}" in files]
    chosen = {_named(name, every, runs.objects.address) for name in named} if named else set(every)
    ended = []
    for run in sorted(chosen):
        found = runs.objects.get(f"runs/{run}/{_RUN}")
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
            f"several runs begin with {name!r}: {', '.join(sorted(found)[:5])}", fix="Give more of it."
        )
    raise NotFound(f"no run in {address} has the id {name!r}", fix=suggestion(name, every))


def _see_version(objects: Objects, *, new: bool = False) -> None:
    found = objects.get("format")
    if found is None and not new:
        if next(objects.list("runs/"), next(objects.list("blobs/"), None)) is None:
            raise NotFound(f"there is no store {objects.address}", fix="See that its address is right.")
    elif found is not None:
        refuse_version(bytes(found.data).decode("ascii", "replace").strip(), objects.address)


def _wrong_with(key: str, content: bytes | None) -> str | None:
    """What is wrong with a record; None: nothing."""
    if content is None:
        return "it is missing"
    try:
        if key.endswith(".result.json"):
            return "it does not match its checksum" if unpack_result(content, key) is None else None
        if key.endswith(".spec.json"):
            unpack_spec(content, key)
        elif key.endswith(ARRAY):
            for text in unpack_array(content).specs.values():
                unpack_spec(text.encode(), key)
        elif key.endswith(f"/{_RUN}"):
            from_json(RunRow, content)
        elif key.endswith(".json"):
            json.loads(content)
    except (ValueError, StoreError) as error:
        return f"it cannot be read: {error if isinstance(error, ValueError) else error.in_short}"
    return None


def _read_all(objects: Objects, keys: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    def read(key: str) -> tuple[str, bytes | None]:
        found = objects.get(key)
        return key, None if found is None else bytes(found.data)

    return _side_by_side(read, sorted(keys))


def _side_by_side(work: Callable[[T], R], items: Collection[T]) -> Iterator[R]:
    """What ``work`` makes of each item, in order, several at once."""
    if not items:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _key(digest: str) -> str:
    name, hexadecimal = split(digest)
    return f"blobs/{name}/{hexadecimal[:2]}/{hexadecimal[2:]}"
