"""One engine owns a run, wherever it is started: a lease beside the run's records, in its store.

::

    STORE/leases/RUN/1         the record of its engine, locked as long as that lives
    STORE/leases/RUN/2         that of the engine which took over from a dead one; the highest number counts
    STORE/leases/RUN/cancel    somebody who cannot reach the engine's socket asks it to stop

On one machine the lock says at once whether the engine lives. It is a POSIX record lock: the kernel drops
it when the process dies, however it dies, and a forked child (the fork server outlives the engine) does
not inherit it. The price is that closing *any* descriptor of the file drops it, so this process must not
open the file again while it holds the lock; hence what is kept of the records of this process.

Between machines a lock that is seen counts as well. One that is not seen says nothing, since not every
file system carries locks: there the engine touches its record every :data:`BEAT` seconds, and is taken for
dead once the record has not changed for :data:`EXPIRY` seconds of the observer's own monotonic clock.
An engine that was only suspended that long finds its lease lost, and stops.

Where the store is in a bucket, the folder is this machine's own, and there is a second lease in the bucket:
:mod:`upshift.runs.bucket_lease`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import attrs

from upshift.errors import LeaseLost, RunOwned, StoreUnavailable
from upshift.model.configuration import home
from upshift.runs import bucket_lease
from upshift.runtime.storage.claims import NO_LOCKS
from upshift.runtime.storage.files import available, boot_id, create, fresh, machine_id, write_all
from upshift.runtime.storage.records import safe
from upshift.runtime.storage.replica import replica_at

BEAT = 5.0
"""Seconds between two signs of life, and between two looks for a request to stop."""
EXPIRY = 30.0
"""Seconds without a sign of life after which an engine on another machine is dead."""
_VANISHED = 50
"""How often the folder of leases may go just as one is made in it."""
_LONG_AGO = 600.0
"""Seconds without one after which nobody has to watch: even clocks that differ agree that it is over."""
_CANCEL = "cancel"
_FLOCK = "hhqqi4x"
"""l_type, l_whence, l_start, l_len, l_pid."""
_owned: dict[str, Mapping[str, Any]] = {}
"""What this process has written into the records that it has locked, by path."""
_guard = threading.Lock()


@attrs.frozen
class Time:
    """The observer's clock; tests give another one."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Lease:
    """The right to work on a run.

    Raises
    ------
    RunOwned
        An engine that lives has it.
    StoreUnavailable
        The store cannot be written.
    """

    def __init__(
        self,
        run: str,  # id of the run
        store: str,  # address of its store
        *,
        # what others should know of this engine, beside where it runs
        engine: Mapping[str, str] | None = None,
        # told what is waited for, where it has to be seen whether an engine on another machine lives
        notice: Callable[[str], None] = lambda line: None,
        time: Time = Time(),
    ) -> None:
        self.run = run
        self._folder = _folder(run, store)
        self._engine = dict(engine or {})
        self._notice = notice
        self._time = time
        with available("written", self._folder):
            self._number, self._descriptor = self._acquire()
        self._path = f"{self._folder}/{self._number}"
        self._renewed = time.monotonic()
        self._bucket = None
        try:
            self._bucket = self._acquire_in_bucket(store)
        except BaseException:
            self._give_back(self._number, self._descriptor)
            raise

    def _acquire_in_bucket(self, store: str) -> bucket_lease.BucketLease | None:
        replica = replica_at(store)
        if replica is None:
            return None
        record = {**_about_us(), **self._engine}
        lease = bucket_lease.BucketLease(
            objects=replica.objects, run=self.run, record=record, beat=BEAT, expiry=EXPIRY
        )
        lease.acquire(
            notice=self._notice,
            owned=lambda record: _owned_error(self.run, record),
            monotonic=self._time.monotonic,
            sleep=self._time.sleep,
        )
        return lease

    def _acquire(self) -> tuple[int, int]:
        dead: dict[int, tuple[int, int]] = {}
        vanished = 0
        while True:
            numbers = _numbers(self._folder)
            last = max(numbers, default=0)
            if last and last not in dead:
                dead[last] = self._dead(last)
                continue
            with _guard:
                try:
                    descriptor = create(f"{self._folder}/{last + 1}", access=os.O_RDWR)
                except FileExistsError:  # somebody else is faster: does it live?
                    continue
                except FileNotFoundError:  # the folder went with the lease of an engine that has just ended
                    vanished += 1
                    if vanished > _VANISHED:  # or it cannot be made: /proc says so in these words
                        raise
                    continue
                try:
                    record = _sign(descriptor, self._engine)
                except BaseException:
                    self._remove(str(last + 1))
                    os.close(descriptor)
                    raise
                _owned[f"{self._folder}/{last + 1}"] = record
            if self._is_first(last + 1, dead):
                for number in numbers:
                    self._remove(str(number))
                self._remove(_CANCEL)
                return last + 1, descriptor
            self._give_back(last + 1, descriptor)
            raise _owned_error(self.run, {})

    def _dead(self, number: int) -> tuple[int, int]:
        """Which file the record of a dead engine is. Raises ``RunOwned`` if the engine lives."""
        path = f"{self._folder}/{number}"
        until = None
        seen: tuple[int, int] | None = None
        while True:
            found = _look(path)
            if found is None:
                return 0, 0
            if found.lives or (seen is not None and found.version != seen):
                raise _owned_error(self.run, found.record)
            if found.lives is False:
                return found.version
            now = self._time.monotonic()
            if until is None:
                until, seen = now + EXPIRY, found.version
                self._notice(
                    f"waiting up to {EXPIRY:g} s to see whether the engine of run {self.run} on "
                    f"{found.record.get('host', 'another machine')} is at work"
                )
            if now >= until:
                return found.version
            self._time.sleep(min(1.0, until - now))

    def _is_first(self, own: int, dead: Mapping[int, tuple[int, int]]) -> bool:
        """Whether nobody else has taken over meanwhile, before us or after."""
        for number in _numbers(self._folder):
            if number > own:
                return False
            if number < own:
                with contextlib.suppress(FileNotFoundError):
                    if _version(os.stat(f"{self._folder}/{number}")) != dead.get(number, (0, 0)):
                        return False
        return True

    def start(self) -> None:
        """Show other machines from now on that this engine lives; this may start a thread."""
        if self._bucket is not None:
            self._bucket.start()

    def confirm(self) -> None:
        """See at once that other machines know this engine as the owner of the run.

        Raises
        ------
        LeaseLost
            They know another one.
        StoreUnavailable
            That cannot be seen.
        """
        if self._bucket is not None and not self._bucket.fresh and self._bucket.lost is None:
            self._bucket.renew()
        self.renew()

    @property
    def fresh(self) -> bool:
        """Whether what this engine says of the run counts in the bucket."""
        return self._bucket is None or self._bucket.fresh

    def renew(self) -> None:
        """Renew the lease.

        Raises
        ------
        LeaseLost
            Another engine has taken the run over, or the store cannot be reached for so long that one may.
        """
        if self._bucket is not None and self._bucket.lost is not None:
            raise self._bucket.lost
        now = self._time.monotonic()
        try:
            os.utime(self._descriptor)
            names = os.listdir(self._folder)
        except FileNotFoundError:
            raise _lost(self.run, "Its record is gone from the store.") from None
        except OSError as error:
            if error.errno == errno.ESTALE:  # so an NFS client says that another machine has removed it
                raise _lost(self.run, "Its record is gone from the store.") from None
            if now - self._renewed > EXPIRY:
                raise _lost(self.run, f"The store cannot be reached: {error.strerror}.") from None
            return
        self._renewed = now
        if str(self._number) not in names:
            raise _lost(self.run, "Its record is gone from the store.")
        if max(int(name) for name in names if name.isdigit()) > self._number:
            raise _lost(self.run, "Another engine took this one for dead and continues the run.")

    @property
    def cancel_asked(self) -> bool:
        """Whether somebody who cannot reach this engine wants the run to stop; says so once."""
        if self._bucket is not None and self._bucket.cancel_asked:
            self._bucket.cancel_asked = False
            return True
        path = f"{self._folder}/{_CANCEL}"
        try:
            fresh(path, lambda: os.unlink(path))
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Give the run up."""
        if self._bucket is not None:
            self._bucket.release()
        self._remove(_CANCEL)
        self._give_back(self._number, self._descriptor)

    def _give_back(self, number: int, descriptor: int) -> None:
        with _guard:
            self._remove(str(number))
            os.close(descriptor)
            _owned.pop(f"{self._folder}/{number}", None)
        with contextlib.suppress(OSError):  # somebody else has taken it
            os.rmdir(self._folder)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}/{name}")

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def here() -> dict[str, str]:
    """Where this engine runs, for the record of the run: whoever continues it looks for its tasks there."""
    return {"host": socket.gethostname(), "home": str(home())}


def held(run: str, store: str) -> bool:
    """Whether an engine that lives has the lease of a run. Asks only, and takes nothing.

    Of an engine on another machine whose lock cannot be seen from here, it is taken that it lives until
    it has not been heard of for some minutes; so too where the store cannot be seen.
    """
    folder = _folder(run, store)
    try:
        last = max(_numbers(folder), default=0)
        found = _look(f"{folder}/{last}") if last else None
    except OSError:
        return True
    if found is None:
        return _held_in_bucket(run, store) if os.path.isdir(store) else True
    if found.lives is None:
        return time.time() - found.version[1] / 1e9 < _LONG_AGO
    return found.lives


def _held_in_bucket(run: str, store: str) -> bool:
    replica = replica_at(store)
    if replica is None:
        return False
    try:
        record = bucket_lease.owner_of(run, replica.objects)
    except StoreUnavailable:
        return True
    lives = bucket_lease.seen_to_live(record)
    return time.time() - record.get("at", 0.0) < _LONG_AGO if lives is None else lives


def silent_for(run: str, store: str) -> float | None:
    """Seconds since an engine on another machine has shown that it lives, by the clocks of both.

    None: it has done so within :data:`EXPIRY`, or that is no question: it is on this machine, or nobody has
    the run.
    """
    folder, heard = _folder(run, store), None
    with contextlib.suppress(OSError, StoreUnavailable):
        numbers = _numbers(folder)
        found = _look(f"{folder}/{max(numbers)}") if numbers else None
        replica = replica_at(store)
        if found is not None:
            heard = found.version[1] / 1e9 if found.lives is None else None
        elif replica is not None:
            record = bucket_lease.owner_of(run, replica.objects)
            heard = record.get("at") if bucket_lease.seen_to_live(record) is None else None
    silent = 0.0 if heard is None else time.time() - heard
    return silent if silent > EXPIRY else None


def owner(run: str, store: str) -> Mapping[str, Any]:
    """What the engine that has the lease of a run has written of itself; nothing where nobody has it."""
    folder = _folder(run, store)
    with contextlib.suppress(OSError):
        numbers = _numbers(folder)
        found = _look(f"{folder}/{max(numbers)}") if numbers else None
        if found is not None:
            return found.record
    replica = replica_at(store)
    return {} if replica is None else bucket_lease.owner_of(run, replica.objects)


def ask_to_cancel(run: str, store: str) -> None:
    """Ask the engine that has a run, wherever it is, to stop it; it looks every :data:`BEAT` seconds."""
    replica = replica_at(store)
    if replica is not None:
        bucket_lease.ask_to_cancel(run, replica.objects)
        return
    path = f"{_folder(run, store)}/{_CANCEL}"
    with available("written", path), contextlib.suppress(FileExistsError):
        os.close(create(path))


def leases(store: str) -> list[str]:
    """The runs with a lease, of which nobody says whether their engines live."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(f"{store}/leases"))
    return []


