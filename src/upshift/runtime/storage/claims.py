"""What processes rely on and no record names yet, and how ``gc`` leaves it alone: in a folder by claims.

Content is put into the store before the record that names it; a result is found before the run that
reuses it has written that down. In between a process *claims* them: it writes their names into a file
of its own below ``claims/``, which it keeps locked until its records are written, or it dies.

::

    anybody   [ claim b; is b there? ]   write b …   the record that names b   release
    gc        [ drop claims of the dead ]   read all records   [ what is claimed now? remove other blobs ]

    [ ] is a lock: shared by anybody, exclusive for gc, held for a moment

What a record names when ``gc`` begins to read is kept for the record. What is named later was claimed:
before ``gc`` began, by a process that still had its claims then; or while it worked. Neither claim goes
away while ``gc`` works, since a process that lets go meanwhile leaves its file to ``gc``. And who claims
something after it was removed finds that it is not there, and makes it again. Whatever is killed, the
kernel drops its locks. No clock is asked.

A name is a digest, ``run:RUN`` for a run that somebody works on, or ``task:RUN/tasks/STEP/INDEX`` for the
results of a task.

A bucket has no locks that hold while somebody looks and then writes. So ``gc`` removes from it in two steps::

    gc         writes what it condemns, then looks which engines have a lease; once all of those have ended,
               it removes what no record refers to by then
    engines    write their lease, then read what is condemned; of that they reuse no run, and before they
               rely on content they take it off the list

Either ``gc`` sees the lease of an engine, or the engine sees what is condemned; no clock decides. While
content is being removed, its list cannot be changed: whoever needs some of it waits, and puts it there anew.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import attrs

from upshift.errors import NotFound, StoreError, StoreUnavailable
from upshift.model.configuration import make_folder
from upshift.runtime.storage.files import available, boot_id, create, discard, write_all
from upshift.runtime.storage.objects import Objects, Version
from upshift.runtime.storage.records import mark

VARIABLE = "UPSHIFT_CLAIMS"
"""Environment variable: the file for the claims of a step process. Its supervisor holds the lock, because
it writes the record, and may do so when the step process is gone."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@attrs.frozen
class _Own:
    """The file of this process, and its descriptor, which has the lock."""

    path: str
    descriptor: int


_own: dict[str, _Own] = {}
"""By the folder of claims: a process has one file for a store, however often it opens the store."""
_holders: Counter[str] = Counter()
"""By the same, in how many :meth:`Claims.held` this process is."""
_guard = threading.RLock()


