"""One engine owns a run: a lock on ``UPSHIFT_HOME/leases/RUN.lock``, held as long as the engine lives.

A POSIX record lock: the kernel drops it when the process dies, however it dies, and a forked child
(the fork server outlives the engine) does not inherit it. The price is that closing *any* descriptor
of the file drops it, so this process must not open the file again while it holds the lock; hence the
set of runs that this process owns.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from upshift.errors import RunOwned, StoreUnavailable
from upshift.model.home import home, make_folder

_FLOCK = "hhqqi4x"
"""l_type, l_whence, l_start, l_len, l_pid."""
_owned: set[str] = set()
_guard = threading.Lock()


class Lease:
    """The right to work on a run.

    Parameters
    ----------
    run
        Id of the run.

    Raises
    ------
    RunOwned
        An engine that lives has it.
    StoreUnavailable
        The lock file cannot be written.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._path = lease_path(run)
        with _guard:
            if str(self._path) in _owned:
                raise _owned_error(run, _owner())
            self._descriptor = self._acquire()
            _owned.add(str(self._path))

    def _acquire(self) -> int:
        try:
            make_folder(self._path.parent)
            while True:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    owner = os.read(descriptor, 4096)
                    os.close(descriptor)
                    raise _owned_error(self.run, owner) from None
                if self._is_current(descriptor):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _owner(), 0)
                    return descriptor
                # Its owner ended, and removed it, between our open and our lock.
                os.close(descriptor)
        except OSError as error:
            raise StoreUnavailable(
                f"the lease of run {self.run} cannot be written",
                where=str(self._path),
                why=error.strerror,
                fix="Free some space, or set UPSHIFT_HOME to a folder that can be written to.",
            ) from None

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the run up."""
        with _guard:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            _owned.discard(str(self._path))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def here() -> dict[str, str]:
    """Where leases are taken by this process: to be recorded, for whoever asks :func:`held`."""
    return {"host": socket.gethostname(), "home": str(home())}


def held(run: str, engine: Mapping[str, str] | None = None) -> bool:
    """Whether an engine that lives has the lease of a run. Asks only, and takes nothing.

    Parameters
    ----------
    run
        Id of the run.
    engine
        What :func:`here` said where its engine ran; None: here. Of an engine on another machine whose
        lock file cannot be seen from this one, it is taken that it lives.
    """
    path = lease_path(run, None if engine is None else engine["home"])
    with _guard:  # closing the file would drop a lock that this process has
        if str(path) in _owned:
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return engine is not None and engine["host"] != socket.gethostname()
        except OSError:  # another user's
            return True
        try:
            return _locked(descriptor)
        finally:
            os.close(descriptor)


def lease_path(run: str, folder: str | None = None) -> Path:
    """The lock file of a run, in this ``UPSHIFT_HOME`` or in another one."""
    return (home() if folder is None else Path(folder)) / "leases" / f"{run}.lock"


def _locked(descriptor: int) -> bool:
    """Whether another process has a lock on the file: ``struct flock`` of Linux, asked with F_GETLK."""
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    return bool(found[0] != fcntl.F_UNLCK)


def _owner() -> bytes:
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    return json.dumps(about).encode()


def _owned_error(run: str, owner: bytes) -> RunOwned:
    try:
        about = json.loads(owner)
        who = f"process {about['pid']} on {about['host']}, since {about['since']}"
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not written who it is yet
        who = "a process that has just started"
    return RunOwned(
        f"another engine owns run {run}",
        why=f"It is {who}.",
        fix=f"Wait until it has ended, or stop it: upshift cancel {run}",
    )
