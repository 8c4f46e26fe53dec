"""What ``gc`` has to keep: what the records of runs refer to, and what running processes have claimed.

Records refer to blobs, and to results of other runs. A record is searched for digests as text, whatever its
fields are, so that one with fields that only a newer Upshift knows is searched as well. Only content that
names further content (a list that was saved item by item, a folder, a value of a third party's serializer) is
looked into; which those are is in the records, too.

Of an exported pipeline a bucket has ``exports/DIGEST.json``, a copy of the order that the blob DIGEST holds.
Somebody may run an exported file months later, and nothing here hears of it. ``gc`` keeps what its pods need
until the export itself is removed, and finds it by this object.

Claims are files of the processes that work with a store: see :mod:`upshift.runtime.storage.claims`.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from upshift.errors import BlobDamaged, BlobMissing, StoreError, UsageError
from upshift.model.spec.task import TaskId
from upshift.runtime.storage import manifest
from upshift.runtime.storage.claims import NO_LOCKS, folder_of, gc_lock_of, lock, lock_of, locked, open_lock
from upshift.runtime.storage.digest import split
from upshift.runtime.storage.files import discard
from upshift.runtime.storage.records import ARRAY, task_path, unpack_array
from upshift.runtime.storage.serializers import names_blobs, serializer_named
from upshift.runtime.storage.store import Store

_DIGEST = re.compile(rb"(?:blake3|sha256):([0-9a-f]{64})")
_SERIALIZER = re.compile(rb'"serializer":\s*"((?:[^"\\]|\\.)*)"')
_PLAIN = (".series", ".metrics", ".log")
"""What names nothing: usage over time, what a step logged, and what it printed."""


class Content(Protocol):
    """What gives the content of blobs: a store."""

    def read(self, digest: str, /) -> memoryview:
        """The content of a blob; raises :class:`BlobMissing` or :class:`BlobDamaged`."""


class References:
    """What is referred to, collected from one record after the other.

    Parameters
    ----------
    store
        Where the records are, and the content that names further content.
    needed
        Whether to tell content that has to be there from digests that are only mentioned: of values that a
        record holds itself, and of what a key was made from.
    """

    def __init__(self, store: Content, *, needed: bool = False) -> None:
        self.needed: set[bytes] = set()
        """Those of the digests without whose content a value cannot be read."""
        self._walks = needed
        self.blobs: set[bytes] = set()
        """Digests, as their bytes: there may be millions."""
        self.tasks: set[TaskId] = set()
        """Tasks whose results others have."""
        self._store = store
        self._naming: dict[str, bool] = {manifest.NAME: True}
        self._followed: set[str] = set()

    def add_file(self, path: str) -> None:
        """What one record refers to; nothing, if it is gone or no record."""
        if path.endswith(_PLAIN):
            return
        try:
            with open(path, "rb", buffering=0) as file:
                content = file.read()
        except FileNotFoundError:
            return
        self.add_record(path, content)

    def add_record(self, path: str, content: bytes) -> None:
        """What the content of a record refers to, by its path."""
        if path.endswith(_PLAIN):
            return
        if path.endswith(ARRAY):
            with contextlib.suppress(ValueError):  # one that is torn was never submitted
                for text in unpack_array(content).specs.values():
                    self.add(text.encode())
            return
        self.add(content)
        if b'"origin"' in content and path.endswith("/tasks.json"):
            # Of one that is torn, the digests are found all the same; origins are in the catalog, too.
            with contextlib.suppress(ValueError):
                rows = json.loads(content)["tasks"]
                self.tasks.update(origin_of(row["origin"]) for row in rows if row.get("origin"))

    def add(self, content: bytes) -> None:
        """What the text of a record refers to."""
        self.blobs.update(map(bytes.fromhex, (found[1].decode() for found in _DIGEST.finditer(content))))
        names = [self._names_blobs(name) for name in set(_SERIALIZER.findall(content))]
        if any(names) or (names and self._walks):
            for data in _documents(content):
                self._walk(data)

    def task_paths(self) -> set[str]:
        """The tasks, as what the paths of their files begin with; see :func:`task_path`."""
        return set(map(task_path, self.tasks))

    def _names_blobs(self, quoted: bytes) -> bool:
        name: str = json.loads(b'"' + quoted + b'"')
        known = self._naming.get(name)
        if known is None:
            known = self._naming[name] = names_blobs(name)
        return known

    def _walk(self, data: Any) -> None:
        pending = [data]
        while pending:
            item = pending.pop()
            if isinstance(item, list):
                pending.extend(item)
            elif isinstance(item, dict):
                name = item.get("serializer")
                if isinstance(name, str) and isinstance(item.get("digest"), str):
                    self._follow(name, item["digest"], item.get("inline"))
                pending.extend(item.values())

    def _follow(self, name: str, digest: str, inline: object) -> None:
        if inline is None and (found := _DIGEST.fullmatch(digest.encode())):
            self.needed.add(bytes.fromhex(found[1].decode()))
        if not self._naming.get(name) or digest in self._followed:
            return
        self._followed.add(digest)
        content = self._content(digest, inline)
        if content is None:
            return
        if name == manifest.NAME:
            self.add(bytes(content))
            return
        for reference, _ in serializer_named(name).references(content):
            self.blobs.add(bytes.fromhex(split(reference)[1]))
            self.needed.add(bytes.fromhex(split(reference)[1]))

    def _content(self, digest: str, inline: object) -> memoryview | None:
        """None: it is lost, and with it whatever it named."""
        if isinstance(inline, str):
            return memoryview(binascii.a2b_base64(inline))
        try:
            return self._store.read(digest)
        except (BlobMissing, BlobDamaged):
            return None


def files_of(folder: str) -> Iterator[str]:
    """The files below a folder, at any depth; none where there is no folder."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        yield entry.path
        except FileNotFoundError:
            continue


