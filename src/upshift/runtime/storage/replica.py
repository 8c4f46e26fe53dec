"""A store in a bucket, as one machine works with it: a folder that is a store itself, and follows the bucket.

::

    STORE/bucket               the address of the bucket: what tells such a folder from any other store
    STORE/unpublished/RUN      a run of this machine, of which the bucket may lack something
    STORE/elsewhere/RUN        a run of another machine: its logs and other curves are brought when asked for
    STORE/…                    as in every store; what is not here may be in the bucket

Steps and engine read and write the folder, as they would any store. What they do not find there is brought
from the bucket: content when it is read, records when somebody asks for the run. The engine publishes what
is new (:mod:`upshift.runs.publishing`).

Where both have a run, the bucket is right, unless this machine has put what it has there and gone on.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import attrs

from upshift.errors import StoreError
from upshift.model.configuration import home, make_folder
from upshift.runtime.storage.claims import Condemned
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.files import available, replacing
from upshift.runtime.storage.objects import Objects, Version, open_objects, side_by_side
from upshift.runtime.storage.records import (
    ARRAY,
    REMOVED,
    STORE_VERSION,
    Records,
    refuse_version,
    safe,
    unpack_array,
)

RUN_RECORD = "run.json"
PACK = "records.gz"
"""All other records of a run that has ended, in one object."""
APPENDED = (".log", ".series", ".metrics", ".cards", ".trouble")
"""Files of attempts that are written by one process to their end: of equal length is equal content."""
_REWRITTEN = ".series"
"""That one is written anew now and then, shorter than before."""
_OF_ATTEMPTS = re.compile(r"\.(claim|stop|order)$")
"""Records that are looked for where the attempt is known to be at work."""
OVER = frozenset({"completed", "failed", "cancelled"})

_LOOKED_FOR = 1 << 20
"""Bytes from which on it is asked first whether the bucket has content already."""
_IN_USE = 3600.0
_TRIMMED = 300.0
_PAGE = 1000
_MARK = "bucket"


@attrs.frozen
class Note:
    """What this machine has put of a run last: the version of ``run.json``, and the digest of a newer one."""

    version: Version | None = None
    pending: str = ""


class Replica:
    """The folder of a store in a bucket, and the bucket.

    Every method that has to ask the bucket raises :class:`~upshift.errors.StoreUnavailable` where it
    cannot be reached.
    """

    def __init__(self, root: str, address: str) -> None:
        self.root = root
        self.address = address
        self._records = Records(root, power=False)
        self._sizes: dict[str, int] = {}
        self._listed: list[tuple[str, str]] = []
        self._files: dict[str, Mapping[str, int]] = {}

    @functools.cached_property
    def objects(self) -> Objects:
        """The objects of the bucket."""
        return open_objects(self.address)

    @functools.cached_property
    def condemned(self) -> Condemned:
        """What ``gc`` is about to remove from the bucket."""
        return Condemned(self.objects)

    def prepare(self) -> None:
        """See that this version knows the store in the bucket, or make it; and make the folder.

        Raises
        ------
        ConfigError
            A newer version has made it.
        """
        found = self.objects.get("format")
        if found is not None:
            refuse_version(bytes(found.data).decode("ascii", "replace").strip(), self.address)
        else:
            self.objects.put("format", f"{STORE_VERSION}\n".encode(), absent=True)
        self.mark()

    def mark(self) -> None:
        """Make the folder, if it is not there, and say in it what it is."""
        path = Path(self.root, _MARK)
        if not path.exists():
            with available("written", self.root):
                make_folder(path.parent)
                with replacing(path) as draft:
                    draft.write_text(f"{self.address}\n", encoding="utf-8")

    # Content

    def upload(self, key: str, path: str) -> None:
        """Put a file of this machine."""
        upload(self.objects, key, path)

    def forget_attempt(self, base: str) -> None:
        """Remove what is here of an attempt that the bucket has, from a node that worked for it."""
        folder, begin = base.rpartition("/")[::2]
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # another process of this node has removed it
            names = os.listdir(f"{self.root}/{folder}")
        for name in names:
            if name.startswith(begin):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self.root}/{folder}/{name}")
        with contextlib.suppress(OSError):  # others are at work
            os.removedirs(f"{self.root}/{folder}")

    def trim_at_times(self, most: int) -> None:
        """As :meth:`trim`, if nobody has done that for some minutes: it looks at every file."""
        mark = Path(self.root, "trimmed")
        if not mark.exists() or time.time() - mark.stat().st_mtime > _TRIMMED:
            mark.touch()
            for _ in self.trim(most):
                pass

    def upload_blob(self, key: str, path: str) -> None:
        """Put a blob; a large one only if the bucket does not have it."""
        self.condemned.rescue([key])
        size = os.stat(path).st_size
        if size < _LOOKED_FOR or next((meta.size for meta in self.objects.list(key)), None) != size:
            self.upload(key, path)

    def bring_appended(self, base: str) -> None:
        """Have the logs and curves of an attempt here as its node has left them in the bucket."""
        for meta in self.objects.list(base):
            path = Path(self.root, meta.key)
            if meta.key.endswith(APPENDED) and not (path.exists() and path.stat().st_size == meta.size):
                make_folder(path.parent)
                self.objects.download(meta.key, path)

    def upload_appended(self, base: str) -> None:
        """Put the logs and curves of an attempt whose files' names begin with ``base``."""
        folder, begin = base.rpartition("/")[::2]
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(f"{self.root}/{folder}"):
                path = f"{self.root}/{folder}/{name}"
                if name.startswith(begin) and name.endswith(APPENDED) and os.stat(path).st_size:
                    found.append(f"{folder}/{name}")
        # A result waits for them: with a slow bucket, one after the other would take several times as long.
        side_by_side(lambda key: self.upload(key, f"{self.root}/{key}"), found)

    def size_of(self, digest: str) -> int | None:
        """Bytes of a blob in the bucket; None: it is not there. One list tells of its neighbours, too."""
        key = blob_key(digest)
        if key not in self._sizes and not any(first < key <= last for first, last in self._listed):
            first = key[:-1]
            page = list(itertools.islice(self.objects.list("blobs/", after=first), _PAGE))
            self._sizes.update((meta.key, meta.size) for meta in page)
            self._listed.append((first, page[-1].key if len(page) == _PAGE else "blobs0"))
        return self._sizes.get(key)

    def bring_blob(self, digest: str, path: str, take: Callable[[str, str], None], draft: str) -> None:
        """Have a blob here, if the bucket has it; of several processes that want it one brings it."""
        with self._alone(digest):
            if not os.path.exists(path) and self.objects.download(blob_key(digest), Path(draft)) is not None:
                take(digest, draft)

    def trim(self, most: int, *, dry_run: bool = False, now: float | None = None) -> Iterator[int]:
        """Remove content, the longest unused first, until there are ``most`` bytes here.

        Gives the bytes of each. What was used within the last hour stays: a task may be about to read it.
        What the bucket lacks stays as long as a run of this machine may have to put it there.
        """
        found = []
        for folder, _, names in os.walk(f"{self.root}/blobs"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(f"{folder}/{name}")
                    found.append((max(status.st_atime, status.st_ctime), status.st_size, f"{folder}/{name}"))
        needed = bool(self.unpublished())
        left, fresh = sum(size for _, size, _ in found), (now or time.time()) - _IN_USE
        for used, size, path in sorted(found):
            if left <= most or used > fresh:
                return
            name, begin, rest = path.split("/")[-3:]
            if not needed or self.size_of(f"{name}:{begin}{rest}") == size:
                if not dry_run:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                left -= size
                yield size

    @contextlib.contextmanager
    def _alone(self, digest: str) -> Iterator[None]:
        lock = f"{self.root}/tmp/{split(digest)[1]}.lock"
        with alone(lock):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(lock)  # who waits for it finds the blob

    # Runs

    def runs(self) -> list[str]:
        """The runs in the bucket."""
        return list(self.objects.folders("runs/"))

    def bring_runs(self, runs: Collection[str]) -> None:
        """Download the records of several runs."""
        side_by_side(self.bring_run, runs)

    def bring_run(self, run: str) -> None:
        """Have the records of a run here as the bucket has them, unless this machine knows more of it."""
        folder = f"runs/{safe(run)}/"
        note, found = self.note(run), self.objects.get(folder + RUN_RECORD)
        while note != self.note(run):  # its engine is here, and has just put another one
            note, found = self.note(run), self.objects.get(folder + RUN_RECORD)
        if found is None:
            if note is None:
                self._bring_kept(folder)
            return
        content = bytes(found.data)
        if note is None:
            same = _is_over(content) and content == self._records.read(folder + RUN_RECORD)
        else:  # a note that says nothing is of a run that was begun here
            same = note == Note() or note.version == found.version or note.pending == digest_of(content)
        if same:
            return
        self.mark()
        self._records.write(f"elsewhere/{safe(run)}", b"")
        self._files.pop(run, None)
        if not (_is_over(content) and self._unpack(folder)):
            self._bring_records(folder)
        self._records.write(folder + RUN_RECORD, content)  # last: from here on the run is here
        self.forget_note(run)

    def _bring_kept(self, folder: str) -> None:
        """Of a run that was removed: results that others have, and that it was removed."""
        if self.objects.get(folder + REMOVED) is not None:
            self.mark()
            self._bring_records(folder)
            self._records.remove(folder + RUN_RECORD)
            self._records.write(folder + REMOVED, b"{}")

    def forget_run(self, run: str, keep: Collection[str] = ()) -> None:
        """Remove what is here of a run, but for the results of tasks to ``keep``, named by their paths."""
        top = f"{self.root}/runs/{safe(run)}"
        for folder, _, names in os.walk(top, topdown=False):
            for name in names:
                path = f"{folder}/{name}"
                if f"{folder}/{name.partition('.')[0]}".removeprefix(f"{self.root}/runs/") not in keep:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            with contextlib.suppress(OSError):  # something stays
                os.rmdir(folder)
        if os.path.isdir(top):
            self._records.write(f"runs/{safe(run)}/{REMOVED}", b"{}")
        self._records.remove(f"elsewhere/{safe(run)}")

    def removals_seen(self, version: Version | None = None) -> Version:
        """Which state of ``gc`` this machine has taken account of; with a version: from now on that one."""
        if version is not None:
            self._records.write("removals", version.encode())
            return version
        return Version((self._records.read("removals") or b"").decode())

    def is_elsewhere(self, run: str) -> bool:
        """Whether a run is one of another machine, on which this one has nothing to publish."""
        return os.path.exists(f"{self.root}/elsewhere/{safe(run)}") and self.note(run) is None

    def bring_file(self, relative: str) -> None:
        """Have a log here, or another file that an attempt appends to, if it is one of another machine."""
        run = relative.split("/")[1]
        if not self.is_elsewhere(run):
            return
        files = self._files.get(run)
        if files is None:
            files = self._files[run] = {m.key: m.size for m in self.objects.list(f"runs/{run}/")}
        if relative in files:
            self._bring_rest(relative, files[relative])

    def bring_logs(self, run: str) -> Collection[str]:
        """Have all logs of a run of another machine here as the bucket has them now; the run's objects."""
        folder = f"runs/{safe(run)}/"
        files = self._files[run] = {m.key: m.size for m in self.objects.list(folder)}
        logs = [key for key in files if key.endswith(".log")]
        side_by_side(lambda key: self._bring_rest(key, files[key]), logs)
        return files.keys()

    def _bring_rest(self, relative: str, size: int) -> None:
        """Have what is new of a file to which an attempt appends."""
        path = Path(self.root, relative)
        here = path.stat().st_size if path.exists() else None
        if here == size or (here is not None and here > size and not relative.endswith(_REWRITTEN)):
            return  # of equal length is equal content; or bulletins have told more already
        with available("written", str(path)):
            make_folder(path.parent)
        if here is None or relative.endswith(_REWRITTEN):
            self.objects.download(relative, path)
            return
        found = self.objects.get(relative, offset=here)
        if found is not None:
            with available("written", str(path)), open(path, "r+b") as file:
                file.seek(here)
                file.write(found.data)

    def _unpack(self, folder: str) -> bool:
        import gzip  # steps and folders need none

        found = self.objects.get(folder + PACK)
        if found is None:
            return False
        try:
            records: dict[str, str] = json.loads(gzip.decompress(found.data))
        except (ValueError, OSError, EOFError):
            raise StoreError(
                f"{self.address}/{folder}{PACK} is damaged",
                fix="Remove it: the records are there one by one, too.",
            ) from None
        for name, text in records.items():
            content = text.encode("utf-8", "surrogateescape")
            if self._records.read(folder + name) != content:
                self._records.write(folder + name, content)
        return True

    def _bring_records(self, folder: str) -> None:
        def bring(key: str) -> None:
            found = self.objects.get(key)
            if found is not None:
                self._records.write(key, bytes(found.data))

        wanted = []
        for meta in self.objects.list(folder):
            name = meta.key.removeprefix(folder)
            final = "/" in name and os.path.exists(f"{self.root}/{meta.key}")
            passing = name.startswith("live/") or name.endswith(APPENDED) or _OF_ATTEMPTS.search(name)
            if name not in (RUN_RECORD, PACK, REMOVED) and not final and not passing:
                wanted.append(meta.key)
        side_by_side(bring, wanted)
        for key in wanted:
            if key.endswith(ARRAY):
                self._take_specs(key)

    def _take_specs(self, key: str) -> None:
        """Have the specs here by themselves that the list of an array has."""
        content = self._records.read(key)
        for name, text in unpack_array(content).specs.items() if content is not None else ():
            path = f"{key.rpartition('/')[0]}/{name}"
            if not os.path.exists(f"{self.root}/{path}"):
                self._records.write(path, text.encode())

    def replace_record(self, key: str, content: bytes) -> None:
        """Replace a record by the one in the bucket."""
        self._records.write(key, content)

    # What this machine has to publish

    def unpublished(self) -> list[str]:
        """The runs of this machine of which the bucket may lack something."""
        return self._records.names("unpublished")

    def note(self, run: str) -> Note | None:
        """How far a run was published; None: wholly, or it is none of this machine."""
        content = self._records.read(f"unpublished/{safe(run)}")
        if content is None:
            return None
        try:
            return Note(**json.loads(content))
        except (ValueError, TypeError):  # of a file that a power loss has emptied
            return Note()

    def write_note(self, run: str, note: Note) -> None:
        """Say how far a run is published."""
        self._records.write(f"unpublished/{safe(run)}", json.dumps(attrs.asdict(note)).encode())

    def forget_note(self, run: str) -> None:
        """Say that the bucket has all of a run."""
        path = f"{self.root}/unpublished/{safe(run)}"
        with available("written", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Within, nobody else on this node has the lock at this path, where the file system has locks."""
    with available("written", path):
        make_folder(Path(path).parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):  # without locks it may come twice
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def upload(objects: Objects, key: str, path: str) -> None:
    """Put a file of any size."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            objects.put(key, b"")
            return
        # Not closed here: an error on the way, such as a stale connection, may keep a view of it for a while.
        objects.upload(key, [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))])