def _sign(descriptor: int, engine: Mapping[str, str]) -> Mapping[str, Any]:
    """Lock the record before it is written: one that names its process and has no lock is a dead one's."""
    locks = True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        locks = False
    record = {**_about_us(), **engine, "locks": locks}
    write_all(descriptor, memoryview(json.dumps(record).encode()))
    return record


@attrs.frozen
class _Found:
    """The record of an engine as it stands."""

    version: tuple[int, int]  # inode, and when it was last touched: changes with each sign of life
    record: Mapping[str, Any]
    lives: bool | None  # None: that cannot be seen from here at once


def _look(path: str) -> _Found | None:
    """The record at a path; None: there is none."""
    with _guard:  # closing the file would drop a lock that this process has
        if path in _owned:
            return _Found((0, 0), _owned[path], lives=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            version = _version(os.fstat(descriptor))
            try:
                record = json.loads(os.read(descriptor, 1 << 16))
            except ValueError:  # it has just been made, and is not written yet
                record = {}
            return _Found(version, record, lives=_lives(descriptor, record))
        finally:
            os.close(descriptor)


def _lives(descriptor: int, record: Mapping[str, Any]) -> bool | None:
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
        if found[0] != fcntl.F_UNLCK:
            return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    us = _about_us()
    if record.get("boot") == us["boot"] != "unknown":
        return False if record.get("locks") else None
    same = record.get("host") == us["host"] and record.get("machine") == us["machine"] != "unknown"
    return False if same and record.get("boot") else None  # this machine was started anew since


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _folder(run: str, store: str) -> str:
    return f"{store}/leases/{safe(run)}"


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []


def _about_us() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": boot_id(),
        "machine": machine_id(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _owned_error(run: str, record: Mapping[str, Any]) -> RunOwned:
    try:
        who = f"process {record['pid']} on {record['host']}, since {record['since']}"
    except KeyError:  # it has the lease, and has not written who it is yet
        who = "a process that has just started"
    return RunOwned(
        f"another engine owns run {run}",
        why=f"It is {who}.",
        fix=f"Wait until it has ended, or stop it: upshift cancel {run}",
    )


def _lost(run: str, why: str) -> LeaseLost:
    return LeaseLost(
        f"this engine does not own run {run} any more, and stops",
        why=why,
        fix=f"See the state of the run: upshift show {run}",
    )
