"""What the kernel says of processes: ``/proc``, read by hand so that any image will do."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen
class Usage:
    """What processes use at one moment.

    Parameters
    ----------
    cpu_seconds
        User and system time so far, that of children they waited for included.
    memory
        Bytes of anonymous and shared memory: what no other process could give back.
    """

    cpu_seconds: float
    memory: int


class OwnMemory(NamedTuple):
    """Bytes of this process that are in memory.

    Parameters
    ----------
    resident
        All of them.
    mapped
        Those of files that are mapped; shared memory is no file here.
    high
        How many there were at most, since the process was forked or started. ``ru_maxrss`` would count what
        the parent had before an exec as well.
    """

    resident: int
    mapped: int
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


def usage(pids: Iterable[int]) -> Usage:
    """What these processes use together. Memory that they share is counted for each of them."""
    ticks, memory = 0, 0
    for pid in pids:
        stat = read(f"/proc/{pid}/stat")
        if stat is None:
            continue
        fields = stat.rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime: proc(5)
        memory += unreclaimable(pid)
    return Usage(ticks / TICKS, memory)


def unreclaimable(pid: int) -> int:
    """Bytes of anonymous and shared memory of one process; mapped files do not count."""
    text = read(f"/proc/{pid}/status")
    return 0 if text is None else _fields(text, ("RssAnon", "RssShmem"))


def proportional(pids: Iterable[int]) -> int:
    """Like :func:`unreclaimable` of all of them, but memory that they share counts once.

    Walks every mapping, so it takes milliseconds for a large process.
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


def holders(path: str, marker: str) -> Iterator[int]:
    """Processes that have ``path`` open, or ``marker`` (``NAME=value``) in their environment.

    A child that was forked holds the descriptors of its parent; one that was started with exec has
    its environment. Processes of other users cannot be looked into.
    """
    wanted = marker.encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/environ", "rb", buffering=0) as file:
                if wanted in file.read().split(b"\0"):
                    yield int(entry)
                    continue
            for descriptor in os.listdir(f"/proc/{entry}/fd"):
                if os.readlink(f"/proc/{entry}/fd/{descriptor}") == path:
                    yield int(entry)
                    break