def replica_at(root: str) -> Replica | None:
    """The replica in a folder; None: its store is in no bucket."""
    try:
        with open(f"{root}/{_MARK}", encoding="utf-8") as file:
            address = file.readline().strip()
    except OSError:
        return None
    return Replica(root, address) if address else None


def replica_of(address: str) -> Replica:
    """The replica on this machine of a store in a bucket."""
    objects = open_objects(address)
    # A bucket of this name at another server is another bucket.
    server = getattr(getattr(objects, "bucket", None), "endpoint", "")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", objects.address.partition("://")[2])[:60]
    which = hashlib.sha256(f"{server}\0{objects.address}".encode()).hexdigest()[:8]
    replica = Replica(str(home() / "buckets" / f"{name}-{which}"), objects.address)
    replica.objects = objects
    return replica


def blob_key(digest: str) -> str:
    """The key of a blob."""
    name, hexadecimal = split(digest)
    return f"blobs/{name}/{hexadecimal[:2]}/{hexadecimal[2:]}"


def digest_of(content: bytes) -> str:
    """Tells one ``run.json`` from the next."""
    return hashlib.sha256(content).hexdigest()


def _is_over(content: bytes) -> bool:
    try:
        return json.loads(content).get("status") in OVER
    except (ValueError, AttributeError):
        return False
