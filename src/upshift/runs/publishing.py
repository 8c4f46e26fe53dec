"""A run in a bucket: its machine publishes what the run leaves in the folder of the store, while it works and
when it has ended; other machines bring its logs from there while they grow.

::

    of an attempt     content, then spec, logs and curves, and the result last     soon after it is there
    of the run        content, then its other records, and ``run.json`` last
    at its end        the same, and before ``run.json`` all records in one object

So whoever finds a result in the bucket finds all that it names, and whoever finds a run that has ended finds
all of it. What an engine that was killed had not published is published by the next one of this machine.

Specs and results are put where there are none: of two engines that take themselves for the owner of a run the
first one counts. ``run.json`` replaces exactly the version that this machine has put last.

Content goes there once: whoever publishes a run, and whoever gives its tasks to a cluster, share the
:class:`Uploads` of its bucket.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from upshift.errors import BlobMissing, LeaseLost, RunOwned, StoreUnavailable, UpshiftError
from upshift.runs.lease import Lease
from upshift.runs.needed import References
from upshift.runtime.storage.claims import removed
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.files import Signature, signature_of
from upshift.runtime.storage.live import LiveBucket
from upshift.runtime.storage.records import REMOVED, live_folder, safe, unpack_result
from upshift.runtime.storage.replica import (
    APPENDED,
    OVER,
    PACK,
    RUN_RECORD,
    Note,
    Replica,
    blob_key,
    digest_of,
)
from upshift.runtime.storage.store import Store

_LOOKED_FOR = 1 << 20
"""Bytes from which on it is asked first whether the bucket has content already."""
_ALGORITHMS = ("blake3", "sha256")


class Uploads:
    """What goes into one bucket; safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        assert store.replica is not None
        self._store = store
        self._replica: Replica = store.replica
        self._blobs: dict[bytes, Future[None]] = {}
        self._guard = threading.Lock()

    def put(self, path: str, content: bytes) -> References:
        """Have the bucket hold all content that a record refers to.

        Raises
        ------
        BlobMissing
            It is neither here nor there.
        """
        references = References(self._store, needed=True)
        references.add_record(path, content)
        self._rescue(references.blobs)
        for digest in references.blobs:
            self._put_blob(digest, needed=digest in references.needed)
        return references

    def put_blobs(self, digests: Iterable[str]) -> None:
        """Have the bucket hold these blobs."""
        wanted = [bytes.fromhex(split(digest)[1]) for digest in digests]
        self._rescue(wanted)
        for digest in wanted:
            self._put_blob(digest, needed=True)

    def found(self, content: bytes) -> None:
        """A node has put all content that a record refers to."""
        references = References(self._store)
        references.add(content)
        with self._guard:
            for digest in references.blobs - self._blobs.keys():
                self._blobs[digest] = Future()
                self._blobs[digest].set_result(None)

    def _rescue(self, digests: Collection[bytes]) -> None:
        """See that ``gc`` removes none of these."""
        if digests:
            keys = [blob_key(f"{name}:{digest.hex()}") for digest in digests for name in _ALGORITHMS]
            self._replica.condemned.rescue(keys)

    def _put_blob(self, digest: bytes, *, needed: bool) -> None:
        """Have the bucket hold a blob, once; who needs it too waits for whoever puts it."""
        with self._guard:
            done = self._blobs.get(digest)
            mine = done is None
            if done is None:
                done = self._blobs[digest] = Future()
        if not mine:
            done.result()
            return
        try:
            self._put_one(digest.hex(), needed=needed)
        except BaseException as error:
            with self._guard:
                del self._blobs[digest]
            done.set_exception(error)
            raise
        done.set_result(None)

    def _put_one(self, hexadecimal: str, *, needed: bool) -> None:
        digests = [f"{name}:{hexadecimal}" for name in _ALGORITHMS]
        for digest in digests:
            path = f"{self._store.address}/{blob_key(digest)}"
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(path).st_size
                if size < _LOOKED_FOR or self._size_of(digest) != size:
                    self._store.check(digest, size)
                    self._replica.upload(blob_key(digest), path)
                return
        if needed and not any(self._is_there(digest) for digest in digests):
            raise BlobMissing(
                f"content {digests[0]} is neither in this machine's copy of the store nor in the bucket",
                where=self._replica.address,
                fix="Run again: the step that made it runs again.",
            )

    def _is_there(self, digest: str) -> bool:
        """Whether the bucket has a blob, though it may not have had it when it was listed."""
        return self._size_of(digest) is not None or any(
            meta.key == blob_key(digest) for meta in self._replica.objects.list(blob_key(digest))
        )

    def _size_of(self, digest: str) -> int | None:
        with self._guard:
            return self._replica.size_of(digest)


