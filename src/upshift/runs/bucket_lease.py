"""The lease of a run whose store is in a bucket: between machines, as a file's lock is on one of them.

::

    leases/RUN     the record of the engine that has the run, written anew every :data:`BEAT` seconds

Each write replaces exactly the version that the engine wrote last, so an engine whose lease was taken finds
that out at its next one. An engine is taken for dead once its record has not changed for :data:`EXPIRY`
seconds of the observer's own clock, or at once where it can be seen that its process is gone. Who wants it
to stop writes that into its record; the engine finds that in the same way.

An engine that cannot reach the bucket goes on: nobody but somebody who resumes or cancels its run takes the
lease from it, and nothing is published before it is known to be its own again.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from upshift.errors import LeaseLost, StoreUnavailable, UpshiftError
from upshift.runtime.storage.files import boot_id
from upshift.runtime.storage.objects import Objects, Version
from upshift.runtime.storage.records import safe


@attrs.define(kw_only=True)
class BucketLease:
    """The right of this engine to work on a run, as far as other machines are concerned."""

    objects: Objects  # the bucket
    run: str  # id of the run
    record: Mapping[str, Any]  # what others should know of this engine
    # seconds between two signs of life, and without one after which an engine is dead
    beat: float
    expiry: float
    lost: LeaseLost | None = attrs.field(init=False, default=None)
    cancel_asked: bool = attrs.field(init=False, default=False)
    _version: Version = attrs.field(init=False, default=Version(""))
    _nonce: str = attrs.field(init=False, factory=lambda: os.urandom(16).hex())
    _beats: int = attrs.field(init=False, default=0)
    _renewed: float = attrs.field(init=False, default=0.0)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _ended: threading.Event = attrs.field(init=False, factory=threading.Event)

    def acquire(
        self,
        *,
        notice: Callable[[str], None],
        owned: Callable[[Mapping[str, Any]], Exception],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take the lease; raises what ``owned`` makes of the record of an engine that lives."""
        seen, until = None, 0.0
        while True:
            found = self.objects.get(self._key)
            if found is None:
                version = self._put(absent=True)
            else:
                record = _record(found.data)
                lives = seen_to_live(record)
                if lives or (seen is not None and found.version != seen):
                    raise owned(record)
                if lives is None and seen is None:
                    seen, until = found.version, monotonic() + self.expiry
                    notice(
                        f"waiting up to {self.expiry:g} s to see whether the engine of run {self.run} on "
                        f"{record.get('host', 'another machine')} is at work"
                    )
                if lives is None and monotonic() < until:
                    sleep(min(1.0, max(0.0, until - monotonic())))
                    continue
                version = self._put(match=found.version)
            if version is not None:
                self._version, self._renewed = version, time.monotonic()
                return

    def start(self) -> None:
        """Start to renew the lease in the background."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="upshift-lease", daemon=True)
            self._thread.start()

    @property
    def fresh(self) -> bool:
        """Whether the last renewal is recent enough that no other engine can have taken over."""
        return self.lost is None and time.monotonic() - self._renewed < self.expiry

    def renew(self) -> None:
        """Show that this engine lives, and see whether the lease is still its own."""
        begun = time.monotonic()
        version = self._put(match=self._version)
        if version is None:
            found = self.objects.get(self._key)
            record = {} if found is None else _record(found.data)
            if found is None or record.get("nonce") != self._nonce:
                self.lost = LeaseLost(
                    f"this engine does not own run {self.run} any more, and stops",
                    why="Another engine took this one for dead and continues the run."
                    if record
                    else "Its record is gone from the store.",
                    fix=f"See the state of the run: upshift show {self.run}",
                )
                return
            self.cancel_asked = self.cancel_asked or bool(record.get("cancel"))
            version = found.version
        self._version, self._renewed = version, begun

    def release(self) -> None:
        """Release the lease."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(StoreUnavailable):  # it expires
            if self.lost is None:
                self.renew()
            if self.lost is None:
                self.objects.delete([self._key])

    def _live(self) -> None:
        while not self._ended.wait(self.beat) and self.lost is None:
            with contextlib.suppress(UpshiftError):  # the next one may be let through
                self.renew()

    def _put(self, *, absent: bool = False, match: Version | None = None) -> Version | None:
        self._beats += 1
        record = {**about_us(), **self.record, "nonce": self._nonce, "beat": self._beats, "at": time.time()}
        return self.objects.put(self._key, json.dumps(record).encode(), absent=absent, match=match)

    @property
    def _key(self) -> str:
        return key_of(self.run)


def key_of(run: str) -> str:
    """The record of the engine that has a run."""
    return f"leases/{safe(run)}"


def owner_of(run: str, objects: Objects) -> Mapping[str, Any]:
    """What the engine that has a run has written of itself; nothing where nobody has it."""
    found = objects.get(key_of(run))
    return {} if found is None else _record(found.data)


def ask_to_cancel(run: str, objects: Objects) -> None:
    """Ask the engine that has a run to stop it."""
    found = objects.get(key_of(run))
    while found is not None:
        asking = json.dumps({**_record(found.data), "cancel": True}).encode()
        if objects.put(key_of(run), asking, match=found.version) is not None:
            return
        found = objects.get(key_of(run))


def about_us() -> dict[str, Any]:
    """What tells this process from all others, for :func:`seen_to_live`."""
    return {"pid": os.getpid(), "boot": boot_id(), "space": _space(), "born": _born(os.getpid())}


def seen_to_live(record: Mapping[str, Any]) -> bool | None:
    """Whether the process of an engine lives; None: that cannot be seen from here."""
    us = about_us()
    if us["space"] is None or any(record.get(name) != us[name] for name in ("boot", "space")):
        return None
    return record.get("born") is not None and record["born"] == _born(record.get("pid"))


def _born(pid: object) -> str | None:
    """When a process began, in ticks since the boot: another one of its number began at another time."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if state in (b"Z", b"X") else rest[18].decode()


def _space() -> str | None:
    """The space in which the numbers of processes are unique; None: the system does not say."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _record(content: memoryview) -> dict[str, Any]:
    try:
        found = json.loads(bytes(content))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
