"""The stamp of a sealed blob: a modification time that says when the content was last known to be right.

A blob is sealed once its content is known to match its digest. Its modification time then holds two things:

* the time of its last change as the kernel keeps it (``ctime``), to the hundredth of a second. Whoever
  changes the content later changes that time too, which no program can set back: then the two differ.
* the *epoch* of the store. What a machine had not yet flushed when it lost power keeps its seal but may have
  lost its content, so the epoch is raised whenever a machine that uses the store has booted again.

A seal that is broken in either way is worth nothing: the digest is computed once, at the next use.

The epoch is counted, not stored: ``boots/`` holds one empty file for each boot of each machine that
has used the store, so no lock is needed, and the epoch is the number of boots after each machine's
first. A machine that has no ``/etc/machine-id`` cannot be told from others: each boot there counts.

What this does not see: a disk that returns other bytes than were written, without an error; a file system
that does not keep the time of the last change. A process that already ran when *another* machine lost
power goes on with the epoch it knows; a system without ``/proc/sys/kernel/random/boot_id`` never raises it.
"""

from __future__ import annotations

import contextlib
import os

from upshift.runtime.storage.files import boot_id, create, machine_id, make_folder, sync_folder

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
    """The stamps of one store."""

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