def origin_of(data: Iterable[Any]) -> TaskId:
    """The task in the JSON form of a row's ``origin``."""
    run, step, index, _ = data
    return TaskId(run=run, step=step, index=index)


def _documents(content: bytes) -> Iterator[Any]:
    """The JSON in a record: all of it, or what follows its first line."""
    for text in (content, content.partition(b"\n")[2]):
        try:
            yield json.loads(text)
            return
        except (
            ValueError
        ):  # a checksum or a mark before it; or it is damaged, and names what the search found
            continue


EXPORTS = "exports/"


def write_export(store: Store, digest: str, order: bytes) -> None:
    """Write down that a pipeline was exported, by the digest of its order; once more, if it was already."""
    if store.replica is not None:
        store.replica.objects.put(f"{EXPORTS}{split(digest)[1]}.json", order)


_MOUNTS = "/proc/self/mountinfo"
_NFS = frozenset({"nolock", "local_lock=all", "local_lock=flock"})
_LOCAL = {"nfs": _NFS, "nfs4": _NFS, "lustre": frozenset({"localflock"})}
"""By file system, the options with which ``flock`` is between processes of one machine."""


class Claimed:
    """The claims of all processes on the store in a folder."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = folder_of(root)
        self._read: dict[str, int] = {}
        self.blobs: set[bytes] = set()
        self.runs: set[str] = set()
        self.tasks: set[str] = set()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Be the one ``gc`` of the store; claims of processes that have ended are dropped before and after.

        Raises
        ------
        UsageError
            Another one works on it.
        StoreError
            Its file system has no locks, or none that other machines see.
        """
        option = _local_locks(self._root)
        if option is not None:
            raise self._no_locks(
                f"other machines do not see the locks of this one, because of the mount option {option}",
                "Mount it without that option, on every machine that uses it.",
            )
        descriptor = open_lock(gc_lock_of(self._root))
        try:
            with self._exclusive():
                # Here nobody looks whether gc works; so whoever has the lock is another gc.
                if not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, needed=True):
                    raise UsageError(
                        f"another gc works on the store {self._root}", fix="Wait until it has ended."
                    )
                self._drop_unheld()
            yield
            with self._exclusive():
                self._drop_unheld()
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Within, nobody claims anything, and what was claimed before is known."""
        with self._exclusive():
            self._update()
            yield

    def look(self) -> None:
        """Learn what processes that live have claimed, and change nothing."""
        for path in self._files():
            if self._held(path):
                self._read_from(path)

    def _update(self) -> None:
        for path in self._files():
            self._read_from(path)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(lock_of(self._root), fcntl.LOCK_EX, needed=True))
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                raise self._no_locks(
                    f"locks fail with {error.strerror!r}",
                    "Run gc on the machine that has the file system, or mount it with locks.",
                ) from None
            yield

    def _no_locks(self, why: str, fix: str) -> StoreError:
        return StoreError(
            f"gc cannot work on the store {self._root}",
            why=f"It cannot tell what running processes need: {why}.",
            fix=fix,
        )

    def _files(self) -> list[str]:
        try:
            return [entry.path for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return []

    def _drop_unheld(self) -> None:
        for path in self._files():
            if not self._held(path):
                discard(path)

    def _held(self, path: str) -> bool:
        try:
            descriptor = open_lock(path, create=False)
        except FileNotFoundError:
            return False
        try:
            return not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file of somebody else's, on a file system that wants to write for this
            return True
        finally:
            os.close(descriptor)

    def _read_from(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                content = file.read()
        except FileNotFoundError:
            return
        whole = content.rpartition(b"\n")[0]  # the last line is in the making if nothing is locked
        self._read[path] = self._read.get(path, 0) + len(whole) + bool(whole)
        for line in whole.split(b"\n"):
            kind, _, name = line.partition(b":")
            if kind == b"run":
                self.runs.add(os.fsdecode(name))
            elif kind == b"task":
                self.tasks.add(os.fsdecode(name))
            elif name:
                with contextlib.suppress(ValueError):  # torn, when its process was killed
                    self.blobs.add(bytes.fromhex(name.decode()))


def _local_locks(path: str) -> str | None:
    """The mount option that keeps locks on files below ``path`` from other machines that have them, too."""
    number = os.stat(path).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    with contextlib.suppress(FileNotFoundError), open(_MOUNTS, encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, rest = line.partition(" - ")
            kind, *more = rest.split()
            if mount.split()[2] == device and kind in _LOCAL:
                options = {*mount.split()[5].split(","), *more[-1].split(",")}
                return next(iter(sorted(options & _LOCAL[kind])), None)
    return None
