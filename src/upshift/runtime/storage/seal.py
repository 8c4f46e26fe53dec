"""The stamp of a sealed blob: a modification time that says when the content was last known to be right.

A blob is sealed once its content is known to match its digest: its modification time is set to the
current *epoch* of the store. Whoever changes the content later breaks the seal without knowing. What
a machine had not yet flushed when it lost power keeps its seal but may have lost its content, so the
epoch is raised whenever a machine that uses the store has booted again; older seals are then worth
nothing, and the digest of such a blob is computed once, at its next use.

The epoch is counted, not stored: ``boots/`` holds one empty file for each boot of each machine that
has used the store, so no lock is needed, and the epoch is the number of boots after each machine's
first. A machine that has no ``/etc/machine-id`` cannot be told from others: each boot there counts.

What this does not see: a process that was already running when *another* machine lost its power goes
on with the epoch it knows; and a system without ``/proc/sys/kernel/random/boot_id`` never raises it.
"""

from __future__ import annotations

import contextlib
import os

from upshift.runtime.storage.files import boot_id, create, machine_id, make_folder, sync_folder

_BASE = 946_684_800
"""2000-01-01: no clock that works gives this time to a file that somebody writes now."""
_SECOND = 1_000_000_000


class Seal:
    """The stamps of one store.

    Parameters
    ----------
    root
        Folder of the store.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = f"{root}/boots"
        self._epoch: int | None = None
        self._recorded = False

    def stamp(self) -> int:
        """The modification time of a blob that is sealed now, in nanoseconds.

        Raises
        ------
        OSError
            This boot cannot be written down.
        """
        if self._epoch is None or not self._recorded:
            self._epoch = self._count(must_write=True)
        return (_BASE + self._epoch) * _SECOND

    def holds(self, mtime_ns: int) -> bool:
        """Whether a blob with this modification time is known to be right.

        A store that cannot be written is one that this boot cannot be recorded in; what was sealed
        before it counts as broken there, if this machine has used the store in an earlier boot.
        """
        seconds, rest = divmod(mtime_ns, _SECOND)
        sealed = seconds - _BASE
        if rest or not 0 <= sealed < _BASE:
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
