"""The first process of a container that serves several attempts, one after the other.

::

    backend ── {"of": …, "spec": …, "order": …} ──► this ──fork──► supervisor of the attempt ──fork──► step
            ◄── {"event": "over", "code": …, "fit": …} ──

Each attempt has a supervisor of its own, forked from this process, which never imports anything of the
user's. After it, whatever still runs in the container is killed, and the container goes unless it is as it
was: see :class:`Footprint`. The folders that the backend empties (home, ``/tmp``, code) do not count for
that. At the end of its input, or after a while without an order, this leaves too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import upshift
from upshift.model.configuration import home
from upshift.runtime import confine, proc
from upshift.runtime.storage import home_folders
from upshift.runtime.supervisor import single_task
from upshift.runtime.supervisor.protocol import AT_ONCE, WITH_GRACE

IDLE = 10.0
"""Seconds without an order after which a container goes that has served one."""
PATIENCE = 5.0
"""Seconds in which what was killed has ended."""
LOOKING, WAITING = 0.5, 5.0
"""Seconds of work, and in all, that the look at all files may take; after that a new container is quicker."""
_PASSED_ON = {signal.SIGTERM, signal.SIGINT, WITH_GRACE, AT_ONCE}
_CLOCK_OF_FILES = 5  # CLOCK_REALTIME_COARSE of linux/time.h, with whose resolution files are stamped
_NO_FILES = {"proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue"}
_EMPTY = ("/dev/shm", "/dev/mqueue")
_KEPT_BY_KERNEL = ("shm", "sem", "msg")


def serve(elsewhere: Collection[str]) -> int:
    """Run the attempts that are ordered on standard input."""
    for folder in (home(), os.path.dirname(os.path.dirname(os.path.abspath(upshift.__file__)))):
        home_folders.use(str(folder))
    reception = _Reception()
    memory, footprint = confine.own_group(), Footprint(elsewhere)
    patience: float | None = None
    while (line := reception.order(patience)).strip():
        said = json.loads(line)
        code = reception.attend(said)
        unharmed = _alone() and (memory is None or memory.kills() == 0)
        fit = unharmed and not footprint.changed()
        reception.say(event="over", of=said["of"], code=code, fit=fit)
        if not fit:
            break
        patience = IDLE
    return 0


class _Reception:
    """Takes orders and signals, and hands both to the supervisor that is at work."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._signals, writer = os.pipe()
        for end in (self._signals, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # what matters is the byte in the pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)

    def order(self, patience: float | None) -> bytes:
        """The next line; empty: there is none, nobody wants any, or ``patience`` seconds are over."""
        while b"\n" not in self._read:
            ready, _, _ = select.select([0, self._signals], [], [], patience)
            if not ready or _PASSED_ON.intersection(self._got()):
                return b""
            if 0 in ready:
                block = os.read(0, 1 << 16)
                if not block:
                    return b""
                self._read += block
        line, _, rest = self._read.partition(b"\n")
        self._read = bytearray(rest)
        return bytes(line)

    def attend(self, said: Mapping[str, Any]) -> int:
        """Have an attempt run; the exit code of its supervisor."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until the supervisor handles them
        pid = os.fork()
        if pid == 0:
            self._supervise(said)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        while True:
            select.select([self._signals], [], [])
            for number in self._got():
                if number in _PASSED_ON:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            for ended, status in _reaped():
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code

    def say(self, **content: Any) -> None:
        """Send an event to the backend."""
        os.set_blocking(1, True)  # a supervisor that was killed has left it otherwise
        with contextlib.suppress(OSError):  # nobody reads it any more
            os.write(1, json.dumps(content).encode() + b"\n")

    def _supervise(self, said: Mapping[str, Any]) -> None:
        code = 1
        try:
            sys.dont_write_bytecode = True  # of the image's modules: it would be a change, for nobody
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, 0)
            os.close(nowhere)
            code = single_task.run_for_backend(said["spec"], name=said["of"], given=said["order"])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _got(self) -> bytes:
        try:
            return os.read(self._signals, 1 << 10)
        except BlockingIOError:
            return b""


def _reaped() -> Iterator[tuple[int, int]]:
    """The children that have ended, the orphans of all that ran here among them."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _alone() -> bool:
    """Kill every other process of the container. False: this is not its first process, or one stays."""
    if os.getpid() != 1:
        return False
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        for _ in _reaped():
            pass
        if not any(name.isdigit() and name != "1" for name in os.listdir("/proc")):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)


class Footprint:
    """Whether an attempt has left anything behind in the container itself.

    Files and folders tell by the time of their last change, which nobody can set; memory that is shared
    by name has to be empty. What this cannot see: what is on a mount that is ``elsewhere``.
    """

    def __init__(self, elsewhere: Collection[str]) -> None:
        self._elsewhere = frozenset(elsewhere)
        before = _now()
        while (now := _now()) == before:  # what the start itself has written is older
            time.sleep(0.001)
        self._since = now
        self._clocks = now - time.monotonic_ns()

    def changed(self) -> bool:
        """Whether there is anything, or it cannot be told soon enough."""
        if self._clocks - (_now() - time.monotonic_ns()) > 10**8:  # set back: times say nothing
            return True
        if any(os.path.isdir(folder) and os.listdir(folder) for folder in _EMPTY):
            return True
        for kind in _KEPT_BY_KERNEL:
            if len((proc.read(f"/proc/sysvipc/{kind}") or "").splitlines()) > 1:
                return True
        worked, deadline = time.process_time() + LOOKING, time.monotonic() + WAITING
        try:
            for status in self._all():
                late = time.process_time() > worked or time.monotonic() > deadline
                if late or status.st_ctime_ns >= self._since:
                    return True
            return False
        except OSError:  # what cannot be looked at may be anything
            return True

    def _all(self) -> Iterator[os.stat_result]:
        """All files and folders of the container's own."""
        mounts = {
            _unescaped(line.split()[4]): line
            for line in (proc.read("/proc/self/mountinfo") or "").splitlines()
        }
        for mount, line in mounts.items():
            options, kind = line.split()[5], line.partition(" - ")[2].split()[0]
            if kind in _NO_FILES or mount in self._elsewhere or mount in _EMPTY or "ro" in options.split(","):
                continue
            yield os.lstat(mount)
            folders = [mount] if os.path.isdir(mount) else []
            while folders:
                for entry in _entries(folders.pop()):
                    if entry.path in mounts:
                        continue
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        if os.access(folder, os.W_OK) or os.access(folder, os.X_OK):
            raise
        return []  # to whom it is closed, is nobody who could change anything there


def _now() -> int:
    return time.clock_gettime_ns(_CLOCK_OF_FILES)


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
