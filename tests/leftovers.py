"""What a test session leaves behind on the machine: processes, sockets, cgroups, mounts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
GRACE = 10.0
"""Seconds that what is about to end may take to end."""


class Watch:
    """Compares the machine at the end of a session with what it was at its start.

    Other sessions may run at the same time, so what is found is counted only if it is this
    session's own: a descendant of this process, a process that was started with an ``UPSHIFT_HOME``
    below ``base``, or a copy of this process (a fork server made here has our command line and our
    environment); a socket or mount below ``base``; a new cgroup that nobody is in.
    """

    def __init__(self, base: Path) -> None:
        self.base = str(base) + os.sep
        self.me = psutil.Process()
        self.before = {
            "cgroup": set(_cgroups()),
            "socket": set(self._sockets()),
            "mount": set(self._mounts()),
        }

    def leftovers(self) -> list[str]:
        """One line for each thing that is still there."""
        processes = list(self._processes())
        psutil.wait_procs(processes, timeout=GRACE)
        found = [f"process {_describe(p)}" for p in processes if _alive(p)]
        found += [f"socket {s}" for s in self._sockets() if s not in self.before["socket"]]
        found += [f"mount {m}" for m in self._mounts() if m not in self.before["mount"]]
        found += [f"cgroup {c}" for c in self._deserted_cgroups()]
        return found

    def _deserted_cgroups(self) -> set[str]:
        """New ones that nobody is in. Another session may have made one, and be about to enter it."""
        end = time.monotonic() + GRACE
        found = {c for c in _cgroups() if c not in self.before["cgroup"] and _deserted(c)}
        while found and time.monotonic() < end:
            time.sleep(0.1)
            found = {c for c in found if _deserted(c)}
        return found

    def _processes(self) -> Iterator[psutil.Process]:
        children = set(self.me.children(recursive=True))
        ours, command = _environ(self.me), self.me.cmdline()
        marker = f"UPSHIFT_HOME={self.base}".encode()
        for process in psutil.process_iter():
            if process == self.me:
                continue
            try:
                copy = process.cmdline() == command and _environ(process) == ours
                if process in children or copy or marker in _environ(process):
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue  # it ended, or it is another user's

    def _sockets(self) -> Iterator[str]:
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            path = line.split(maxsplit=7)[7:]
            if path and self.base in path[0]:
                yield path[0]

    def _mounts(self) -> Iterator[str]:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            point = line.split()[4]
            if point.startswith(self.base):
                yield point


def _environ(process: psutil.Process) -> bytes:
    return Path(f"/proc/{process.pid}/environ").read_bytes()


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} (parent {process.ppid()}): {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return str(process.pid)


def _cgroups() -> Iterator[str]:
    for folder, names, _ in os.walk(CGROUPS):
        for name in names:
            if "upshift" in name:
                yield os.path.join(folder, name)


def _deserted(cgroup: str) -> bool:
    try:
        return not Path(cgroup, "cgroup.procs").read_text().strip()
    except OSError:
        return False
