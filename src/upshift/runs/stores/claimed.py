"""The claims of all processes on a store, as ``gc`` sees them. See :mod:`upshift.runtime.storage.claims`."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from upshift.errors import StoreError, UsageError
from upshift.runtime.storage.claims import NO_LOCKS, folder_of, gc_lock_of, lock, lock_of, locked, open_lock
from upshift.runtime.storage.files import discard

_MOUNTS = "/proc/self/mountinfo"
_NFS = frozenset({"nolock", "local_lock=all", "local_lock=flock"})
_LOCAL = {"nfs": _NFS, "nfs4": _NFS, "lustre": frozenset({"localflock"})}
"""By file system, the options with which ``flock`` is between processes of one machine."""


class Claimed:
    """The claims of everybody on one store, as ``gc`` sees them.

    Parameters
    ----------
    root
        Folder of the store.
    """

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