class Claims:
    """The claims of this process on one store."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = folder_of(root)

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Claim something, and look within whether it is there: what is there stays."""
        # A line of its own, also below one that somebody could not finish on a full disk.
        descriptor = self._claim(b"\n" + os.fsencode(name) + b"\n")
        try:
            yield
        finally:
            if descriptor is not None:
                _unlock(descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the claims until the end of this block, where all that they name is recorded.

        Without such a block they are kept as long as the process lives.
        """
        with _guard:
            _holders[self._folder] += 1
        try:
            yield
        finally:
            with _guard:
                _holders[self._folder] -= 1
                if not _holders[self._folder]:
                    self.release()

    def file(self) -> str:
        """The file of this process's claims, for the :data:`VARIABLE` of another one."""
        with _guard:
            if self._folder not in _own:
                with available("written", self._folder), locked(lock_of(self._root), fcntl.LOCK_SH):
                    self._make()
            return _own[self._folder].path

    def release(self) -> None:
        """Let go of all claims."""
        with _guard:
            own = _own.pop(self._folder, None)
            if own is None:
                return
            with contextlib.suppress(OSError), locked(lock_of(self._root), fcntl.LOCK_SH, make=False):
                if not gc_works(self._root):
                    discard(own.path)
            _unlock(own.descriptor)

    def _claim(self, line: bytes) -> int | None:
        """Write down a claim; give the descriptor of the lock. None: nothing can be removed there."""
        descriptor = None
        try:
            descriptor = _shared(lock_of(self._root))
            lock(descriptor, fcntl.LOCK_SH)
            self._append(line)
        except BaseException as error:
            if descriptor is not None:
                _unlock(descriptor)
            if isinstance(error, OSError) and error.errno == errno.EROFS:
                return None
            with available("written", self._folder):
                raise
        return descriptor

    def _append(self, line: bytes) -> None:
        given = os.environ.get(VARIABLE)
        if given is not None and os.path.dirname(given) == self._folder:
            with contextlib.suppress(FileNotFoundError):  # its supervisor is gone
                _write(given, line)
                return
        with _guard:
            if self._folder not in _own:
                self._make()
            _write(_own[self._folder].path, line)

    def _make(self) -> None:
        """Make the file of this process; ``gc`` does not look meanwhile, and never sees it unlocked."""
        path = f"{self._folder}/{boot_id()[:8]}-{os.getpid()}-{os.urandom(4).hex()}"
        # Shared is enough against gc, and needs no descriptor that a file system would be busy with.
        descriptor = create(path, access=os.O_RDONLY)
        lock(descriptor, fcntl.LOCK_SH)
        mark(self._root)
        _own[self._folder] = _Own(path, descriptor)


def folder_of(root: str) -> str:
    """Where the claims on a store are."""
    return f"{root}/claims"


def lock_of(root: str) -> str:
    """The lock between those who claim and ``gc``."""
    return f"{root}/claims.lock"


def gc_lock_of(root: str) -> str:
    """The lock that ``gc`` has as long as it works."""
    return f"{root}/gc.lock"


def gc_works(root: str) -> bool:
    """Whether ``gc`` works on the store now."""
    try:
        descriptor = os.open(gc_lock_of(root), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def lock(descriptor: int, kind: int, *, needed: bool = False) -> bool:
    """Lock an open file. False: somebody else has it, and ``LOCK_NB`` was said."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if needed or error.errno not in NO_LOCKS:
            raise
    return True


@contextlib.contextmanager
def locked(path: str, kind: int, *, needed: bool = False, make: bool = True) -> Iterator[None]:
    """Have a lock within; ``make`` its file if need be. As :func:`lock`."""
    descriptor = open_lock(path) if kind == fcntl.LOCK_EX else _shared(path, make=make)
    try:
        lock(descriptor, kind, needed=needed)
        yield
    finally:
        _unlock(descriptor)


def _shared(path: str, *, make: bool = True) -> int:
    """A descriptor for a shared lock; one for each use, so that threads and forks do not share the lock."""
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        if not make:
            raise
        make_folder(Path(path).parent)
        return os.open(path, flags, 0o666)


def _unlock(descriptor: int) -> None:
    """Give a lock up. Closing is not enough where a thread has forked meanwhile."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def open_lock(path: str, *, create: bool = True) -> int:
    """A descriptor for an exclusive lock, which some network file systems grant to writers only."""
    flags = os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        return os.open(path, os.O_RDWR | flags, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags, 0o666)


def _write(path: str, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        write_all(descriptor, memoryview(line))
    finally:
        os.close(descriptor)


def release_all() -> None:
    """Let go of the claims of this process on every store."""
    for folder in list(_own):
        Claims(os.path.dirname(folder)).release()


def _forget() -> None:
    """In a fork: the claims are the parent's."""
    global _guard
    _guard = threading.RLock()
    for own in _own.values():
        os.close(own.descriptor)
    _own.clear()
    _holders.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(release_all)


# In a bucket

GC_STATE = "gc/state"
EVERYBODY = "*"
"""Among the engines of a state: it was not looked yet which are at work."""
CONDEMNED, REMOVING, IDLE = "condemned", "removing", "idle"
_PATIENCE = 600.0
"""Seconds to wait for a ``gc`` that removes content which is needed."""
_PREFIX = "blobs/"


@attrs.frozen(kw_only=True)
class GcState:
    """What ``gc`` is about to do in a bucket."""

    phase: str = IDLE
    runs: frozenset[str] = frozenset()  # removed ones; some of their results may stay
    blobs: frozenset[str] = frozenset()  # their keys
    engines: frozenset[str] = frozenset()
    """The runs whose engines may not know of this."""


def read_state(objects: Objects) -> tuple[GcState, Version | None]:
    """The state, and its version; None: there was no ``gc`` yet."""
    import gzip  # few processes read it

    found = objects.get(GC_STATE)
    if found is None:
        return GcState(), None
    try:
        said = json.loads(gzip.decompress(found.data))
        blobs = frozenset(_PREFIX + rest for rest in said["blobs"])
        state = GcState(
            phase=said["phase"],
            runs=frozenset(said["runs"]),
            blobs=blobs,
            engines=frozenset(said["engines"]),
        )
    except (ValueError, OSError, EOFError, KeyError, TypeError):
        raise StoreError(
            f"{objects.address}/{GC_STATE} is damaged",
            why="It says what gc is about to remove from the bucket.",
            fix="See that no gc works on the bucket, and remove that object.",
        ) from None
    return state, found.version


def write_state(objects: Objects, state: GcState, version: Version | None) -> Version | None:
    """Replace this version of the state. None: somebody else has."""
    import gzip

    said = {
        "phase": state.phase,
        "runs": sorted(state.runs),
        "blobs": sorted(key.removeprefix(_PREFIX) for key in state.blobs),
        "engines": sorted(state.engines),
    }
    content = gzip.compress(json.dumps(said).encode(), compresslevel=1, mtime=0)
    return objects.put(GC_STATE, content, absent=version is None, match=version)


class Condemned:
    """What is condemned in a bucket, as a process knows it that has a lease, or works for an engine."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._keys: frozenset[str] | None = None
        self._guard = threading.Lock()

    def look(self) -> tuple[GcState, Version | None]:
        """Read it now."""
        state, version = read_state(self._objects)
        self._keys = state.blobs
        return state, version

    def rescue(self, keys: Collection[str]) -> None:
        """See that content which this process is about to put, or to rely on, is not removed.

        Raises
        ------
        StoreUnavailable
            A ``gc`` that was killed had begun to remove it.
        """
        with self._guard:
            if self._keys is None:
                self.look()
            assert self._keys is not None
            if not self._keys.isdisjoint(keys):
                self._take_off(frozenset(keys))

    def _take_off(self, keys: frozenset[str]) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            state, version = self.look()
            if state.blobs.isdisjoint(keys):
                return
            if state.phase == CONDEMNED:
                left = attrs.evolve(state, blobs=state.blobs - keys)
                if write_state(self._objects, left, version) is not None:
                    self._keys = left.blobs
                    return
                continue
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"gc has not come to its end in {self._objects.address}",
                    why="It was about to remove content that this run needs, and seems to have been killed.",
                    fix="Run it again: upshift gc",
                )
            time.sleep(1.0)


def removed(run: str) -> NotFound:
    """The error for a run that ``gc`` has removed."""
    return NotFound(f"run {run} was removed by upshift gc", fix="Start it anew.")
