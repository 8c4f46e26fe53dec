"""What the kernel says of processes, read from ``/proc`` so that any image will do; and how to end them."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Collection, Iterable
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
SECTOR = 512
"""Bytes in which the kernel accounts what was read from and written to disks: getrusage(2)."""


class Stat(NamedTuple):
    """CPU time of a process so far, in ticks."""

    process: tuple[int, int]  # its id, and when it started, in ticks since boot
    alive: bool  # whether it has not ended; else it is still there to be waited for
    # own, inherited: what it used, and what children did that it waited for
    own: int
    inherited: int
    parent: int = 0  # the id of its parent
    # where its stack begins, which is drawn by lot when a program is executed, and is the same in what is
    # only forked; 0: not known
    image: int = 0
    state: str = ""  # what it does, as a letter: proc(5)

    def forked_from(self, parent: Stat) -> bool:
        """Whether it is a child that has executed no program since."""
        return self.parent == parent.process[0] and self.image == parent.image != 0


class Consumed(NamedTuple):
    """What a process has consumed, and those with it that it waited for."""

    cpu_seconds: float = 0.0  # user and system time
    read: int = 0  # bytes from and to disks
    written: int = 0

    @classmethod
    def of(cls, *usages: resource.struct_rusage) -> Consumed:
        """The sum of what the kernel has accounted."""
        return cls(
            sum(usage.ru_utime + usage.ru_stime for usage in usages),
            sum(usage.ru_inblock for usage in usages) * SECTOR,
            sum(usage.ru_oublock for usage in usages) * SECTOR,
        )

    @classmethod
    def sum(cls, several: Iterable[Consumed]) -> Consumed:
        """What several have consumed together."""
        return cls(*map(sum, zip(cls(), *several, strict=True)))

    def or_more(self, other: Consumed) -> Consumed:
        """The larger of each."""
        return Consumed(
            max(self.cpu_seconds, other.cpu_seconds),
            max(self.read, other.read),
            max(self.written, other.written),
        )

    def since(self, before: Consumed) -> Consumed:
        """What was consumed since then."""
        return Consumed(
            self.cpu_seconds - before.cpu_seconds, self.read - before.read, self.written - before.written
        )


class OwnMemory(NamedTuple):
    """Bytes of this process that are in memory."""

    resident: int  # all of them
    mapped: int  # those of files that are mapped; shared memory is not a file here
    # how many there were at most, since the process was forked or started. ``ru_maxrss`` would count what the
    # parent had before an exec as well.
    high: int


def read(path: str) -> str | None:
    """The text of a file of the kernel's, or None where it, or its process, is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """The process's children, zombies included."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        text = read(f"/proc/{pid}/task/{thread}/children")
        if text is None:
            continue
        found.extend(map(int, text.split()))
    return found


def tree(pid: int) -> list[int]:
    """The process and all that descends from it, parents first."""
    found = [pid]
    for known in found:  # grows while it is walked
        found.extend(children(known))
    return found


def stat(pid: int) -> Stat | None:
    """CPU time of a process, and where it comes from; None: it is gone."""
    text = read(f"/proc/{pid}/stat")
    if not text:
        return None
    fields = text.rpartition(")")[2].split()  # from the third on: proc(5)
    utime, stime, cutime, cstime = map(int, fields[11:15])
    alive, parent, image = fields[0] not in "ZX", int(fields[1]), int(fields[25])
    return Stat((pid, int(fields[19])), alive, utime + stime, cutime + cstime, parent, image, fields[0])


def disk(pid: int) -> tuple[int, int] | None:
    """Bytes that a process, and those that it waited for, have read from disks and written to them.

    None: it is gone, or this process may not know.
    """
    text = read(f"/proc/{pid}/io")
    if not text:
        return None
    found = dict(line.split(": ") for line in text.splitlines())
    return int(found["read_bytes"]), int(found["write_bytes"])


def unreclaimable(pid: int) -> int:
    """Bytes of anonymous and shared memory of one process; mapped files do not count."""
    text = read(f"/proc/{pid}/status")
    return 0 if text is None else _fields(text, ("RssAnon", "RssShmem"))


def proportional(pids: Iterable[int]) -> int:
    """Like :func:`unreclaimable` of all of them, but memory that they share counts once.

    Walks every page: 30 ms for each GiB of each process.
    """
    total = 0
    for pid in pids:
        text = read(f"/proc/{pid}/smaps_rollup")
        if text is not None:
            total += _fields(text, ("Pss_Anon", "Pss_Shmem"))
    return total


def _fields(text: str, names: tuple[str, ...]) -> int:
    total = 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total += int(value.split()[0]) * 1024
    return total


def own_memory() -> OwnMemory:
    """What this process has in memory."""
    with open("/proc/self/status", "rb", buffering=0) as file:
        text = file.read()
    found = (text.partition(name)[2].split(None, 1) for name in (b"VmRSS:", b"RssFile:", b"VmHWM:"))
    return OwnMemory(*(int(words[0]) * 1024 if words else 0 for words in found))


def own_consumption() -> Consumed:
    """What this process has consumed, and those that it waited for."""
    return Consumed.of(resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))


def host_memory() -> int:
    """Bytes of memory of this host."""
    text = read("/proc/meminfo") or ""
    return _fields(text, ("MemTotal",)) or PAGE * os.sysconf("SC_PHYS_PAGES")


def kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    text = read("/proc/vmstat") or ""
    for line in text.splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def kill(pids: Iterable[int]) -> None:
    """SIGKILL; those that are gone already are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


PATIENCE = 5.0
"""Seconds in which a process that was killed ends, unless it runs as another user, or a device holds it."""


def readable(descriptor: int, seconds: float) -> bool:
    """Whether something can be read within this time; of a pidfd, whether its process has ended.

    Unlike ``select``, it takes any number of a descriptor.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class Strays:
    """Ends what is left of steps. What cannot be ended is waited for once, and then left alone.

    A supervisor is a subreaper, and so is every step process. So an orphan of a step that has ended becomes
    a child of its supervisor: every child that is no live step process is a stray.
    """

    def __init__(self) -> None:
        self._lasting: set[int] = set()

    def kill(self, live: Collection[int]) -> None:
        """Kill every child of this process that is not among ``live``, and wait until it is gone."""
        while True:
            found = set(children(os.getpid()))
            self._lasting &= found
            strays = found - set(live) - self._lasting
            if not strays:
                return
            for pid in strays:
                kill(reversed(tree(pid)))
                with contextlib.suppress(ChildProcessError):
                    if not _reaped(pid):
                        self._lasting.add(pid)


def _reaped(pid: int) -> bool:
    """Whether a child has ended within the time that it has."""
    descriptor = os.pidfd_open(pid)
    try:
        if not readable(descriptor, PATIENCE):
            return False
    finally:
        os.close(descriptor)
    os.waitpid(pid, 0)
    return True
