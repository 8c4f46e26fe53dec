"""Blobs: content under the name of its digest, written once, never changed, and sealed (:class:`Seal`)."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pickle
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from upshift.errors import BlobDamaged, BlobMissing
from upshift.runtime.storage.claims import Claims
from upshift.runtime.storage.digest import Bytes, algorithm, digest_of, new_hasher, split
from upshift.runtime.storage.files import (
    available,
    boot_id,
    copy,
    create,
    discard,
    exists,
    fresh,
    machine_id,
    make_folder,
    move,
    sync_folder,
    temporary,
    write_all,
)
from upshift.runtime.storage.replica import Replica, blob_key

_LARGE = 4 << 20
"""From this size on content is hashed by a second thread while it is written."""
_CHUNK = 4 << 20
_MAPPED = 256 << 10
"""Smaller blobs are read: a mapping holds a file descriptor, and there may be thousands of inputs."""


_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().machine in ("x86_64", "aarch64") else 0)
"""Python names it from 3.13 on."""


class Blobs:
    """The blobs of one store."""

    def __init__(
        self,
        root: str,
        claims: Claims,
        *,
        power: bool,
        always: bool,
        replica: Replica | None = None,
        through: bool = False,
    ) -> None:
        self._root = root
        self._through = through  # what is here is in the bucket
        self._replica = replica
        self._claims = claims
        self._tmp = f"{root}/tmp"
        self._power = power
        self._seal = Seal(root)
        self._always = always
        self._verified: dict[str, tuple[int, ...]] = {}
        self._there: set[str] = set()  # what this process has seen to be in the bucket

    def path(self, digest: str) -> str:
        """Where the blob of this digest is, or would be."""
        return f"{self._root}/{blob_key(digest)}"

    def local(self, digest: str) -> str:
        """Where the blob is; one that is only in the bucket is brought from there."""
        path = self.path(digest)
        if self._replica is not None and not os.path.exists(path):
            draft = temporary(self._tmp)
            try:
                self._replica.bring_blob(digest, path, self.take, draft)
            finally:
                discard(draft)
        return path

    def put(self, buffers: Sequence[Bytes], *, name: str | None = None) -> tuple[str, int]:
        """Store the buffers, one after the other, as one blob; ``name``: by this algorithm."""
        views = [view for view in map(flat, buffers) if view.nbytes]
        size = sum(view.nbytes for view in views)
        with available("written", self._root):
            if size >= _LARGE:
                return self._put_large(views, size, name), size
            content = views[0] if len(views) == 1 else memoryview(b"".join(views))
            digest = digest_of(content, name=name)
            path = self.path(digest)
            if not self._has(digest, path, size):
                with self._temporary() as (fd, draft):
                    write_all(fd, content)
                    self._finish(fd, draft, path)
        return digest, size

    def put_file(self, source: Path) -> tuple[str, int]:
        """Store the content of a file; what is hashed is the copy, whoever writes to the file meanwhile."""
        with (
            open(source, "rb", buffering=0) as file,
            available("written", self._root),
            self._temporary(os.O_RDWR) as (fd, name),
        ):
            copy(file.fileno(), fd)
            size = os.fstat(fd).st_size
            digest = digest_of_file(fd, size, algorithm())
            assert digest is not None  # the algorithm of new digests is installed
            path = self.path(digest)
            if not self._has(digest, path, size):
                self._finish(fd, name, path)
        return digest, size

    def take(self, digest: str, draft: str) -> None:
        """Put a file of the folder for temporaries in place as the blob of a digest, if it is that."""
        with available("written", self._root):
            fd = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
            try:
                found = digest_of_file(fd, os.fstat(fd).st_size, split(digest)[0])
                if found not in (digest, None):
                    raise _damaged(digest, draft, f"its content has the digest {found}")
                os.fchmod(fd, 0o444)
                self._place(fd, draft, self.path(digest))
            finally:
                os.close(fd)

    def find(self, digest: str) -> bool:
        """Whether the blob is there; if so, it stays until a record names it."""
        with self._claims.claimed(digest):
            return exists(self.path(digest))

    def check(self, digest: str, size: int | None = None) -> None:
        """See that the blob is there, has this size and is sealed; if it is not, compute its digest."""
        path = self.path(digest)
        if self._replica is not None and not os.path.exists(path):
            there = self._replica.size_of(digest)
            if there is not None and size in (None, there):
                return  # it is compared when it is brought
        status = self._status(digest, path)
        if size is not None and status.st_size != size:
            raise _damaged(digest, path, f"it has {status.st_size} bytes instead of {size}")
        known = self._seal.holds(status) or self._verified.get(digest) == _identity(status)
        if self._always or not known:
            self.compare(digest)

    def compare(self, digest: str) -> None:
        """Compute the blob's digest, whatever its seal says; seal it if it is right, else break the seal.

        A digest of an algorithm that is not installed here cannot be computed; nothing is said then.
        """
        path = self.local(digest)
        self._status(digest, path)
        with available("read", path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                before = os.fstat(fd)
                found = digest_of_file(fd, before.st_size, split(digest)[0])
                if found is None:
                    return
                if found == digest:
                    self._reseal(fd, digest, before)
                    return
                with contextlib.suppress(OSError):  # so that a new copy takes its place
                    os.utime(fd)
            finally:
                os.close(fd)
        raise _damaged(digest, path, f"its content has the digest {found}")

    def read(self, digest: str, size: int | None = None) -> memoryview:
        """The content, checked, as private memory: writing changes neither the blob nor other readers."""
        path = self.local(digest)
        self.check(digest, size)
        with available("read", path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                length = os.fstat(fd).st_size
                if length < _MAPPED:
                    content = bytearray(length)
                    os.readv(fd, [content])
                    if not _is_of(content, digest):  # small enough to look at each time
                        self.compare(digest)
                        raise _damaged(digest, path, "its content changes while it is read")
                    return memoryview(content)
                return memoryview(map_privately(fd, length))
            finally:
                os.close(fd)

    def _status(self, digest: str, path: str) -> os.stat_result:
        try:
            return fresh(path, lambda: os.stat(path))
        except FileNotFoundError:
            raise BlobMissing(
                f"content {digest} is not in the store",
                where=path,
                fix="Run again: the step that made it runs again.",
            ) from None
        except OSError as error:
            with available("read", path):
                raise error

    def _has(self, digest: str, path: str, size: int) -> bool:
        with self._claims.claimed(digest):
            try:
                status = os.stat(path)
            except FileNotFoundError:
                return False
        if status.st_size != size or not self._seal.holds(status):
            return False
        if self._through and self._replica is not None and digest not in self._there:
            self._replica.upload_blob(
                path.removeprefix(f"{self._root}/"), path
            )  # gc may have removed it there
            self._there.add(digest)
        return True

    def _put_large(self, views: list[memoryview], size: int, name: str | None) -> str:
        with self._temporary() as (fd, draft):
            digest = _write_and_hash(fd, views, name or algorithm())
            path = self.path(digest)
            if not self._has(digest, path, size):
                self._finish(fd, draft, path)
        return digest

    @contextlib.contextmanager
    def _temporary(self, access: int = os.O_WRONLY) -> Iterator[tuple[int, str]]:
        name = temporary(self._tmp)
        fd = create(name, mode=0o444, access=access)
        try:
            yield fd, name
        finally:
            os.close(fd)
            discard(name)

    def _finish(self, fd: int, name: str, path: str) -> None:
        """Have new content where it belongs; in the bucket first, so that what is here is there."""
        if self._through and self._replica is not None:
            self._replica.upload_blob(path.removeprefix(f"{self._root}/"), name)
        self._place(fd, name, path)

    def _place(self, fd: int, name: str, path: str) -> None:
        if self._power:
            os.fsync(fd)
        move(name, path, power=self._power)
        self._seal.put(fd)  # a new name is a change, too

    def _reseal(self, fd: int, digest: str, before: os.stat_result) -> None:
        after = os.fstat(fd)
        if _identity(after) != _identity(before):
            return  # somebody wrote to it meanwhile: the next check will tell
        try:
            if not self._seal.holds(after):
                self._seal.put(fd)
        except OSError:  # read-only, or another user's: known to be right in this process at least
            self._verified[digest] = _identity(after)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_of(content: Bytes, digest: str) -> bool:
    """Whether content has this digest, as far as that can be told here."""
    name = split(digest)[0]
    hasher = new_hasher(name)
    if hasher is None:
        return True
    hasher.update(content)
    return f"{name}:{hasher.hexdigest()}" == digest


def flat(buffer: Any) -> memoryview:
    """The memory of a contiguous buffer as plain bytes, without a copy."""
    return pickle.PickleBuffer(buffer).raw()


def map_privately(fd: int, length: int) -> mmap.mmap:
    """Map a file copy-on-write."""
    # A private mapping counts as memory that could be needed; without this flag the kernel refuses one
    # that is larger than the machine's memory, though it is only read.
    flags = mmap.MAP_PRIVATE | _NORESERVE
    try:
        return mmap.mmap(fd, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        # Each mapping keeps a descriptor before Python 3.13; a fan-in may map thousands of inputs.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return mmap.mmap(fd, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _write_and_hash(fd: int, views: list[memoryview], name: str) -> str:
    from concurrent.futures import ThreadPoolExecutor

    hasher = new_hasher(name)
    assert hasher is not None
    chunks = [view[at : at + _CHUNK] for view in views for at in range(0, view.nbytes, _CHUNK)]
    with ThreadPoolExecutor(1) as other:
        for chunk in chunks:  # in step with the writing, so that each chunk is still in the CPU's cache
            hashing = other.submit(hasher.update, chunk)
            write_all(fd, chunk)
            hashing.result()
    return f"{name}:{hasher.hexdigest()}"


def digest_of_file(fd: int, size: int, name: str) -> str | None:
    """The digest of an open file; None: the algorithm of that name is not installed."""
    hasher = new_hasher(name)
    if hasher is None:
        return None
    if size:
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as content:
            hasher.update(content)
    return f"{name}:{hasher.hexdigest()}"


def _damaged(digest: str, path: str, why: str) -> BlobDamaged:
    return BlobDamaged(
        f"content {digest} is damaged in the store",
        where=path,
        why=why,
        fix="Run again: the step that made it runs again.",
    )


_SECOND = 1_000_000_000
_BASE = 946_684_800 * _SECOND
"""2000-01-01, in nanoseconds; a seal is a time after it."""
_EPOCH = 1000 * _SECOND
"""Between the seals of two epochs: room for the time of the last change, without what is above it."""
_EPOCHS = 900_000
_TURN = 999 * _SECOND
_GRAIN = _SECOND // 100
"""Sealing sets the time of the last change itself: it is known in advance to a tick of the kernel's clock."""
_NOT_KEPT = _TURN
"""Instead of the time of the last change, where the file system has none that makes sense."""
_TRIES = 5