_known: weakref.WeakValueDictionary[str, Uploads] = weakref.WeakValueDictionary()


def uploads_of(store: Store) -> Uploads:
    """What goes into the bucket of a store: the same for all of this process that work with it."""
    found = _known.get(store.address)
    if found is None:
        found = _known[store.address] = Uploads(store)
    return found


_EVERY = 2.0
"""Seconds between two looks for what is new; more, where the looks take long or much of a CPU."""
_LIVE_EVERY = 5.0
"""Seconds between two times that the log of an attempt at work is put."""
_LIVE_WHOLE = 1 << 20
"""Bytes up to which it is put each time; a longer one when it has grown by a quarter."""
_AT_ONCE = 8


class Publisher:
    """Publishes one run; ``tell`` is told when the bucket cannot be reached, and when it can be again."""

    def __init__(self, store: Store, run: str, lease: Lease, tell: Callable[[str], None]) -> None:
        assert store.replica is not None
        self._store = store
        self.replica: Replica = store.replica
        self._run = run
        self._lease = lease
        self._tell = tell
        self._folder = f"runs/{safe(run)}"
        self._there: dict[str, int] = {}  # what the bucket had when this began: bytes, by key
        self._put: dict[str, Signature | None] = {}
        self._live: dict[str, tuple[float, int]] = {}
        self._done: set[str] = set()
        self._own: set[str] = set()  # specs of attempts on this machine
        self._at_nodes = False  # whether nodes of a cluster have published attempts
        self._uploads = uploads_of(store)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._unreachable = False

    def begin(self, *, known: bool) -> None:
        """Note that the bucket will lack something of the run; ``known``: it may have some of it."""
        found = None
        if known:
            self._there = {meta.key: meta.size for meta in self.replica.objects.list(f"{self._folder}/")}
            found = self.replica.objects.get(f"{self._folder}/{RUN_RECORD}")
            if found is None and f"{self._folder}/{REMOVED}" in self._there:
                raise removed(self._run)
        self.replica.write_note(self._run, Note() if found is None else Note(version=found.version))

    def start(self) -> None:
        """Publish from now on what is new; this starts threads."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="upshift-publisher", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Publish no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def finish(self) -> None:
        """Publish what is left.

        Raises
        ------
        LeaseLost
            Somebody else has the run.
        StoreUnavailable
            The bucket cannot be reached.
        """
        self.stop()
        self._lease.start()
        self._lease.confirm()
        self.publish()
        self.replica.forget_note(self._run)

    def publish(self) -> None:
        """Publish what is new."""
        record = self._store.read_record(self._run, RUN_RECORD)  # first: all that it says is there by now
        over = record is not None and json.loads(record).get("status") in OVER
        self._lease.renew()  # only whether it was seen to be lost
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upshift-publisher") as pool:
            work = [
                pool.submit(self._put_attempt, folder, base, names)
                for folder, base, names in self._attempts()
            ]
            done, waiting = wait(work, return_when=FIRST_EXCEPTION)
            if waiting:  # nobody has to be told of each by itself
                pool.shutdown(cancel_futures=True)
        for one in done:
            one.result()
        self._put_records(pack=over)
        if record is not None:
            self._put_run(record)
        if over and self._at_nodes:  # what nobody has heard, since its end was seen otherwise
            objects = self.replica.objects
            objects.delete([meta.key for meta in objects.list(f"{live_folder(self._run)}/")])

    def _work(self) -> None:
        pause = _EVERY
        while not self._ended.wait(pause):
            if not self._lease.fresh:
                continue
            begun, worked = time.monotonic(), time.thread_time()
            try:
                self.publish()
                if self._unreachable:
                    self._unreachable = False
                    self._tell(f"{self.replica.address} can be reached again")
            except LeaseLost:  # the engine hears of it where it shows that it lives
                return
            except StoreUnavailable as error:
                if not self._unreachable:
                    self._unreachable = True
                    why = error.why or error.what
                    self._tell(f"{self.replica.address} cannot be reached: {why}; the run continues")
            except UpshiftError as error:  # whoever ends the run raises it
                self._tell(f"run {self._run} is not published: {error.what}")
                return
            # Looking at many tasks must not take the engine's CPU; waiting for a slow bucket takes none.
            took = 0.0 if self._unreachable else time.monotonic() - begun
            pause = max(_EVERY, took, 10 * (time.thread_time() - worked))

    # Attempts

    def _attempts(self) -> Iterator[tuple[str, str, list[str]]]:
        """The attempts not wholly published: folder, what the names of their files begin with, the names."""
        root = f"{self._store.address}/{self._folder}/tasks"
        for step in _listed(root):
            found: dict[str, list[str]] = {}
            for name in _listed(f"{root}/{step}"):
                index, _, rest = name.partition(".")
                found.setdefault(f"{index}.{rest.partition('.')[0]}.", []).append(name)
            for base, names in sorted(found.items()):
                folder = f"{self._folder}/tasks/{step}"
                if f"{folder}/{base}" not in self._done:
                    yield folder, base, names

    def _put_attempt(self, folder: str, base: str, names: Sequence[str]) -> None:
        """Publish an attempt: all of it, if it has ended; else what it has logged so far."""
        result, spec = (f"{folder}/{base}{ending}" for ending in ("result.json", "spec.json"))
        asked = None if spec in self._there and spec in self._own else self._read(spec)
        if asked is not None and json.loads(asked)["store"] == self.replica.address:
            self._done.add(f"{folder}/{base}")  # its node publishes it, and its backend has put the spec
            self._at_nodes = True
            return
        content = self._read(result)
        ended = content is not None and unpack_result(content, result) is not None
        new = content is not None and self._there.get(result) != len(content)
        if content is not None and ended and new:
            self._uploads.put(result, content)
        self._own.add(spec)
        if spec not in self._there and asked is not None:
            self._uploads.put(spec, asked)
            self._create(spec, asked)
        for name in names:
            if name.endswith(APPENDED):
                self._put_appended(f"{folder}/{name}", ended=ended)
        if content is not None and ended:
            if new:
                self._create(result, content)
            self._done.add(f"{folder}/{base}")

    def _put_appended(self, key: str, *, ended: bool) -> None:
        path, now = f"{self._store.address}/{key}", time.monotonic()
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return
        when, before = self._live.setdefault(key, (now, self._there.get(key, 0)))
        if size == before:
            return
        due = now - when >= _LIVE_EVERY and (size <= _LIVE_WHOLE or size >= before * 5 // 4)
        if ended or due:
            with contextlib.suppress(FileNotFoundError):
                self.replica.upload(key, path)
                self._live[key] = now, size

    def _create(self, key: str, content: bytes) -> None:
        """Put a record that never changes; if there is another one, that one counts here as well."""
        if self.replica.objects.put(key, content, absent=True) is None:
            found = self.replica.objects.get(key)
            if found is not None and bytes(found.data) != content:
                self.replica.replace_record(key, bytes(found.data))
        self._there[key] = len(content)

    # The run

    def _put_records(self, *, pack: bool) -> None:
        packed: dict[str, str] = {}
        for name in _listed(f"{self._store.address}/{self._folder}"):
            key = f"{self._folder}/{name}"
            if name.endswith(APPENDED):  # what an engine prints that was submitted
                self._put_appended(key, ended=pack)
            signature = signature_of(f"{self._store.address}/{key}")
            if not name.endswith(".json") or name in (RUN_RECORD, REMOVED) or signature == self._put.get(key):
                continue
            content = self._read(key)
            if content is not None:
                references = self._uploads.put(key, content)
                for task in references.task_paths():
                    self._put_origin(task)
                self.replica.objects.put(key, content)
                self._put[key] = signature
        if pack:
            for key in self._all_records():
                content = self._read(key)
                if content is not None:
                    text = content.decode("utf-8", "surrogateescape")
                    packed[key.removeprefix(f"{self._folder}/")] = text
            body = gzip.compress(json.dumps(packed).encode(), compresslevel=6, mtime=0)
            self.replica.objects.upload(f"{self._folder}/{PACK}", [body])

    def _all_records(self) -> Iterator[str]:
        root = f"{self._store.address}/{self._folder}"
        for name in _listed(root):
            if name.endswith(".json") and name not in (RUN_RECORD, REMOVED):
                yield f"{self._folder}/{name}"
        for step in _listed(f"{root}/tasks"):
            for name in _listed(f"{root}/tasks/{step}"):
                if name.endswith((".result.json", ".spec.json")):
                    yield f"{self._folder}/tasks/{step}/{name}"

    def _put_origin(self, task: str) -> None:
        """Have the bucket hold a result of another run: the engine of that may not have put it yet."""
        folder, _, index = f"runs/{task}".rpartition("/")
        if self.replica.note(folder.split("/")[1]) is None:
            return
        found: dict[str, list[str]] = {}
        for name in _listed(f"{self._store.address}/{folder}"):
            if name.startswith(f"{index}."):
                found.setdefault(f"{index}.{name.split('.')[1]}.", []).append(name)
        for base, names in found.items():
            if f"{base}result.json" in names:
                self._put_attempt(folder, base, names)

    def _put_run(self, content: bytes) -> None:
        key = f"{self._folder}/{RUN_RECORD}"
        note = self.replica.note(self._run) or Note()
        digest = digest_of(content)
        if note.pending == digest and note.version is not None and self._put.get(key) is not None:
            return
        self._uploads.put(key, content)
        self.replica.write_note(self._run, Note(note.version, digest))
        absent = note.version is None
        version = self.replica.objects.put(key, content, absent=absent, match=note.version)
        if version is None:
            found = self.replica.objects.get(key)
            if found is None or bytes(found.data) != content:
                raise LeaseLost(
                    f"this engine does not own run {self._run} any more, and stops",
                    why=f"Another engine has written its record in {self.replica.address}.",
                    fix=f"See the state of the run: upshift show {self._run}",
                )
            version = found.version
        self.replica.write_note(self._run, Note(version, digest))
        self._put[key] = (0, 0, 0, 0)

    def _read(self, key: str) -> bytes | None:
        try:
            return Path(self._store.address, key).read_bytes()
        except FileNotFoundError:
            return None


@contextlib.contextmanager
def published(store: Store, run: str, lease: Lease | None = None) -> Iterator[None]:
    """Within, records of a run without an engine are written; after it, a bucket has them as well."""
    if store.replica is None:
        yield
        return
    with contextlib.nullcontext(lease) if lease is not None else Lease(run, store.address) as held:
        publisher = Publisher(store, run, held, tell=lambda line: None)
        publisher.begin(known=True)
        yield
        publisher.finish()


def publish_left(store: Store, tell: Callable[[str], None] = lambda line: None) -> None:
    """Publish what engines of this machine that were killed, or could not reach the bucket, have left."""
    for run in store.replica.unpublished() if store.replica is not None else ():
        try:
            with Lease(run, store.address) as lease:
                store.bring_run(run)  # if somebody has resumed it elsewhere, that counts
                if store.replica is not None and store.replica.note(run) is not None:
                    publisher = Publisher(store, run, lease, tell)
                    publisher.begin(known=True)
                    publisher.finish()
                    tell(f"what was left of run {run} is in {store.replica.address} now")
        except (RunOwned, LeaseLost):  # it is at work, here or elsewhere
            continue
        except UpshiftError as error:
            tell(f"run {run} could not be published: {error.what}")


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


_LOOK_EVERY = 2.0
"""Seconds between two looks at the bucket: one list each, or two where nodes say how they go."""


class Elsewhere:
    """Brings the logs of another machine's run, and what its nodes tell of theirs, into files of this one."""

    def __init__(self, replica: Replica, run: str) -> None:
        self._replica = replica
        self._run = run
        self._live = LiveBucket(replica, replica.replace_record)
        self._due = 0.0
        self.files: Collection[str] = ()  # the run's objects in the bucket, when this was last looked at
        self.problem: StoreUnavailable | None = None  # why nothing new can be seen

    def hear(self, *, now: bool = False) -> None:
        """Bring what is new, if it is time to look again."""
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_EVERY
        try:
            folder = f"{live_folder(self._run)}/"
            self.files = self._replica.bring_logs(self._run)
            told = {key.removeprefix(folder).split("/")[0] for key in self.files if key.startswith(folder)}
            for _ in self._live.hear(self._run, told) if told else ():
                pass
            self.problem = None
        except StoreUnavailable as error:
            self.problem = error


def elsewhere(store: Store, run: str) -> Elsewhere | None:
    """For a run of another machine in a bucket; None: whoever works on it writes into files that are here."""
    replica = store.replica
    return None if replica is None or not replica.is_elsewhere(run) else Elsewhere(replica, run)