class Seal:
    """The stamps of one store: modification times that say when a content was last known to be right.

    A blob is sealed once its content is known to match its digest. Its modification time then holds two
    things:

    * the time of its last change as the kernel keeps it (``ctime``), to the hundredth of a second. Whoever
      changes the content later changes that time too, which no program can set back: then the two differ.
    * the *epoch* of the store. What a machine had not yet flushed when it lost power keeps its seal but may
      have lost its content, so the epoch is raised whenever a machine that uses the store has booted again.

    A seal that is broken in either way is worth nothing: the digest is computed once, at the next use.

    The epoch is counted, not stored: ``boots/`` holds one empty file for each boot of each machine that
    has used the store, so no lock is needed, and the epoch is the number of boots after each machine's
    first. A machine that has no ``/etc/machine-id`` cannot be told from others: each boot there counts.

    What this does not see: a disk that returns other bytes than were written, without an error; a file
    system that does not keep the time of the last change. A process that already ran when *another* machine
    lost power goes on with the epoch it knows; a system without ``/proc/sys/kernel/random/boot_id`` never
    raises it.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = f"{root}/boots"
        self._epoch: int | None = None
        self._recorded = False

    def put(self, fd: int) -> None:
        """Seal an open file, whose content is right."""
        if self._epoch is None or not self._recorded:
            self._epoch = self._count(must_write=True)
        start = _BASE + self._epoch * _EPOCH
        for _ in range(_TRIES):  # the clock may tick in between
            stamp = start + _changed(os.fstat(fd))
            os.utime(fd, ns=(stamp, stamp))
            if self.holds(os.fstat(fd)):
                return
        os.utime(fd, ns=(start + _NOT_KEPT, start + _NOT_KEPT))

    def holds(self, status: os.stat_result) -> bool:
        """Whether a blob is known to be right.

        A store that cannot be written is one that this boot cannot be recorded in; what was sealed
        before it counts as broken there, if this machine has used the store in an earlier boot.
        """
        sealed, changed = divmod(status.st_mtime_ns - _BASE, _EPOCH)
        if not 0 <= sealed < _EPOCHS or changed not in (_changed(status), _NOT_KEPT):
            return False
        if self._epoch is None or sealed > self._epoch:  # another machine may have raised it
            self._epoch = self._count(must_write=False)
        return sealed == self._epoch

    def _count(self, *, must_write: bool) -> int:
        own = f"{machine_id()}.{boot_id()}"
        try:
            boots = set(os.listdir(self._folder))
        except FileNotFoundError:
            boots = set()
        self._recorded = own in boots
        if not self._recorded:
            with contextlib.nullcontext() if must_write else contextlib.suppress(OSError):
                self._record(own)
                self._recorded = True
            boots.add(own)
        machines = {boot.partition(".")[0] for boot in boots}
        return len(boots) - len(machines)

    def _record(self, own: str) -> None:
        parents = make_folder(self._folder)
        with contextlib.suppress(FileExistsError):  # another process of this boot was faster
            fd = create(f"{self._folder}/{own}")
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            # Were this entry lost with the power, the next boot would take older seals for good ones.
            for folder in (self._folder, *parents):
                sync_folder(folder)


def _changed(status: os.stat_result) -> int:
    return status.st_ctime_ns // _GRAIN * _GRAIN % _TURN
